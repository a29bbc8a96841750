"""keras.io, "Pneumonia Classification on TPU": class weights and a rate that falls by epochs."""

import keras
from keras import layers


def conv_block(filters, inputs):
    x = layers.SeparableConv2D(filters, 3, activation="relu", padding="same")(inputs)
    x = layers.SeparableConv2D(filters, 3, activation="relu", padding="same")(x)
    x = layers.BatchNormalization()(x)
    return layers.MaxPool2D()(x)


def dense_block(units, dropout_rate, inputs):
    x = layers.Dense(units, activation="relu")(inputs)
    x = layers.BatchNormalization()(x)
    return layers.Dropout(dropout_rate)(x)


def build_model(image_shape, num_classes):  # changed
    inputs = keras.Input(shape=image_shape)
    x = layers.Rescaling(1.0 / 255)(inputs)
    x = layers.Conv2D(8, 3, activation="relu", padding="same")(x)
    x = layers.Conv2D(8, 3, activation="relu", padding="same")(x)
    x = layers.MaxPool2D()(x)
    x = conv_block(16, x)
    x = conv_block(16, x)
    x = layers.Dropout(0.2)(x)
    x = layers.Flatten()(x)
    x = dense_block(32, 0.5, x)
    x = dense_block(16, 0.3, x)
    outputs = layers.Dense(1, activation="sigmoid")(x)
    return keras.Model(inputs=inputs, outputs=outputs)


def exponential_decay(lr0, s):
    def exponential_decay_fn(epoch):
        return lr0 * 0.1 ** (epoch / s)

    return exponential_decay_fn


exponential_decay_fn = exponential_decay(0.01, 5)
lr_scheduler = keras.callbacks.LearningRateScheduler(exponential_decay_fn)
