"""The names that the TensorFlow Object Detection API and TF-Slim give to our backbones' weights.

A checkpoint of the API for TF2 names a variable after its layer, in any scope, and the layers of
ResNet and MobileNetV2 are those of `keras.applications` (`object_detection/models/keras_models`).
Those of EfficientNet have names of the Model Garden. A checkpoint of TF1 has TF-Slim's scopes, such
as `FeatureExtractor/resnet_v1_50/block1/unit_1/bottleneck_v1/conv1/weights`.

A ResNet there takes red, green, blue and has no biases, and an EfficientNet there takes normalized
images. TF-Slim's ResNet has its strides in the last unit of a block and not in the first one of the
next, which gives the same numbers. Two differences stay in ResNet, which fine-tuning learns: its
maximum over pixels begins one pixel later there, and the epsilon of its normalization is 1e-5.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from pipeline_ops.errors import ConfigError
from pipeline_ops.models.backbones import DEVIATION, MEAN

_NETWORKS = {
    "ResNet V2": r"_preact_bn/|resnet_v2_",
    "ResNet152": r"conv4_block36_|resnet_v1_152/",
    "ResNet101": r"conv4_block23_|resnet_v1_101/",
    "ResNet50": r"conv4_block6_|resnet_v1_50/",
    "MobileNetV1": r"conv_pw_13/|MobilenetV1/",
    "MobileNetV2": r"block_16_project/|MobilenetV2/",
    "EfficientNetB5 or larger": r"stack_5/block_8/|block6i_",
    "EfficientNetB4": r"stack_5/block_7/|block6h_",
    "EfficientNetB3": r"stack_5/block_5/|block6f_",
    "EfficientNetB1 or B2": r"stack_5/block_4/|block6e_",
    "EfficientNetB0": r"stack_5/block_3/|block6d_",
}
"""A part of a variable's name that only this network has, or one before it. EfficientNetB1 and B2
differ in the shapes of their weights alone.
"""
_SLIM = {"ResNet50": "resnet_v1_50", "ResNet101": "resnet_v1_101", "MobileNetV2": "MobilenetV2"}
"""The scopes of TF-Slim's networks."""
_RESNET = re.compile(r"conv(\d)_(?:block(\d+)_(\d)_)?(?:conv|bn)")
_MOBILENET = re.compile(r"(?:block(_\d+)|expanded_conv)_(expand|depthwise|project)(?:_BN)?")
_MOBILENET_ENDS = {"Conv1": "Conv", "bn_Conv1": "Conv", "Conv_1": "Conv_1", "Conv_1_bn": "Conv_1"}
_EFFICIENTNET = re.compile(r"(?:stem|top)_(?:conv|bn)|block(\d)([a-z])_(\w+)")
_EFFICIENTNET_PARTS = {
    "expand_conv": "expand_conv2d",
    "dwconv": "depthwise_conv2d",
    "bn": "depthwise_bn",
    "se_reduce": "se_reduce_conv2d",
    "se_expand": "se_expand_conv2d",
    "project_conv": "project_conv2d",
}
_NORMALIZATION = re.compile(r"normalization(?:_\d+)?/(mean|variance|count)")
_IMAGENET = {"mean": MEAN, "variance": np.square(DEVIATION), "count": 0}


class Backbone(NamedTuple):
    """The source of each weight of a model: `stored` has names in the checkpoint by ours.

    `constants` are weights that only ours has. `outside` names weights not in the backbone.
    """

    stored: dict[str, str]
    constants: dict[str, np.ndarray]
    outside: list[str]


def match_backbone(
    required: Mapping[str, np.ndarray], stored: Collection[str], location: str
) -> Backbone:
    """Finds the weights of a model's backbone among the names of a checkpoint.

    A name that is not there, or that more than one name ends in, is in none of the results. Raises
    ConfigError if the checkpoint has another network.
    """
    network, own = _find_network(stored), _find_network(required)
    if network != own or not own:
        found = network or f"an unknown network with {min(stored, default='no variables')}"
        raise ConfigError(
            f"train.warm_start: {location} holds {found}, and the backbone of the model is "
            f"{own or 'unknown'}. Checkpoints of the Object Detection API fill ResNet50, "
            "ResNet101, MobileNetV2 and EfficientNetB0 to B4. Choose the same one in the model, or "
            "other weights."
        )
    backbone = Backbone({}, {}, [])
    for name, like in required.items():
        layer, variable = name.split("/")[-2:]
        constant = _NORMALIZATION.fullmatch(f"{layer}/{variable}")
        if own.startswith("EfficientNet") and constant:
            backbone.constants[name] = np.asarray(_IMAGENET[constant[1]], like.dtype)
        elif not (endings := _list_names(own, layer, variable)):
            backbone.outside.append(name)
        elif variable == "bias" and own in ("ResNet50", "ResNet101"):
            backbone.constants[name] = np.zeros_like(like)
        else:
            matches = [each for each in stored if f"/{each}".endswith(endings)]
            if len(matches) == 1:
                backbone.stored[name] = matches[0]
    return backbone


def convert_weight(name: str, array: np.ndarray) -> np.ndarray:
    """Returns a weight as our network takes it: a ResNet takes blue, green, red."""
    return array[:, :, ::-1] if name.endswith("conv1_conv/kernel") else array


def _find_network(names: Iterable[str]) -> str:
    text = "\n".join(names)
    return next((network for network, mark in _NETWORKS.items() if re.search(mark, text)), "")


def _list_names(network: str, layer: str, variable: str) -> tuple[str, ...]:
    """Returns how the name of a variable may end. It is empty outside of a backbone."""
    is_depthwise = variable == "kernel" and layer.endswith(("depthwise", "dwconv"))
    kernel = "depthwise_" * is_depthwise + variable
    slim = f"BatchNorm/{variable}"
    if variable == "kernel":
        slim = "depthwise_weights" if is_depthwise else "weights"
    if found := _RESNET.fullmatch(layer):
        stage, unit, part = found.groups()
        scope = "conv1"
        if unit:
            part = "shortcut" if part == "0" else f"conv{part}"
            scope = f"block{int(stage) - 1}/unit_{unit}/bottleneck_v1/{part}"
    elif found := _MOBILENET.fullmatch(layer):
        scope = f"expanded_conv{found[1] or ''}/{found[2]}"
    elif layer in _MOBILENET_ENDS:
        scope = _MOBILENET_ENDS[layer]
    elif found := _EFFICIENTNET.fullmatch(layer):
        stage, block, part = found.groups()
        if not stage:
            return (f"/{layer.replace('conv', 'conv2d')}/{variable}",)
        part = _EFFICIENTNET_PARTS.get(part, part)
        return (f"/stack_{int(stage) - 1}/block_{ord(block) - ord('a')}/{part}/{kernel}",)
    else:
        return ()
    return f"/{layer}/{kernel}", f"/{_SLIM.get(network)}/{scope}/{slim}"
