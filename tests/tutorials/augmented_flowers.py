"""TensorFlow, "Data augmentation": resizing, flips and rotations are layers of the model."""

import tensorflow as tf
from tensorflow.keras import layers

IMG_SIZE = 40

resize_and_rescale = tf.keras.Sequential(
    [layers.Resizing(IMG_SIZE, IMG_SIZE), layers.Rescaling(1.0 / 255)]
)
data_augmentation = tf.keras.Sequential(
    [layers.RandomFlip("horizontal_and_vertical"), layers.RandomRotation(0.2)]
)


def build(image_shape, num_classes):  # changed
    model = tf.keras.Sequential(
        [
            resize_and_rescale,
            data_augmentation,
            layers.Conv2D(8, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(num_classes),
        ]
    )
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model  # changed
