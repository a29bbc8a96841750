"""keras.io, "Simple MNIST convnet"."""

from keras import Input, Sequential, layers


def build(input_shape, num_classes):  # changed
    model = Sequential(
        [
            Input(shape=input_shape),
            layers.Rescaling(1 / 255),  # changed
            layers.Conv2D(8, kernel_size=(3, 3), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Conv2D(16, kernel_size=(3, 3), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(num_classes, activation="softmax"),
        ]
    )
    model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    return model  # changed
