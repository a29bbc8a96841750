"""keras.io, "Train a Vision Transformer on small datasets", with its warm-up and cosine."""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

NUM_CLASSES = 10
INPUT_SHAPE = (32, 32, 3)
IMAGE_SIZE = 40
PATCH_SIZE = 8
NUM_PATCHES = (IMAGE_SIZE // PATCH_SIZE) ** 2
LEARNING_RATE = 0.003
WEIGHT_DECAY = 0.0001
LAYER_NORM_EPS = 1e-6
TRANSFORMER_LAYERS = 2
PROJECTION_DIM = 16
NUM_HEADS = 2
TRANSFORMER_UNITS = [PROJECTION_DIM * 2, PROJECTION_DIM]
MLP_HEAD_UNITS = [32, 16]

data_augmentation = keras.Sequential(
    [
        layers.Rescaling(1 / 255),  # changed
        layers.Resizing(IMAGE_SIZE, IMAGE_SIZE),
        layers.RandomFlip("horizontal"),
        layers.RandomRotation(factor=0.02),
        layers.RandomZoom(height_factor=0.2, width_factor=0.2),
    ],
    name="data_augmentation",
)


class ShiftedPatchTokenization(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.half_patch = PATCH_SIZE // 2
        self.flatten_patches = layers.Reshape((NUM_PATCHES, -1))
        self.projection = layers.Dense(units=PROJECTION_DIM)
        self.layer_norm = layers.LayerNormalization(epsilon=LAYER_NORM_EPS)

    def crop_shift_pad(self, images, down, right):
        size = IMAGE_SIZE - self.half_patch
        crop = tf.image.crop_to_bounding_box(
            images, (1 - down) * self.half_patch, (1 - right) * self.half_patch, size, size
        )
        return tf.image.pad_to_bounding_box(
            crop, down * self.half_patch, right * self.half_patch, IMAGE_SIZE, IMAGE_SIZE
        )

    def call(self, images):
        shifted = [self.crop_shift_pad(images, *each) for each in np.ndindex(2, 2)]
        images = ops.concatenate([images, *shifted], axis=-1)
        patches = tf.image.extract_patches(
            images=images,
            sizes=[1, PATCH_SIZE, PATCH_SIZE, 1],
            strides=[1, PATCH_SIZE, PATCH_SIZE, 1],
            rates=[1, 1, 1, 1],
            padding="VALID",
        )
        return self.projection(self.layer_norm(self.flatten_patches(patches)))


class PatchEncoder(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.position_embedding = layers.Embedding(input_dim=NUM_PATCHES, output_dim=PROJECTION_DIM)
        self.positions = ops.arange(start=0, stop=NUM_PATCHES, step=1)

    def call(self, encoded_patches):
        return encoded_patches + self.position_embedding(self.positions)


class MultiHeadAttentionLSA(layers.MultiHeadAttention):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.tau = keras.Variable(math.sqrt(float(self._key_dim)), trainable=True)  # changed

    def _compute_attention(
        self, query, key, value, attention_mask=None, training=None, return_attention_scores=False
    ):
        query = ops.multiply(query, 1.0 / self.tau)
        attention_scores = ops.einsum(self._dot_product_equation, key, query)
        attention_scores = self._masked_softmax(attention_scores, attention_mask)
        attention_scores_dropout = self._dropout_layer(attention_scores, training=training)
        attention_output = ops.einsum(self._combine_equation, attention_scores_dropout, value)
        return attention_output, attention_scores


def mlp(x, hidden_units, dropout_rate):
    for units in hidden_units:
        x = layers.Dense(units, activation="gelu")(x)
        x = layers.Dropout(dropout_rate)(x)
    return x


diag_attn_mask = 1 - ops.eye(NUM_PATCHES)
diag_attn_mask = ops.cast([diag_attn_mask], dtype="int8")


def create_vit_classifier():
    inputs = layers.Input(shape=INPUT_SHAPE)
    augmented = data_augmentation(inputs)
    tokens = ShiftedPatchTokenization()(augmented)
    encoded_patches = PatchEncoder()(tokens)
    for _ in range(TRANSFORMER_LAYERS):
        x1 = layers.LayerNormalization(epsilon=1e-6)(encoded_patches)
        attention_output = MultiHeadAttentionLSA(
            num_heads=NUM_HEADS, key_dim=PROJECTION_DIM, dropout=0.1
        )(x1, x1, attention_mask=diag_attn_mask)
        x2 = layers.Add()([attention_output, encoded_patches])
        x3 = layers.LayerNormalization(epsilon=1e-6)(x2)
        x3 = mlp(x3, hidden_units=TRANSFORMER_UNITS, dropout_rate=0.1)
        encoded_patches = layers.Add()([x3, x2])
    representation = layers.LayerNormalization(epsilon=1e-6)(encoded_patches)
    representation = layers.Flatten()(representation)
    representation = layers.Dropout(0.5)(representation)
    features = mlp(representation, hidden_units=MLP_HEAD_UNITS, dropout_rate=0.5)
    logits = layers.Dense(NUM_CLASSES)(features)
    return keras.Model(inputs=inputs, outputs=logits)


class WarmUpCosine(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, learning_rate_base, total_steps, warmup_learning_rate, warmup_steps):
        super().__init__()
        self.learning_rate_base = learning_rate_base
        self.total_steps = total_steps
        self.warmup_learning_rate = warmup_learning_rate
        self.warmup_steps = warmup_steps
        self.pi = tf.constant(np.pi)

    def __call__(self, step):
        cos_annealed_lr = ops.cos(
            self.pi
            * (ops.cast(step, dtype="float32") - self.warmup_steps)
            / float(self.total_steps - self.warmup_steps)
        )
        learning_rate = 0.5 * self.learning_rate_base * (1 + cos_annealed_lr)
        if self.warmup_steps > 0:
            slope = (self.learning_rate_base - self.warmup_learning_rate) / self.warmup_steps
            warmup_rate = slope * ops.cast(step, dtype="float32") + self.warmup_learning_rate
            learning_rate = ops.where(step < self.warmup_steps, warmup_rate, learning_rate)
        return ops.where(step > self.total_steps, 0.0, learning_rate)


def build(image_shape, num_classes):  # changed
    model = create_vit_classifier()
    scheduled_lrs = WarmUpCosine(
        learning_rate_base=LEARNING_RATE, total_steps=200, warmup_learning_rate=0.0, warmup_steps=20
    )
    optimizer = keras.optimizers.AdamW(learning_rate=scheduled_lrs, weight_decay=WEIGHT_DECAY)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
            keras.metrics.SparseTopKCategoricalAccuracy(5, name="top-5-accuracy"),
        ],
    )
    return model  # changed
