"""Models with training steps of their own, as Keras's guides and TensorFlow's write them."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers


def _count_replicas() -> int:
    return tf.distribute.get_strategy().num_replicas_in_sync


def make_net(shape, num_classes, end=None, name=None):
    chain = [layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(16, activation="relu")]
    return keras.Sequential(
        [keras.Input(shape), *chain, layers.Dense(num_classes, activation=end)], name=name
    )


def plain(image_shape, num_classes):
    return make_net(image_shape, num_classes)


def compiled(image_shape, num_classes):
    """As in a script: the model, its optimizer with a schedule, its loss and a metric."""
    model = make_net(image_shape, num_classes, "softmax")
    rate = keras.optimizers.schedules.InverseTimeDecay(3e-3, 5, 0.5)
    model.compile(
        optimizer=keras.optimizers.Nadam(rate, clipnorm=0.5),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def smoothed(image_shape, num_classes):
    """As for labels of to_categorical."""
    model = make_net(image_shape, num_classes, "softmax")
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    model.compile("rmsprop", loss, metrics=["accuracy"])
    return model


def in_two_rates(image_shape, num_classes):
    """Another optimizer for the last layer."""
    model = make_net(image_shape, num_classes)
    last = model.layers[-1].kernel
    slow, fast = keras.optimizers.Adam(1e-4, clipnorm=0.1), keras.optimizers.SGD(0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.MultiOptimizer(lambda variable: fast if variable is last else slow), loss
    )
    return model


class Stepping(keras.Model):
    """Keras's guide "Customizing what happens in fit": own trackers."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.net = make_net(image_shape, num_classes)
        self.seen = keras.metrics.Mean(name="loss")
        self.hits = keras.metrics.SparseCategoricalAccuracy(name="hits")

    @property
    def metrics(self):
        return [self.seen, self.hits]

    def call(self, images, training=False):
        return self.net(images, training=training)

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            outputs = self(images, training=True)
            loss = self.compute_loss(y=labels, y_pred=outputs)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.seen.update_state(loss * _count_replicas())
        self.hits.update_state(labels, outputs)
        return {each.name: each.result() for each in self.metrics}

    def test_step(self, data):
        images, labels = data
        outputs = self(images, training=False)
        self.seen.update_state(
            keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
        )
        self.hits.update_state(labels, outputs)
        return {each.name: each.result() for each in self.metrics}


class WithLoss(keras.Model):
    """An own loss of outputs and labels, for Keras's own step."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.net = make_net(image_shape, num_classes)

    def call(self, images, training=False):
        return self.net(images, training=training)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        plain = super().compute_loss(x, y, y_pred, sample_weight)
        return plain + 1e-3 * tf.reduce_mean(tf.square(y_pred)) / _count_replicas()


class Penalized(WithLoss):
    """A penalty that is a mean and is not divided, so that each replica adds a whole one."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        plain = super().compute_loss(x, y, y_pred, sample_weight)
        return plain + 0.1 * tf.reduce_mean(tf.square(y_pred))


class Distiller(Stepping):
    """A student that learns from a frozen teacher, as in keras.io's example."""

    def __init__(self, image_shape, num_classes):
        super().__init__(image_shape, num_classes)
        self.teacher = make_net(image_shape, num_classes, name="teacher")
        self.teacher.trainable = False

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        soft = keras.losses.kl_divergence(
            tf.nn.softmax(self.teacher(x, training=False) / 3.0), tf.nn.softmax(y_pred / 3.0)
        )
        plain = super().compute_loss(x, y, y_pred, sample_weight)
        return 0.3 * plain + 0.7 * tf.reduce_mean(soft) / _count_replicas()

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            outputs = self(images, training=True)
            loss = self.compute_loss(x=images, y=labels, y_pred=outputs)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.seen.update_state(loss * _count_replicas())
        self.hits.update_state(labels, outputs)
        return {each.name: each.result() for each in self.metrics}


class PatchEncoder(layers.Layer):
    """A table of positions, as in a vision transformer, of which each replica uses all rows."""

    def __init__(self):
        super().__init__()
        self.projection, self.table = layers.Dense(8), layers.Embedding(16, 8)

    def call(self, patches):
        return self.projection(patches) + self.table(keras.ops.arange(16))


