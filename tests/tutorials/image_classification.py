"""TensorFlow, "Image classification", from a directory with a folder for each class."""

import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
from tensorflow.keras.models import Sequential

img_height = img_width = 28

data_augmentation = keras.Sequential(
    [
        layers.RandomFlip("horizontal", input_shape=(img_height, img_width, 1)),
        layers.RandomRotation(0.1),
        layers.RandomZoom(0.1),
    ]
)


def build(image_shape, num_classes):  # changed
    model = Sequential(
        [
            data_augmentation,
            layers.Rescaling(1.0 / 255),
            layers.Conv2D(8, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.2),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(num_classes, name="outputs"),
        ]
    )
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model  # changed
