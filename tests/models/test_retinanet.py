"""RetinaNet: its shape, its weights and its training."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline_ops.errors import ConfigError

TINY = {
    "backbone": "MobileNetV2",
    "backbone_parameters": {"alpha": 0.35},
    "width": 32,
    "depth": 2,
    "normalization": "group",
    "frozen_batch_normalization": True,
    "anchor_scale": 2.0,
}


def build(classes: int = 10, size: int = 128, **options):
    from pipeline_ops.models import retinanet

    return retinanet.build((size, size, 1), classes, **TINY | options)


@pytest.mark.models
@pytest.mark.parametrize(
    "name",
    [
        *(f"EfficientNetB{number}" for number in range(5)),
        "EfficientNetV2B0",
        "EfficientNetV2S",
        "MobileNetV2",
        "ResNet50",
        "ResNet101",
    ],
)
def test_the_endpoints_of_a_backbone_have_8_16_and_32_pixels_to_a_cell(name):
    from pipeline_ops.models.retinanet import ENDPOINTS, _build_backbone

    network = _build_backbone(name, (64, 64), {})
    assert [endpoint.shape[1:3] for endpoint in network.outputs] == [(8, 8), (4, 4), (2, 2)]
    # The last layer with this stride has the richest features.
    later = {
        tuple(layer.output.shape[1:3])
        for layer in network.layers[
            network.layers.index(network.get_layer(ENDPOINTS[name][1])) + 1 :
        ]
    }
    assert (8, 8) not in later


def test_the_network_of_the_paper_has_its_size_and_says_one_percent_for_everything():
    from pipeline_ops.models import retinanet

    model = retinanet.build((64, 64, 3), 80, frozen_batch_normalization=True)
    assert 37e6 < model.count_params() < 39e6  # 37.7 million, with ResNet-50 and 80 classes
    anchors = len(retinanet.make_head((64, 64, 3), 80).anchors)
    assert {name: output.shape for name, output in model.output.items()} == {
        "deltas": (None, anchors, 4),
        "logits": (None, anchors, 80),
    }
    assert 1 / (1 + np.exp(-model.get_layer("class_last").bias.numpy())) == pytest.approx(0.01)
    assert np.std(model.get_layer("class_last").kernel.numpy()) == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("size", [128, 160])
def test_efficientdet_has_its_parts_and_levels(size):
    """A BiFPN of three rounds with separable convolutions, also where a side halves unevenly."""
    from pipeline_ops.models import retinanet

    parts = {"width": 64, "depth": 3, "separable": True, "bifpn_rounds": 3, "activation": "silu"}
    model = retinanet.build((size, size, 3), 90, backbone="EfficientNetB0", **parts)
    anchors = retinanet.make_head((size, size, 3), 90).anchors
    assert {name: output.shape for name, output in model.output.items()} == {
        "deltas": (None, len(anchors), 4),
        "logits": (None, len(anchors), 90),
    }
    sums = [layer for layer in model.layers if "_sum" in layer.name]
    assert len(sums) == 3 * 8 and sum(layer.count_params() for layer in sums) == 3 * (5 * 2 + 3 * 3)
    # EfficientDet-D0 has 3.9 million parameters, without the last convolution of its backbone.
    assert (
        3.9e6
        < model.count_params()
        - model.get_layer("efficientnetb0").get_layer("top_conv").count_params()
        < 4.1e6
    )


def test_a_light_head_is_an_eighth_of_a_full_one():
    """The head of FPNLite, with 128 channels and four layers."""

    def count(model):
        parts = ("box_", "class_")
        return sum(layer.count_params() for layer in model.layers if layer.name.startswith(parts))

    full = count(build(width=128, depth=4))
    light = count(build(width=128, depth=4, separable=True))
    assert 8 < full / light < 9


def test_levels_lie_in_the_order_of_the_anchors():
    """A change in the image changes the outputs of the anchors at that position."""
    import keras

    from pipeline_ops.models import retinanet

    keras.utils.set_random_seed(1)
    model, anchors = build(), retinanet.make_head((128, 128, 1), 10, **TINY).anchors
    image = np.zeros((1, 128, 128, 1), np.float32)
    image[:, 96:112, 16:32] = 255
    moved = np.abs(
        model(image, training=False)["deltas"]
        - model(np.zeros_like(image), training=False)["deltas"]
    ).sum(-1)[0]
    first_level = moved[: 16 * 16 * 9]
    y, x = (anchors[np.argmax(first_level)][:2] + anchors[np.argmax(first_level)][2:]) / 2
    assert 80 < y < 128 and 0 < x < 48


def test_frozen_statistics_are_not_trained_and_all_else_is():
    frozen, free = build(), build(frozen_batch_normalization=False)
    paths = {variable.path for variable in free.trainable_variables} - {
        variable.path for variable in frozen.trainable_variables
    }
    assert paths and all(
        path.rpartition("/")[2] in ("gamma", "beta") and "bn" in path.lower() for path in paths
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_file_of_keras_applications_fills_the_backbone(tmp_path):
    import h5py
    import keras
    from keras.src.legacy.saving import legacy_h5_format

    from pipeline_ops.models import retinanet
    from pipeline_ops.training.warm_start import read_warm_start

    def make():
        return retinanet.build((64, 64, 3), 5, width=16, depth=1)

    source = keras.applications.ResNet50(include_top=False, weights=None, input_shape=(64, 64, 3))
    with h5py.File(tmp_path / "no_top.h5", "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, source)
    model = make()
    warm_start = read_warm_start(str(tmp_path / "no_top.h5"), model, model.get_weights(), make)
    by_name = {
        variable.path.rpartition("resnet50/")[2]: value
        for variable, value in zip(model.weights, warm_start.weights, strict=True)
    }
    for variable in source.weights:
        assert np.array_equal(
            by_name[variable.path.rpartition("resnet50/")[2]], variable.numpy()
        ), variable.path
    assert len(warm_start.left_out) == len(model.weights) - len(source.weights)


def test_a_detector_for_other_classes_keeps_all_but_the_last_layer(tmp_path):
    from pipeline_ops.training.warm_start import read_warm_start
    from pipeline_ops.training.weight_files import write_arrays

    source, model = build(classes=7), build(classes=10)
    write_arrays(tmp_path / "weights.npz", source.get_weights())
    warm_start = read_warm_start(str(tmp_path / "weights.npz"), model, model.get_weights(), build)
    assert warm_start.left_out == ("class_last/kernel", "class_last/bias")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"size": 100},
            "must be multiples of 32, got 100x100. Set them in preprocess.stages, with resize",
        ),
        (
            {"backbone": "ResNet5"},
            "there is no backbone 'ResNet5'; the nearest valid name is 'ResNet50'",
        ),
        ({"width": 12}, "width must be a multiple of 8, got 12"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"normalization": "batch"}, "normalization must be none or group, got batch"),
        ({"batch_normalization_momentum": 1.0}, "must be from 0 to below 1, or null, got 1.0"),
    ],
)
def test_what_can_not_be_built_is_refused(options, problem):
    with pytest.raises(ConfigError, match=problem):
        build(**options)


@pytest.mark.models
def test_the_statistics_of_a_backbone_settle_as_fast_as_its_momentum_says():
    """Inference takes them. Those of MobileNetV2 need thousands of steps with Keras's momentum."""
    images = np.random.default_rng(0).integers(0, 256, (4, 64, 64, 1)).astype(np.float32)
    rests = {}
    for momentum in (None, 0.5):
        options = {"frozen_batch_normalization": False, "batch_normalization_momentum": momentum}
        model = build(size=64, **options)
        [network] = [each for each in model.layers if "mobilenet" in each.name]
        layer = network.get_layer("bn_Conv1")
        means = []
        for _ in range(21):
            model(images, training=True)
            means.append(layer.moving_mean.numpy())
        # A settled mean is that of the batch, which is always the same.
        rests[momentum] = np.abs(means[-1] - means[-2]).max() / np.abs(means[0]).max()
    assert rests[0.5] < 1e-5 < 0.9 < rests[None]


