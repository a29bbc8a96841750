"""Checkpoints of the TensorFlow Object Detection API fill the backbones that we have.

The tests write the checkpoints, with the names that the API and TF-Slim give to their variables.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from gangs import ALONE, QUICK, run_gang
from scenes import DETECTORS, DIGIT_SCENES

from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.storage.open_store import open_path

SIDE = 64
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
MOMENTS = ("gamma", "beta", "moving_mean", "moving_variance")
UNITS = {"ResNet50": (3, 4, 6, 3), "ResNet101": (3, 4, 23, 3), "ResNet152": (3, 8, 36, 3)}
REPEATS = (1, 2, 2, 3, 3, 4, 1)
"""The blocks of each stack of EfficientNet-B0."""
DEPTHS = {
    "EfficientNetB0": 1.0,
    "EfficientNetB1": 1.1,
    "EfficientNetB2": 1.2,
    "EfficientNetB3": 1.4,
    "EfficientNetB4": 1.8,
}
"""The factors of these numbers, rounded up: Tan and Le 2019."""

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def list_resnet(network: str):
    """The layers without and with bias or moments: name in the API of TF2, and in TF-Slim."""
    slim = f"resnet_v1_{network.removeprefix('ResNet')}"
    yield "conv1", f"{slim}/conv1"
    for block, count in enumerate(UNITS[network], start=1):
        for unit in range(1, count + 1):
            name, scope = f"conv{block + 1}_block{unit}", f"{slim}/block{block}/unit_{unit}"
            parts = ["shortcut"] if unit == 1 else []
            for part in [*parts, "conv1", "conv2", "conv3"]:
                number = 0 if part == "shortcut" else part[-1]
                yield f"{name}_{number}", f"{scope}/bottleneck_v1/{part}"


def list_mobilenet():
    """A layer's name in the API of TF2, that of its batch normalization, and the scope."""
    yield "Conv1", "bn_Conv1", "MobilenetV2/Conv"
    for block in range(17):
        name, scope = (f"block_{block}", f"_{block}") if block else ("expanded_conv", "")
        for part in ("expand", "depthwise", "project")[block == 0 :]:
            yield f"{name}_{part}", f"{name}_{part}_BN", f"MobilenetV2/expanded_conv{scope}/{part}"
    yield "Conv_1", "Conv_1_bn", "MobilenetV2/Conv_1"


def list_efficientnet(network: str):
    """A layer's name in the API, ours, and whether it has moments or weights, a bias, or both."""
    yield "stem_conv2d/kernel", "stem_conv/kernel"
    yield from ((f"stem_bn/{moment}", f"stem_bn/{moment}") for moment in MOMENTS)
    for stack, repeats in enumerate(REPEATS):
        count = math.ceil(repeats * DEPTHS[network])
        for block, letter in zip(range(count), "abcdefgh", strict=False):
            theirs, ours = f"stack_{stack}/block_{block}/", f"block{stack + 1}{letter}_"
            names = {
                "depthwise_conv2d/depthwise_kernel": "dwconv/kernel",
                "project_conv2d/kernel": "project_conv/kernel",
            }
            if stack:
                names["expand_conv2d/kernel"] = "expand_conv/kernel"
                names |= {f"expand_bn/{moment}": f"expand_bn/{moment}" for moment in MOMENTS}
            for part, kind in itertools.product(("reduce", "expand"), ("kernel", "bias")):
                names[f"se_{part}_conv2d/{kind}"] = f"se_{part}/{kind}"
            for moment in MOMENTS:
                names[f"depthwise_bn/{moment}"] = f"bn/{moment}"
                names[f"project_bn/{moment}"] = f"project_bn/{moment}"
            yield from ((theirs + their, ours + our) for their, our in names.items())
    yield "top_conv2d/kernel", "top_conv/kernel"
    yield from ((f"top_bn/{moment}", f"top_bn/{moment}") for moment in MOMENTS)


