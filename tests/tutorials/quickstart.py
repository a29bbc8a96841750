"""TensorFlow, "TensorFlow 2 quickstart for experts": a subclass and its training step."""

import tensorflow as tf
from tensorflow.keras import Model
from tensorflow.keras.layers import Conv2D, Dense, Flatten


class MyModel(Model):
    def __init__(self, image_shape, num_classes):  # changed
        super().__init__()
        self.conv1 = Conv2D(8, 3, activation="relu")
        self.flatten = Flatten()
        self.d1 = Dense(32, activation="relu")
        self.d2 = Dense(10)

    def call(self, x):
        x = self.conv1(x / 255)  # changed
        x = self.flatten(x)
        x = self.d1(x)
        return self.d2(x)


loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def train_step(model, optimizer, batch, context):  # changed
    images, labels = batch  # changed
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = loss_object(labels, predictions)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return {"loss": loss * context.num_replicas_in_sync}  # changed