@pytest.mark.models
def test_it_learns_a_few_scenes_by_heart():
    import keras
    import tensorflow as tf
    from scenes import scene_example

    from pipeline_ops.models.boxes import Boxes, compute_pairwise_ious
    from pipeline_ops.models.retinanet import make_head

    keras.utils.set_random_seed(1)
    model, head = build(), make_head((128, 128, 1), 10, **TINY)
    examples = [scene_example("train", number) for number in range(4)]
    images = tf.constant(np.stack([example.image for example in examples]), tf.float32)
    corners = tf.ragged.constant(
        [[[b.ymin, b.xmin, b.ymax, b.xmax] for b in example.boxes] for example in examples],
        ragged_rank=1,
    )
    classes = tf.ragged.constant(
        [[int(b.label) for b in example.boxes] for example in examples]
    ).to_tensor(-1)
    labels = Boxes(
        tf.cast(corners.to_tensor(), tf.float32) / 128, classes, tf.zeros_like(classes, tf.bool)
    )
    optimizer = keras.optimizers.Adam(2e-3)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            sums = head.compute_sums(model(images, training=True), labels)
            loss = sums[0] / sums[-1]
        optimizer.apply_gradients(
            zip(
                tape.gradient(loss, [v.value for v in model.trainable_variables]),
                model.trainable_variables,
                strict=True,
            )
        )
        return loss

    losses = [float(step()) for _ in range(140)]
    assert losses[-1] < 0.05 < 1 < losses[0]
    found = head.detect(model(images, training=False))
    overlaps = compute_pairwise_ious(labels.corners, found.boxes).numpy()
    for image, label in zip(*np.nonzero(classes.numpy() >= 0), strict=True):
        is_right = (found.classes[image].numpy() == classes.numpy()[image, label]) & (
            found.scores[image].numpy() > 0.5
        )
        assert overlaps[image, label][is_right].max(initial=0) > 0.7
