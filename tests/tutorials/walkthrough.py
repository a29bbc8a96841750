"""TensorFlow, "Custom training: walkthrough": a dense network, its loss and its gradients."""

import tensorflow as tf


def build(image_shape, num_classes):  # changed
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Rescaling(1 / 255),  # changed
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10, activation=tf.nn.relu),
            tf.keras.layers.Dense(10, activation=tf.nn.relu),
            tf.keras.layers.Dense(num_classes),
        ]
    )
    return model  # changed


loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def loss(model, x, y, training):
    y_ = model(x, training=training)
    return loss_object(y_true=y, y_pred=y_)


def grad(model, inputs, targets):
    with tf.GradientTape() as tape:
        loss_value = loss(model, inputs, targets, training=True)
    return loss_value, tape.gradient(loss_value, model.trainable_variables)


def step(model, optimizer, batch, context):  # changed
    x, y = batch
    loss_value, grads = grad(model, x, y)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return {"loss": loss_value * context.num_replicas_in_sync}  # changed
