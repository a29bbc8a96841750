"""TensorFlow, "Convolutional Neural Network (CNN)"."""

import tensorflow as tf
from tensorflow.keras import layers, models


def build(image_shape, num_classes):  # changed
    model = models.Sequential()
    model.add(layers.Rescaling(1 / 255))  # changed
    model.add(layers.Conv2D(8, (3, 3), activation="relu", input_shape=(32, 32, 3)))
    model.add(layers.MaxPooling2D((2, 2)))
    model.add(layers.Conv2D(16, (3, 3), activation="relu"))
    model.add(layers.MaxPooling2D((2, 2)))
    model.add(layers.Conv2D(16, (3, 3), activation="relu"))
    model.add(layers.Flatten())
    model.add(layers.Dense(32, activation="relu"))
    model.add(layers.Dense(10))
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model  # changed
