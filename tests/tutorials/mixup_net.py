"""keras.io, "MixUp augmentation for image classification". The mixing is `mixup: 0.2`."""

import keras
from keras import layers


def get_training_model(image_shape, num_classes):  # changed
    return keras.Sequential(
        [
            layers.Input(shape=(28, 28, 1)),
            layers.Rescaling(1 / 255),  # changed
            layers.Conv2D(8, (5, 5), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Conv2D(16, (5, 5), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Dropout(0.2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