def list_names(network: str, is_slim: bool) -> dict[str, str]:
    """The variable's name in a checkpoint, by ours."""
    if network in DEPTHS:
        return {ours: theirs for theirs, ours in list_efficientnet(network)}
    if network == "MobileNetV2":
        layers = list(list_mobilenet())
    else:
        layers = [(f"{name}_conv", f"{name}_bn", slim) for name, slim in list_resnet(network)]
    names = {}
    for layer, normalization, scope in layers:
        depthwise = "depthwise_" * layer.endswith("depthwise")
        names[f"{layer}/kernel"] = (
            f"{scope}/{depthwise}weights" if is_slim else f"{layer}/{depthwise}kernel"
        )
        for moment in MOMENTS:
            theirs = f"{scope}/BatchNorm" if is_slim else normalization
            names[f"{normalization}/{moment}"] = f"{theirs}/{moment}"
    return names


def make_arrays(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Distinct random values. Those of normalizations are near 1, so that a network keeps them."""
    random = np.random.default_rng(7)
    return {
        name: random.normal(0, np.sqrt(2 / np.prod(shape[:3])), shape).astype(np.float32)
        if len(shape) > 1
        else random.uniform(0.5, 1.5, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_slim(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """A checkpoint of TF1, with an optimizer's slots, averages and the box predictor."""
    import tensorflow as tf

    tensors = {"BoxPredictor/weights": np.zeros([3], np.float32), "global_step": np.int64(3)}
    for number, (name, array) in enumerate(arrays.items()):
        stage = "Second" if "block4" in name else "First"
        scope = f"{stage}StageFeatureExtractor" if number % 2 else "FeatureExtractor"
        tensors[f"{scope}/{name}"] = array
        tensors[f"{scope}/{name}/Momentum"] = array + 1
        tensors[f"{scope}/{name}/ExponentialMovingAverage"] = array + 2
    prefix = folder / "model.ckpt"
    names, values = zip(*sorted(tensors.items()), strict=True)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(names),
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(value) for value in values],
    )
    (folder / "model.ckpt.meta").write_bytes(b"graph")
    return prefix


def write_tf2(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """A checkpoint of the API for TF2: layers by number, and the variables' names as attributes."""
    import tensorflow as tf

    backbone = tf.Module()
    by_layer = itertools.groupby(arrays, lambda name: name.rpartition("/")[0])
    for number, (_, names) in enumerate(by_layer):
        layer = tf.Module()
        for name in names:
            setattr(layer, name.rpartition("/")[2], tf.Variable(arrays[name], name=name))
        setattr(backbone, f"layer_with_weights-{number}", layer)
    model = tf.Module()
    model._feature_extractor = tf.Module()
    model._feature_extractor.classification_backbone = backbone
    model._box_predictor = tf.Variable([1.0], name="BoxPredictor/conv2d/kernel")
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(folder), 1)
    prefix = Path(manager.save(checkpoint_number=0))
    keys = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
    key = "model/_feature_extractor/classification_backbone/layer_with_weights-0/kernel"
    assert f"{key}/.ATTRIBUTES/VARIABLE_VALUE" in keys
    return prefix


def make_detector(network: str, **parameters):
    import keras

    from pipeline_ops.models.retinanet import build

    keras.utils.clear_session()
    options = {"backbone": network, "width": 8, "depth": 1, "normalization": "group"}
    return build((SIDE, SIDE, 3), 3, **options, **parameters)


def get_arrays(model) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in model.weights}


def make_narrow():
    return make_detector("MobileNetV2", backbone_parameters={"alpha": 0.35})


def load(place: Path, model):
    from pipeline_ops.training.warm_start import read_warm_start

    return read_warm_start(str(place), model, model.get_weights(), lambda: model)


def write(folder: Path, network: str, form: str, model) -> tuple[Path, dict[str, np.ndarray]]:
    """A checkpoint with random values for a model's backbone, and the values by our names."""
    names, own = list_names(network, form == "slim"), get_arrays(model)
    ours = make_arrays({name: own[name].shape for name in names})
    arrays = {names[name]: array for name, array in ours.items()}
    return (write_slim if form == "slim" else write_tf2)(folder, arrays), ours


