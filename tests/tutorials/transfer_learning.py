"""TensorFlow, "Transfer learning and fine-tuning": a frozen MobileNetV2 from a file of weights."""

import tensorflow as tf

data_augmentation = tf.keras.Sequential(
    [tf.keras.layers.RandomFlip("horizontal"), tf.keras.layers.RandomRotation(0.2)]
)
preprocess_input = tf.keras.applications.mobilenet_v2.preprocess_input


def build(image_shape, num_classes):  # changed
    base_model = tf.keras.applications.MobileNetV2(
        input_shape=image_shape, alpha=0.35, include_top=False, weights=None  # changed
    )  # fmt: skip
    base_model.trainable = False
    global_average_layer = tf.keras.layers.GlobalAveragePooling2D()
    prediction_layer = tf.keras.layers.Dense(1, activation="sigmoid")
    inputs = tf.keras.Input(shape=image_shape)
    x = data_augmentation(inputs)
    x = preprocess_input(x)
    x = base_model(x, training=False)
    x = global_average_layer(x)
    x = tf.keras.layers.Dropout(0.2)(x)
    outputs = prediction_layer(x)
    model = tf.keras.Model(inputs, outputs)
    model.compile(
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.001),
        loss=tf.keras.losses.BinaryCrossentropy(),
        metrics=[tf.keras.metrics.BinaryAccuracy(threshold=0.5, name="accuracy")],
    )
    return model  # changed
