"""The networks of `keras.applications`, from scratch, with a new head of one dense layer.

`train.warm_start` loads the weights of a backbone. Nothing is downloaded for any name.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import Input, KerasTensor, Model, layers

_PREPROCESS_TF = ("InceptionV3", "MobileNetV2", "ResNet50V2", "ResNet101V2", "Xception")
"""Networks that take values scaled to -1..1."""
_PREPROCESS_CAFFE = ("ResNet50", "ResNet101")
"""Networks that take blue, green, red, with the mean colour of ImageNet subtracted."""
_PREPROCESS_TORCH = ("DenseNet121",)
"""Networks that take values scaled to 0..1, then normalised by ImageNet's mean and deviation."""
# The other networks contain their preprocessing.

_MEAN_CAFFE = (103.939, 116.779, 123.68)
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The colours of ImageNet: red, green, blue."""


def build(
    image_shape: tuple[int, int, int],
    num_classes: int,
    name: str,
    dropout: float = 0.0,
    **parameters: Any,
) -> Model:
    """Builds a network by the name of its function in `keras.applications`.

    The images have one or three channels. The dropout is before the head. `parameters` are
    arguments of that function, for example `alpha`.
    """
    images = Input(image_shape, name="images")
    backbone = getattr(keras.applications, name)(
        include_top=False,
        weights=None,
        input_shape=(*image_shape[:2], 3),
        pooling="avg",
        **parameters,
    )
    x = backbone(preprocess_images(name, images))
    if dropout:
        x = layers.Dropout(dropout, name="dropout")(x)
    return Model(
        images, layers.Dense(num_classes, dtype="float32", name="logits")(x), name=name.lower()
    )


def preprocess_images(name: str, images: KerasTensor) -> KerasTensor:
    """Returns images, 0 to 255, in the form that this network was trained on: three channels."""
    is_color = images.shape[-1] == 3
    x = images if is_color else layers.Concatenate(name="three_channels")([images] * 3)
    if name in _PREPROCESS_TF:
        return layers.Rescaling(1 / 127.5, -1)(x)
    if name in _PREPROCESS_TORCH:
        return layers.Normalization(mean=MEAN, variance=[deviation**2 for deviation in DEVIATION])(
            layers.Rescaling(1 / 255)(x)
        )
    if name in _PREPROCESS_CAFFE:
        return layers.Normalization(mean=_MEAN_CAFFE, variance=(1.0, 1.0, 1.0))(
            layers.Lambda(_reversed_channels, name="bgr")(x)
        )
    return x


@keras.saving.register_keras_serializable("trainyard")  # type: ignore[untyped-decorator]
def _reversed_channels(images: Any) -> Any:
    return images[..., ::-1]
