"""keras.io, "CutMix data augmentation for image classification": a ResNet, and `cutmix: 0.25`."""

import keras


def resnet_layer(
    inputs, num_filters=8, kernel_size=3, strides=1, activation="relu", batch_normalization=True
):
    x = keras.layers.Conv2D(
        num_filters,
        kernel_size=kernel_size,
        strides=strides,
        padding="same",
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(1e-4),
    )(inputs)
    if batch_normalization:
        x = keras.layers.BatchNormalization()(x)
    if activation is not None:
        x = keras.layers.Activation(activation)(x)
    return x


def resnet_v20(input_shape, num_classes=10, depth=8):  # changed
    num_filters = 8
    num_res_blocks = int((depth - 2) / 6)
    inputs = keras.layers.Input(shape=input_shape)
    x = resnet_layer(inputs=keras.layers.Rescaling(1 / 255)(inputs))  # changed
    for stack in range(3):
        for res_block in range(num_res_blocks):
            strides = 1
            if stack > 0 and res_block == 0:
                strides = 2
            y = resnet_layer(inputs=x, num_filters=num_filters, strides=strides)
            y = resnet_layer(inputs=y, num_filters=num_filters, activation=None)
            if stack > 0 and res_block == 0:
                x = resnet_layer(
                    inputs=x,
                    num_filters=num_filters,
                    kernel_size=1,
                    strides=strides,
                    activation=None,
                    batch_normalization=False,
                )
            x = keras.layers.add([x, y])
            x = keras.layers.Activation("relu")(x)
        num_filters *= 2
    x = keras.layers.AveragePooling2D(pool_size=8)(x)
    y = keras.layers.Flatten()(x)
    outputs = keras.layers.Dense(num_classes, activation="softmax", kernel_initializer="he_normal")(
        y
    )
    return keras.Model(inputs=inputs, outputs=outputs)
