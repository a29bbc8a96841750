"""TensorFlow, "Distributed training with Keras", with its callbacks."""

import tensorflow as tf


def build(image_shape, num_classes):  # changed
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Rescaling(1 / 255),  # changed
            tf.keras.layers.Conv2D(8, 3, activation="relu", input_shape=(28, 28, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(),
        metrics=["accuracy"],
    )
    return model  # changed


def decay(epoch):
    if epoch < 1:
        return 1e-3
    if epoch >= 1 and epoch < 2:
        return 1e-4
    return 1e-5


class PrintLR(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(
            f"\nLearning rate for epoch {epoch + 1} is {self.model.optimizer.learning_rate.numpy()}"
        )


callbacks = [
    tf.keras.callbacks.LearningRateScheduler(decay),
    PrintLR(),
]
