"""keras.io, "Compact Convolutional Transformers", with stochastic depth and label smoothing."""

import keras
import numpy as np
from keras import layers

positional_emb = True
conv_layers = 2
projection_dim = 16
num_heads = 2
transformer_units = [projection_dim, projection_dim]
transformer_layers = 2
stochastic_depth_rate = 0.1
image_size = 32
num_classes = 10
input_shape = (32, 32, 3)

data_augmentation = keras.Sequential(
    [
        layers.Rescaling(scale=1.0 / 255),
        layers.RandomCrop(image_size, image_size),
        layers.RandomFlip("horizontal"),
    ],
    name="data_augmentation",
)


class CCTTokenizer(layers.Layer):
    def __init__(self, num_output_channels=(8, projection_dim), **kwargs):
        super().__init__(**kwargs)
        self.conv_model = keras.Sequential()
        for channels in num_output_channels:
            self.conv_model.add(
                layers.Conv2D(
                    channels, 3, 1, padding="valid", use_bias=False, activation="relu",
                    kernel_initializer="he_normal",
                )
            )  # fmt: skip
            self.conv_model.add(layers.ZeroPadding2D(1))
            self.conv_model.add(layers.MaxPooling2D(3, 2, "same"))

    def call(self, images):
        outputs = self.conv_model(images)
        shape = keras.ops.shape(outputs)
        return keras.ops.reshape(outputs, (-1, shape[1] * shape[2], shape[-1]))


class PositionEmbedding(keras.layers.Layer):
    def __init__(self, sequence_length, initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.sequence_length = int(sequence_length)
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape):
        self.position_embeddings = self.add_weight(
            name="embeddings",
            shape=[self.sequence_length, input_shape[-1]],
            initializer=self.initializer,
            trainable=True,
        )

    def call(self, inputs, start_index=0):
        shape = keras.ops.shape(inputs)
        position_embeddings = keras.ops.convert_to_tensor(self.position_embeddings)
        position_embeddings = keras.ops.slice(
            position_embeddings, (start_index, 0), (shape[-2], shape[-1])
        )
        return keras.ops.broadcast_to(position_embeddings, shape)


class SequencePooling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.Dense(1)

    def call(self, x):
        attention_weights = keras.ops.softmax(self.attention(x), axis=1)
        attention_weights = keras.ops.transpose(attention_weights, axes=(0, 2, 1))
        weighted_representation = keras.ops.matmul(attention_weights, x)
        return keras.ops.squeeze(weighted_representation, -2)


class StochasticDepth(layers.Layer):
    def __init__(self, drop_prop, **kwargs):
        super().__init__(**kwargs)
        self.drop_prob = drop_prop
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, x, training=None):
        if training:
            keep_prob = 1 - self.drop_prob
            shape = (keras.ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
            random_tensor = keep_prob + keras.random.uniform(shape, 0, 1, seed=self.seed_generator)
            random_tensor = keras.ops.floor(random_tensor)
            return (x / keep_prob) * random_tensor
        return x


def mlp(x, hidden_units, dropout_rate):
    for units in hidden_units:
        x = layers.Dense(units, activation=keras.ops.gelu)(x)
        x = layers.Dropout(dropout_rate)(x)
    return x


def create_cct_model(
    image_size=image_size,
    input_shape=input_shape,
    num_heads=num_heads,
    projection_dim=projection_dim,
    transformer_units=transformer_units,
):
    inputs = layers.Input(input_shape)
    augmented = data_augmentation(inputs)
    encoded_patches = CCTTokenizer()(augmented)
    if positional_emb:
        sequence_length = encoded_patches.shape[1]
        encoded_patches += PositionEmbedding(sequence_length=sequence_length)(encoded_patches)
    dpr = np.linspace(0, stochastic_depth_rate, transformer_layers)
    for i in range(transformer_layers):
        x1 = layers.LayerNormalization(epsilon=1e-5)(encoded_patches)
        attention_output = layers.MultiHeadAttention(
            num_heads=num_heads, key_dim=projection_dim, dropout=0.1
        )(x1, x1)
        attention_output = StochasticDepth(dpr[i])(attention_output)
        x2 = layers.Add()([attention_output, encoded_patches])
        x3 = layers.LayerNormalization(epsilon=1e-5)(x2)
        x3 = mlp(x3, hidden_units=transformer_units, dropout_rate=0.1)
        x3 = StochasticDepth(dpr[i])(x3)
        encoded_patches = layers.Add()([x3, x2])
    representation = layers.LayerNormalization(epsilon=1e-5)(encoded_patches)
    weighted_representation = SequencePooling()(representation)
    logits = layers.Dense(num_classes)(weighted_representation)
    return keras.Model(inputs=inputs, outputs=logits)


def build(image_shape, num_classes):  # changed
    return create_cct_model()  # changed