@pytest.mark.models
@pytest.mark.parametrize(
    "network, form",
    [
        ("ResNet50", "tf2"),
        ("ResNet50", "slim"),
        ("ResNet101", "tf2"),
        ("ResNet101", "slim"),
        ("MobileNetV2", "tf2"),
        ("MobileNetV2", "slim"),
        *((network, "tf2") for network in DEPTHS),
    ],
)
def test_each_variable_of_a_backbone_gets_its_own_value(network, form, tmp_path):
    model = make_detector(network)
    prefix, expected = write(tmp_path, network, form, model)
    if network.startswith("ResNet"):
        kernel = expected["conv1_conv/kernel"]
        expected["conv1_conv/kernel"] = kernel[:, :, ::-1]  # ours takes blue, green, red
        biases = [name for name in get_arrays(model) if name.endswith("_conv/bias")]
        expected |= {name: np.zeros(get_arrays(model)[name].shape) for name in biases}
    if network in DEPTHS:  # ours normalizes the image itself
        expected |= {"normalization/mean": MEAN, "normalization/variance": np.square(DEVIATION)}
        expected["normalization/count"] = 0
    found = load(prefix, model)
    own = get_arrays(model)
    for (name, initial), array in zip(own.items(), found.weights, strict=True):
        if name in expected:
            assert np.allclose(array, expected.pop(name), rtol=1e-6), name
        else:
            assert name in found.left_out and (array == initial).all(), name
    assert not expected and not found.taken
    layers = {name.partition("_")[0] for name in found.left_out}
    assert layers == {"lateral", "level", "box", "class"}
    assert (load(tmp_path, model).weights[0] == found.weights[0]).all()  # by its folder


def apply_normalization(x, arrays, scope, epsilon):
    import tensorflow as tf

    gamma, beta, mean, variance = (arrays[f"{scope}/BatchNorm/{each}"] for each in MOMENTS)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon)


