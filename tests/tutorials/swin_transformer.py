"""keras.io, "Image classification with Swin Transformers": windows, shifts and label smoothing."""

import keras
import numpy as np
from keras import layers, ops

input_shape = (32, 32, 3)
patch_size = (4, 4)
dropout_rate = 0.03
num_heads = 2
embed_dim = 16
num_mlp = 32
qkv_bias = True
window_size = 2
shift_size = 1
num_patch_x = input_shape[0] // patch_size[0]
num_patch_y = input_shape[1] // patch_size[1]


def window_partition(x, window_size):
    _, height, width, channels = x.shape
    patch_num_y, patch_num_x = height // window_size, width // window_size
    x = ops.reshape(x, (-1, patch_num_y, window_size, patch_num_x, window_size, channels))
    x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
    return ops.reshape(x, (-1, window_size, window_size, channels))


def window_reverse(windows, window_size, height, width, channels):
    patch_num_y, patch_num_x = height // window_size, width // window_size
    x = ops.reshape(windows, (-1, patch_num_y, patch_num_x, window_size, window_size, channels))
    x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
    return ops.reshape(x, (-1, height, width, channels))


class WindowAttention(layers.Layer):
    def __init__(self, dim, window_size, num_heads, qkv_bias=True, dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.window_size = window_size
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = layers.Dense(dim * 3, use_bias=qkv_bias)
        self.dropout = layers.Dropout(dropout_rate)
        self.proj = layers.Dense(dim)
        num_window_elements = (2 * window_size[0] - 1) * (2 * window_size[1] - 1)
        self.relative_position_bias_table = self.add_weight(
            shape=(num_window_elements, num_heads), initializer="zeros", trainable=True
        )
        coords = np.stack(np.meshgrid(*map(np.arange, window_size), indexing="ij"))
        coords_flatten = coords.reshape(2, -1)
        relative_coords = coords_flatten[:, :, None] - coords_flatten[:, None, :]
        relative_coords = relative_coords.transpose([1, 2, 0])
        relative_coords[:, :, 0] += window_size[0] - 1
        relative_coords[:, :, 1] += window_size[1] - 1
        relative_coords[:, :, 0] *= 2 * window_size[1] - 1
        relative_position_index = relative_coords.sum(-1)
        self.relative_position_index = keras.Variable(
            initializer=relative_position_index,
            shape=relative_position_index.shape,
            dtype="int",
            trainable=False,
        )

    def call(self, x, mask=None):
        _, size, channels = x.shape
        head_dim = channels // self.num_heads
        x_qkv = ops.reshape(self.qkv(x), (-1, size, 3, self.num_heads, head_dim))
        q, k, v = ops.unstack(ops.transpose(x_qkv, (2, 0, 3, 1, 4)), 3)
        attn = (q * self.scale) @ ops.transpose(k, (0, 1, 3, 2))
        num_window_elements = self.window_size[0] * self.window_size[1]
        bias = ops.take(
            self.relative_position_bias_table,
            ops.reshape(self.relative_position_index, (-1,)),
            axis=0,
        )
        bias = ops.reshape(bias, (num_window_elements, num_window_elements, -1))
        attn = attn + ops.expand_dims(ops.transpose(bias, (2, 0, 1)), axis=0)
        if mask is not None:
            windows = mask.shape[0]
            mask_float = ops.cast(ops.expand_dims(ops.expand_dims(mask, axis=1), axis=0), "float32")
            attn = ops.reshape(attn, (-1, windows, self.num_heads, size, size)) + mask_float
            attn = ops.reshape(attn, (-1, self.num_heads, size, size))
        attn = self.dropout(keras.activations.softmax(attn, axis=-1))
        x_qkv = ops.reshape(ops.transpose(attn @ v, (0, 2, 1, 3)), (-1, size, channels))
        return self.dropout(self.proj(x_qkv))


class SwinTransformer(layers.Layer):
    def __init__(
        self, dim, num_patch, num_heads, window_size, shift_size=0, num_mlp=32, qkv_bias=True,
        dropout_rate=0.0, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self.num_patch = num_patch
        self.window_size = window_size
        self.shift_size = shift_size
        self.norm1 = layers.LayerNormalization(epsilon=1e-5)
        self.attn = WindowAttention(
            dim, (window_size, window_size), num_heads, qkv_bias, dropout_rate
        )
        self.drop_path = layers.Dropout(dropout_rate)
        self.norm2 = layers.LayerNormalization(epsilon=1e-5)
        self.mlp = keras.Sequential(
            [
                layers.Dense(num_mlp),
                layers.Activation(keras.activations.gelu),
                layers.Dropout(dropout_rate),
                layers.Dense(dim),
                layers.Dropout(dropout_rate),
            ]
        )

    def build(self, input_shape):
        if self.shift_size == 0:
            self.attn_mask = None
            return
        height, width = self.num_patch
        slices = (
            slice(0, -self.window_size),
            slice(-self.window_size, -self.shift_size),
            slice(-self.shift_size, None),
        )
        mask_array = np.zeros((1, height, width, 1))
        for count, (h, w) in enumerate((h, w) for h in slices for w in slices):
            mask_array[:, h, w, :] = count
        mask_windows = window_partition(ops.convert_to_tensor(mask_array), self.window_size)
        mask_windows = ops.reshape(mask_windows, [-1, self.window_size * self.window_size])
        attn_mask = ops.expand_dims(mask_windows, axis=1) - ops.expand_dims(mask_windows, axis=2)
        attn_mask = ops.where(attn_mask != 0, -100.0, 0.0)
        self.attn_mask = keras.Variable(
            initializer=attn_mask, shape=attn_mask.shape, dtype=attn_mask.dtype, trainable=False
        )

    def call(self, x, training=False):
        height, width = self.num_patch
        channels = x.shape[-1]
        x_skip = x
        x = ops.reshape(self.norm1(x), (-1, height, width, channels))
        if self.shift_size > 0:
            x = ops.roll(x, shift=[-self.shift_size, -self.shift_size], axis=[1, 2])
        x_windows = window_partition(x, self.window_size)
        x_windows = ops.reshape(x_windows, (-1, self.window_size**2, channels))
        attn_windows = self.attn(x_windows, mask=self.attn_mask)
        attn_windows = ops.reshape(attn_windows, (-1, self.window_size, self.window_size, channels))
        x = window_reverse(attn_windows, self.window_size, height, width, channels)
        if self.shift_size > 0:
            x = ops.roll(x, shift=[self.shift_size, self.shift_size], axis=[1, 2])
        x = x_skip + self.drop_path(ops.reshape(x, (-1, height * width, channels)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PatchExtract(layers.Layer):
    def call(self, images):
        patches = ops.image.extract_patches(images, size=patch_size, padding="valid")
        return ops.reshape(patches, (-1, patches.shape[1] * patches.shape[2], patches.shape[3]))


class PatchEmbedding(layers.Layer):
    def __init__(self, num_patch, embed_dim, **kwargs):
        super().__init__(**kwargs)
        self.num_patch = num_patch
        self.proj = layers.Dense(embed_dim)
        self.pos_embed = layers.Embedding(input_dim=num_patch, output_dim=embed_dim)

    def call(self, patch):
        return self.proj(patch) + self.pos_embed(ops.arange(start=0, stop=self.num_patch))


class PatchMerging(layers.Layer):
    def __init__(self, num_patch, embed_dim):
        super().__init__()
        self.num_patch = num_patch
        self.linear_trans = layers.Dense(2 * embed_dim, use_bias=False)

    def call(self, x):
        height, width = self.num_patch
        channels = x.shape[-1]
        x = ops.reshape(x, (-1, height, width, channels))
        quarters = [x[:, row::2, column::2, :] for column in (0, 1) for row in (0, 1)]
        x = ops.concatenate(quarters, axis=-1)
        return self.linear_trans(ops.reshape(x, (-1, height * width // 4, 4 * channels)))


def build(input_shape, num_classes):  # changed
    inputs = layers.Input(input_shape)
    x = PatchExtract()(layers.Rescaling(1 / 255)(inputs))  # changed
    x = PatchEmbedding(num_patch_x * num_patch_y, embed_dim)(x)
    for shift in (0, shift_size):
        x = SwinTransformer(
            dim=embed_dim,
            num_patch=(num_patch_x, num_patch_y),
            num_heads=num_heads,
            window_size=window_size,
            shift_size=shift,
            num_mlp=num_mlp,
            qkv_bias=qkv_bias,
            dropout_rate=dropout_rate,
        )(x)
    x = PatchMerging((num_patch_x, num_patch_y), embed_dim=embed_dim)(x)
    x = layers.GlobalAveragePooling1D()(x)
    output = layers.Dense(num_classes, activation="softmax")(x)
    return keras.Model(inputs, output)  # changed
