"""TensorFlow, "Multi-worker training with Keras": its file `mnist_setup.py`."""

import tensorflow as tf


def build_and_compile_cnn_model(image_shape, num_classes):  # changed
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(shape=image_shape),  # changed
            tf.keras.layers.Rescaling(1 / 255),  # changed
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
        metrics=["accuracy"],
    )
    return model