def run_slim_resnet(images, arrays):
    """ResNet-50 as TF-Slim computes it, but for the padding of the maximum: its strides are in the
    last unit of a block, and no convolution has a bias."""
    import tensorflow as tf

    def convolve(x, scope, stride):
        kernel = arrays[f"{scope}/weights"]
        pad = (kernel.shape[0] - 1) // 2
        x = tf.pad(x, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
        return apply_normalization(tf.nn.conv2d(x, kernel, stride, "VALID"), arrays, scope, 1e-5)

    slim = "resnet_v1_50"
    x = tf.nn.relu(convolve(images - [123.68, 116.779, 103.939], f"{slim}/conv1", 2))
    x = tf.nn.max_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")
    for block, count in enumerate(UNITS["ResNet50"], start=1):
        for unit in range(1, count + 1):
            scope = f"{slim}/block{block}/unit_{unit}/bottleneck_v1"
            stride = 2 if unit == count and block < 4 else 1
            short = convolve(x, f"{scope}/shortcut", 1) if unit == 1 else x
            y = tf.nn.relu(convolve(x, f"{scope}/conv1", 1))
            y = tf.nn.relu(convolve(y, f"{scope}/conv2", stride))
            x = tf.nn.relu(short[:, ::stride, ::stride] + convolve(y, f"{scope}/conv3", 1))
    return x


def run_slim_mobilenet(images, arrays):
    """MobileNetV2 as TF-Slim computes it."""
    import tensorflow as tf

    def convolve(x, scope, stride=1):
        scope = f"MobilenetV2/{scope}"
        kernel = arrays[f"{scope}/weights"]
        return apply_normalization(tf.nn.conv2d(x, kernel, stride, "SAME"), arrays, scope, 1e-3)

    x = tf.nn.relu6(convolve(images * (2 / 255) - 1, "Conv", 2))
    for block in range(17):
        scope = f"expanded_conv_{block}" if block else "expanded_conv"
        stride = 2 if block in (1, 3, 6, 13) else 1
        y = tf.nn.relu6(convolve(x, f"{scope}/expand")) if block else x
        kernel = arrays[f"MobilenetV2/{scope}/depthwise/depthwise_weights"]
        y = tf.nn.depthwise_conv2d(y, kernel, [1, stride, stride, 1], "SAME")
        y = apply_normalization(y, arrays, f"MobilenetV2/{scope}/depthwise", 1e-3)
        y = convolve(tf.nn.relu6(y), f"{scope}/project")
        x = x + y if y.shape == x.shape else y
    return tf.nn.relu6(convolve(x, "Conv_1"))


@pytest.mark.models
@pytest.mark.parametrize(
    "network, run", [("ResNet50", run_slim_resnet), ("MobileNetV2", run_slim_mobilenet)]
)
def test_a_backbone_computes_what_the_network_of_the_checkpoint_does(network, run, tmp_path):
    import keras

    from pipeline_ops.models.backbones import build

    keras.utils.clear_session()
    model = build((SIDE, SIDE, 3), 3, network)
    prefix, ours = write(tmp_path, network, "slim", model)
    model.set_weights(load(prefix, model).weights)
    images = np.random.default_rng(1).uniform(0, 255, (2, SIDE, SIDE, 3)).astype(np.float32)
    names = list_names(network, is_slim=True)
    expected = run(images, {names[name]: array for name, array in ours.items()}).numpy()
    pooled = keras.Model(model.input, model.get_layer("logits").input)
    found = pooled(images, training=False).numpy()
    assert expected.std() > 0.01
    difference = np.abs(found - expected.mean(axis=(1, 2))).max()
    assert difference < 1e-3 * np.abs(expected).max()


def test_the_checkpoint_of_another_network_is_refused_by_both_names(tmp_path):
    """Also where all variables of ours are in there, as those of ResNet-50 are in ResNet-101."""
    from pipeline_ops.training.zoo_checkpoints import match_backbone

    def match(own, stored, is_slim=False):
        required = dict.fromkeys(list_names(own, False), np.zeros(()))
        return match_backbone(required, [*list_names(stored, is_slim).values()], "ckpt-0")

    for own, stored in itertools.permutations(["ResNet50", "ResNet101", "MobileNetV2"], 2):
        for is_slim in (False, True):
            message = f"ckpt-0 holds {stored}, and the backbone of the model is {own}. "
            with pytest.raises(ConfigError, match=message):
                match(own, stored, is_slim)
    with pytest.raises(ConfigError, match="holds ResNet152, .* is ResNet101"):
        match("ResNet101", "ResNet152")
    with pytest.raises(ConfigError, match="holds EfficientNetB0, .* is MobileNetV2"):
        match("MobileNetV2", "EfficientNetB0")
    required = dict.fromkeys(list_names("ResNet50", False), np.zeros(()))
    for names, network in (
        (["stack_5/block_3/project_bn/beta", "stack_5/block_4/project_bn/beta"], "EfficientNetB1"),
        (["conv4_block6_preact_bn/gamma", "conv4_block6_3_conv/kernel"], "ResNet V2"),
        (["FeatureExtractor/MobilenetV1/Conv2d_0/weights"], "MobileNetV1"),
        (["FeatureExtractor/InceptionV2/Mixed_3b/weights"], "an unknown network"),
    ):
        with pytest.raises(ConfigError, match=f"holds {network}.*, .* is ResNet50"):
            match_backbone(required, names, "ckpt-0")


def test_a_saved_model_of_the_api_is_a_checkpoint_of_it(tmp_path):
    """Its names are those of our own SavedModels, too, whose ResNet takes blue, green, red."""
    import tensorflow as tf

    exported = tf.Module()
    exported._model = tf.Module()
    exported._model._feature_extractor = tf.Module()
    name = "conv4_block23_3_conv/kernel"
    exported._model._feature_extractor.kernel = tf.Variable([1.0], name=name)
    tf.saved_model.save(exported, str(tmp_path / "saved_model"))
    model = make_narrow()
    with pytest.raises(ConfigError, match="holds ResNet101, and the .* model is MobileNetV2"):
        load(tmp_path / "saved_model", model)


def test_a_model_without_such_a_backbone_is_refused(tmp_path):
    from pipeline_ops.models.digits_cnn import build

    prefix = write_slim(tmp_path, {"MobilenetV2/Conv/weights": np.zeros([1], np.float32)})
    with pytest.raises(ConfigError, match="model.ckpt holds MobileNetV2, and the .* is unknown"):
        load(prefix, build((16, 16, 1), 10))


def test_a_backbone_of_another_width_is_refused_by_its_shapes(tmp_path):
    prefix, _ = write(tmp_path, "MobileNetV2", "tf2", make_detector("MobileNetV2"))
    narrow = make_narrow()
    with pytest.raises(ConfigError, match="fits less than half .* Conv1/kernel .* has the shape"):
        load(prefix, narrow)


def test_the_last_convolution_of_a_narrow_mobilenet_stays_random(tmp_path):
    """The API narrows it, too, and `keras.applications` does not."""
    model = make_narrow()
    names, own = list_names("MobileNetV2", is_slim=False), get_arrays(model)
    shapes = {name: own[name].shape for name in names}
    theirs = {
        names[name]: (*shape[:-1], 448) if name.startswith("Conv_1") else shape
        for name, shape in shapes.items()
    }
    arrays = make_arrays(theirs)
    found = load(write_tf2(tmp_path, arrays), model)
    taken = dict(zip(own, found.weights, strict=True))
    left_out = [name for name in names if name in found.left_out]
    assert left_out == [name for name in names if name.startswith("Conv_1")]
    assert (taken["Conv_1/kernel"] == own["Conv_1/kernel"]).all()
    assert (taken["Conv1/kernel"] == arrays["Conv1/kernel"]).all()
    assert "% of the parameters besides the head: Conv1, bn_Conv1, " in found.taken


def test_a_damaged_checkpoint_is_named(tmp_path):
    model = make_narrow()
    prefix, _ = write(tmp_path, "MobileNetV2", "slim", model)
    (tmp_path / "model.ckpt.data-00000-of-00001").write_bytes(b"short")
    with pytest.raises(DataError, match="cannot read .*model.ckpt as weights"):
        load(prefix, model)


def test_a_plan_has_the_digest_of_the_checkpoint_that_a_path_names(tmp_path):
    from pipeline_ops.registry.weights import make_path_input

    arrays, folder = {"MobilenetV2/Conv/weights": np.ones([2], np.float32)}, tmp_path / "checkpoint"
    folder.mkdir()
    prefix = write_slim(folder, arrays)
    entry = make_path_input(prefix)
    assert entry.uri == str(prefix)
    assert entry == make_path_input(folder) == make_path_input(Path(f"{prefix}.index"))
    (folder / "model.ckpt.meta").write_bytes(b"another graph")
    assert entry == make_path_input(folder)
    with pytest.raises(ConfigError, match=f"has no saved_model.pb. Give {folder}/model.ckpt."):
        make_path_input(tmp_path)
    write_slim(folder, {name: array + 1 for name, array in arrays.items()})
    assert make_path_input(prefix).digest != entry.digest
    (folder / "model.ckpt-2.index").touch()
    with pytest.raises(ConfigError, match="several checkpoints, model.ckpt, model.ckpt-2. Name"):
        make_path_input(folder)


@pytest.mark.models
def test_a_gang_begins_with_the_backbone_of_a_checkpoint(scenes, make_job_in, host_pool, tmp_path):
    parameters = DETECTORS["retinanet"]  # MobileNetV2
    prefix, _ = write(tmp_path, "MobileNetV2", "slim", make_narrow())
    job = make_job_in(tmp_path, scenes, DIGIT_SCENES)(
        **QUICK,
        **ALONE,
        train__model="retinanet",
        train__model_parameters=parameters,
        train__warm_start=str(prefix),
    )
    run_gang(job, host_pool, steps_limit=1)
    events = ProgressReader(open_path(job.attempt.progress)).read_new()
    [message] = [event.message for event in events if event.phase == "warm start"]
    start = f"starts from the weights of {prefix}. Randomly initialized: lateral_5/kernel, "
    assert message.startswith(start) and "Conv1/" not in message and "class_last/bias" in message