def embedded(image_shape, num_classes):
    images = keras.Input(image_shape)
    patches = layers.Reshape((16, -1))(layers.Rescaling(1 / 255)(images))
    x = layers.Flatten()(layers.LayerNormalization()(PatchEncoder()(patches)))
    model = keras.Model(images, layers.Dense(num_classes, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class FirstOfGuide(WithLoss):
    """The first example of Keras's guide "Customizing what happens in fit"."""

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            outputs = self(images, training=True)
            loss = self.compute_loss(y=labels, y_pred=outputs)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss * _count_replicas())
            else:
                metric.update_state(labels, outputs)
        return {metric.name: metric.result() for metric in self.metrics}


class SharpnessAware(Stepping):
    """Moves the weights up the gradient, and back after a second gradient (Foret et al. 2021)."""

    def train_step(self, data):
        images, labels = data
        weights = self.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self(images, training=True))
        context = tf.distribute.get_replica_context()
        first = context.all_reduce("sum", tape.gradient(loss, weights))
        moves = [0.05 * each / (tf.linalg.global_norm(first) + 1e-12) for each in first]
        for weight, move in zip(weights, moves, strict=True):
            weight.assign_add(move)
        with tf.GradientTape() as tape:
            second = self.compute_loss(y=labels, y_pred=self(images, training=True))
        gradients = tape.gradient(second, weights)
        for weight, move in zip(weights, moves, strict=True):
            weight.assign_sub(move)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.seen.update_state(loss * _count_replicas())
        return {"loss": self.seen.result()}


class OneHotFocal(keras.losses.Loss):
    """A focal loss for labels of to_categorical."""

    def call(self, y_true, y_pred):
        inverse = tf.square(1 - y_pred)
        return -tf.reduce_sum(inverse * y_true * tf.math.log(y_pred + 1e-7), axis=-1)


def focal(image_shape, num_classes):
    model = make_net(image_shape, num_classes, "softmax")
    model.compile(keras.optimizers.SGD(0.1), OneHotFocal(), metrics=["accuracy"])
    return model


class Accumulating(Stepping):
    """Gradients of two batches for each update, kept in variables of TensorFlow."""

    def __init__(self, image_shape, num_classes):
        super().__init__(image_shape, num_classes)
        self.taken = tf.Variable(0, trainable=False, aggregation=FIRST)
        self.sums = [
            tf.Variable(tf.zeros(each.shape), trainable=False, aggregation=SUM)
            for each in self.net.trainable_variables
        ]

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            outputs = self(images, training=True)
            loss = self.compute_loss(y=labels, y_pred=outputs)
        for total, each in zip(
            self.sums, tape.gradient(loss, self.trainable_variables), strict=True
        ):
            total.assign_add(each)
        self.taken.assign_add(1)
        keep = tf.cast(self.taken % 2, tf.float32)
        # Half of the sum counts at the second batch, and nothing at the first.
        gradients = [(1 - keep) * each / 2 / _count_replicas() for each in self.sums]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for total in self.sums:
            total.assign(keep * total / _count_replicas())
        self.seen.update_state(loss * _count_replicas())
        return {"loss": self.seen.result()}


FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA
SUM = tf.VariableAggregation.SUM


class Adversarial(keras.Model):
    """A GAN whose discriminator also names the class of an image. Its draws are the model's."""

    def __init__(self, image_shape, num_classes, is_drawing=True):
        super().__init__()
        height, width, channels = image_shape
        self.num_classes, self.is_drawing = num_classes, is_drawing
        self.trunk = keras.Sequential(
            [
                keras.Input(image_shape),
                layers.Rescaling(1 / 255),
                layers.Flatten(),
                layers.Dense(32, activation="leaky_relu"),
            ]
        )
        self.judge = keras.Sequential([keras.Input((32,)), layers.Dense(1)])
        self.namer = keras.Sequential([keras.Input((32,)), layers.Dense(num_classes)])
        self.generator = keras.Sequential(
            [
                keras.Input((4 + num_classes,)),
                layers.Dense(32, activation="relu"),
                layers.Dense(height * width * channels, activation="sigmoid"),
                layers.Rescaling(255.0),
                layers.Reshape(image_shape),
            ]
        )
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def call(self, images, training=False):
        return self.namer(self.trunk(images, training=training))

    def train_step(self, data):
        images, labels = data
        replicas, count = _count_replicas(), tf.shape(images)[0]
        noise = tf.zeros((count, 4))
        if self.is_drawing:
            noise = keras.random.normal((count, 4), seed=self.seed_generator)
        codes = tf.concat([noise, tf.one_hot(labels, self.num_classes)], 1)

        def say(truth, trunk):
            logits = self.judge(trunk)
            truths = tf.fill(tf.shape(logits), truth)
            return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(truths, logits))

        def name(trunk):
            logits = self.namer(trunk)
            return tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )

        with tf.GradientTape() as tape:
            real, made = self.trunk(images), self.trunk(self.generator(codes))
            d_loss = (say(0.9, real) + say(0.1, made) + name(real)) / replicas
        parts = (self.trunk, self.judge, self.namer)
        weights = [weight for part in parts for weight in part.trainable_variables]
        gradients = tape.gradient(d_loss, weights)
        self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        with tf.GradientTape() as tape:
            made = self.trunk(self.generator(codes))
            g_loss = (say(0.9, made) + name(made)) / replicas
        weights = self.generator.trainable_variables
        gradients = tape.gradient(g_loss, weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.d_loss.update_state(d_loss * replicas)
        self.g_loss.update_state(g_loss * replicas)
        return {each.name: each.result() for each in self.metrics}


def gan(image_shape, num_classes, is_drawing=True):
    model = Adversarial(image_shape, num_classes, is_drawing)
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.RMSprop(2e-3))
    return model


def guided_step(model, optimizer, batch, context):
    """The step of TensorFlow's guide on training with tf.distribute.Strategy."""
    images, labels = batch
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.nn.compute_average_loss(losses)
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return {"loss": loss * context.num_replicas_in_sync}


def contrastive_step(model, optimizer, batch, context):
    """Supervised contrastive learning (Khosla et al. 2020) over the batch of all replicas."""
    images, labels = batch
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        own = tf.math.l2_normalize(logits, axis=1)
        others = context.all_gather(own, axis=0)
        all_labels = context.all_gather(labels, axis=0)
        likeness = tf.matmul(own, others, transpose_b=True) / 0.1
        same = tf.cast(labels[:, None] == all_labels[None], tf.float32)
        same /= tf.reduce_sum(same, axis=1, keepdims=True)
        contrast = tf.nn.softmax_cross_entropy_with_logits(labels=same, logits=likeness)
        plain = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.reduce_mean(contrast + plain) / context.num_replicas_in_sync
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return {"loss": loss * context.num_replicas_in_sync}


# Steps that are refused


def summing_step(model, optimizer, batch, context):
    """Adds up the means of the replicas."""
    images, labels = batch
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return {"loss": loss}


def silent_step(model, optimizer, batch, context):
    guided_step(model, optimizer, batch, context)


def wordy_step(model, optimizer, batch, context):
    return {"loss": guided_step(model, optimizer, batch, context)["loss"][None]}


def lossless_step(model, optimizer, batch, context):
    return {"figure": guided_step(model, optimizer, batch, context)["loss"]}


_MEMORY: list[tf.Variable] = []


def hiding_step(model, optimizer, batch, context):
    """Keeps a variable where no checkpoint finds it."""
    if not _MEMORY:
        with tf.init_scope():
            _MEMORY.append(tf.Variable(0.0, aggregation=FIRST))
    _MEMORY[0].assign_add(1.0)
    return {"loss": guided_step(model, optimizer, batch, context)["loss"] + 0 * _MEMORY[0]}


def manual_step(model, optimizer, batch, context):
    """Updates the weights without an optimizer."""
    images, labels = batch
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = tf.nn.compute_average_loss(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )
    for weight, each in zip(
        model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
    ):
        weight.assign_sub(1e-2 * each)
    return {"loss": loss}


class Late(Stepping):
    """Creates the weights of a part in the first step."""

    def __init__(self, image_shape, num_classes):
        super().__init__(image_shape, num_classes)
        self.side = layers.Dense(2)

    def train_step(self, data):
        self.side(self.net(data[0]))
        return super().train_step(data)


class _StopAfterThree(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 2


def stop_after_three():
    return _StopAfterThree()
