"""Initial weights: read from every kind of source, matched by name and shape, or rejected with the
first name that does not match."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import h5py
import little_memory
import numpy as np
import pytest
from gangs import ALONE, QUICK, read_state, run_gang

from pipeline_ops.contract.progress import ProgressReader
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError, DataError, MachineError
from pipeline_ops.raw_data.limits import TooLarge
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.training.weight_files import write_arrays

NAMES = ["net/hidden/kernel", "net/hidden/bias", "net/logits/kernel", "net/logits/bias"]


def arrays(classes: int = 3, units: int = 4, fill: float = 1.0) -> list[np.ndarray]:
    return [
        np.full(shape, fill, np.float32)
        for shape in ((5, units), (units,), (units, classes), (classes,))
    ]


def test_weights_are_taken_by_name_in_whatever_order():
    from pipeline_ops.training.warm_start import match_weights

    source = [
        (name, array + number)
        for number, (name, array) in enumerate(zip(NAMES, arrays(), strict=True))
    ]
    fitted = match_weights(source[::-1], NAMES, arrays(fill=0), "there")
    assert [float(array.flat[0]) for array in fitted.weights] == [1, 2, 3, 4]
    assert not fitted.left_out


def test_weights_of_other_names_are_taken_in_their_order():
    from pipeline_ops.training.warm_start import match_weights

    assert all(
        (array == 1).all()
        for array in match_weights(
            [("", array) for array in arrays()], NAMES, arrays(fill=0), "there"
        ).weights
    )


def test_a_head_for_another_number_of_classes_begins_anew():
    from pipeline_ops.training.warm_start import match_weights

    fitted = match_weights(
        [("", array) for array in arrays(classes=7)], NAMES, arrays(fill=0), "there"
    )
    assert fitted.left_out == ("net/logits/kernel", "net/logits/bias")
    assert [float(array.flat[0]) for array in fitted.weights] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    "source, problem",
    [
        (
            arrays(units=6),
            (
                r"there fits less than half of the model, 0% of the parameters besides the head: "
                r"no layer. It does not fit net/hidden. The first weight, net/hidden/kernel of "
                r"the shape \(5, 4\), has the shape \(5, 6\)"
            ),
        ),
        (
            arrays()[:3],
            r"there has 3 weights and the model 4\. None has the name net/hidden/kernel",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_the_first_name(source, problem):
    from pipeline_ops.training.warm_start import match_weights

    with pytest.raises(ConfigError, match=f"train.warm_start: {problem}"):
        match_weights([("", array) for array in source], NAMES, arrays(fill=0), "there")


def make_deep(prefix: str, sizes: tuple[int, ...]) -> list[tuple[str, np.ndarray]]:
    return [(f"{prefix}{n}/kernel", np.full((size,), n + 1, float)) for n, size in enumerate(sizes)]


def test_a_part_is_taken_if_it_has_half_of_the_parameters_besides_the_head():
    from pipeline_ops.training.warm_start import match_weights

    model = make_deep("net/layer", (50, 30, 20, 1000))  # the last one is the head
    names, own = [name for name, _ in model], [array * 0 for _, array in model]
    fitted = match_weights([*model[:1], *make_deep("other", (30,))], names, own, "there")
    assert fitted.left_out == tuple(names[1:])
    assert fitted.taken == "50% of the parameters besides the head: net/layer0"
    assert [array.max() for array in fitted.weights] == [1, 0, 0, 0]
    with pytest.raises(ConfigError) as error:
        match_weights(model[1:2], names, own, "there")
    assert str(error.value).startswith(
        "train.warm_start: there fits less than half of the model, 30% of the parameters besides "
        "the head: net/layer1. It does not fit net/layer0, net/layer2. The first weight, "
        "net/layer0/kernel of the shape (50,), is not there. Choose weights of the same model"
    )


def test_a_long_list_of_layers_is_cut():
    from pipeline_ops.training.warm_start import match_weights

    model = make_deep("layer", (1,) * 40)
    names, own = [name for name, _ in model], [array * 0 for _, array in model]
    taken = match_weights(model[:30], names, own, "there").taken
    assert taken.endswith(
        "layer0, layer1, layer2, layer3, layer4, layer5, layer6, layer7 and 22 more layers"
    )


def make_wider_end(extra: int):
    """Makes a network of which only the layer before the head depends on `extra`."""
    import keras

    keras.utils.clear_session()
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(32, name="first"),
            keras.layers.BatchNormalization(name="normal"),
            keras.layers.Dense(8 + extra, name="second"),
            keras.layers.Dense(3, name="logits"),
        ]
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:You are saving")
@pytest.mark.parametrize("kind", ["saved_model", "npz", "keras_file", "hdf5", "old_hdf5"])
def test_a_part_of_every_kind_of_place_is_taken(kind, tmp_path):
    from pipeline_ops.training.warm_start import read_warm_start

    write = {"saved_model": variables, "npz": npz, "keras_file": keras_file, "hdf5": hdf5}
    source = make_wider_end(0)
    place = write.get(kind, old_hdf5)(source, tmp_path)
    model = make_wider_end(1)
    started = read_warm_start(str(place), model, model.get_weights(), lambda: make_wider_end(1))
    whole = {
        f"{layer}/{name}"
        for layer, name in (
            ("second", "kernel"),
            ("second", "bias"),
            ("logits", "kernel"),
            ("logits", "bias"),
        )
    }
    assert {name.removeprefix("sequential/") for name in started.left_out} == whole
    assert "first, " in started.taken.replace("sequential/", "")
    for new, old, name in zip(started.weights, source.get_weights(), model.weights, strict=True):
        assert name.path in started.left_out or np.array_equal(new, old), name.path
    big = make_wider_end(100)
    with pytest.raises(ConfigError, match="fits less than half of the model"):
        read_warm_start(str(place), big, big.get_weights(), lambda: make_wider_end(100))


def old_hdf5(model, folder):
    model.save(folder / "model.h5")
    return folder / "model.h5"


def net(classes: int = 3, units: int = 4):
    from pipeline_ops.models.dense import build

    return build((4, 4, 1), classes, units)


def saved_model(model, folder):
    import tensorflow as tf

    from pipeline_ops.served.model import ServedClassifier

    served = ServedClassifier(model, (4, 4, 1))
    tf.saved_model.save(
        served, str(folder / "saved"), signatures={"serving_default": served.serving_default}
    )
    return folder / "saved"


def npz(model, folder):
    from pipeline_ops.training.weight_files import write_arrays

    write_arrays(folder / "weights.npz", model.get_weights())
    return folder / "weights.npz"


def keras_file(model, folder):
    model.save(folder / "model.keras")
    return folder / "model.keras"


def hdf5(model, folder):
    model.save_weights(folder / "model.weights.h5")
    return folder / "model.weights.h5"


def saved_model_of_keras(model, folder):
    model.export(folder / "exported", verbose=False)
    return folder / "exported"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:You are saving")
@pytest.mark.parametrize("write", [saved_model, npz, keras_file, hdf5])
def test_every_kind_of_place_is_read(write, tmp_path):
    from pipeline_ops.training.warm_start import read_warm_start

    source, model = net(), net()
    place = write(source, tmp_path)
    warm_start = read_warm_start(str(place), model, model.get_weights(), net)
    assert all(
        (a == b).all() for a, b in zip(warm_start.weights, source.get_weights(), strict=True)
    )
    assert not warm_start.left_out
    other = net(classes=5)
    warm_start = read_warm_start(str(place), other, other.get_weights(), lambda: net(classes=5))
    assert [name.partition("/")[2] for name in warm_start.left_out] == [
        "logits/kernel",
        "logits/bias",
    ]
    assert (warm_start.weights[0] == source.get_weights()[0]).all()
    wider = net(units=6)
    with pytest.raises(ConfigError, match="train.warm_start: "):
        read_warm_start(str(place), wider, wider.get_weights(), lambda: net(units=6))


def make_digits_cnn(classes: int):
    from pipeline_ops.models.digits_cnn import build

    return build((16, 16, 1), classes)


def make_mobile_net(classes: int):
    from pipeline_ops.models.backbones import build

    return build((32, 32, 1), classes, "MobileNetV2", alpha=0.35)


def make_center_detector(classes: int):
    from pipeline_ops.models.center_detector import build

    return build((32, 32, 1), classes, width=8)


def make_retinanet(classes: int):
    from pipeline_ops.models.retinanet import build

    return build(
        (64, 64, 3), classes, "MobileNetV2", backbone_parameters={"alpha": 0.35}, width=8, depth=1
    )


def variables(model, folder):
    import tensorflow as tf

    module = tf.Module()
    module.model = model
    tf.saved_model.save(module, str(folder / "saved"))
    return folder / "saved"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:You are saving")
@pytest.mark.parametrize(
    ("make", "write"),
    [
        *itertools.product(
            (make_digits_cnn, make_center_detector), (npz, hdf5, keras_file, variables)
        ),
        pytest.param(make_mobile_net, hdf5, marks=pytest.mark.models),
        pytest.param(make_retinanet, hdf5, marks=pytest.mark.models),
        pytest.param(make_retinanet, variables, marks=pytest.mark.models),
    ],
)
def test_a_model_for_other_classes_takes_all_but_the_class_outputs(make, write, tmp_path):
    import keras

    from pipeline_ops.training.warm_start import read_warm_start

    def make_fresh(classes: int = 6):
        keras.utils.clear_session()  # Keras counts the layers of each process for their names
        return make(classes)

    source = make_fresh(classes=3)
    place, model = write(source, tmp_path), make_fresh()
    warm_start = read_warm_start(str(place), model, model.get_weights(), make_fresh)
    pairs = [*zip(model.weights, source.weights, strict=True)]
    class_outputs = tuple(new.path for new, old in pairs if new.shape != old.shape)
    assert warm_start.left_out == class_outputs and len(class_outputs) == 2
    for array, (new, old) in zip(warm_start.weights, pairs, strict=True):
        assert new.path in class_outputs or np.array_equal(array, old.numpy()), new.path


@pytest.mark.parametrize("include_top", [False, True])
@pytest.mark.training
def test_the_files_of_keras_applications_fill_the_backbone(tmp_path, include_top):
    import h5py
    import keras
    from keras.src.legacy.saving import legacy_h5_format

    from pipeline_ops.models.backbones import build
    from pipeline_ops.training.warm_start import read_warm_start

    def mobile():
        return build((32, 32, 1), 3, "MobileNetV2", alpha=0.35)

    source = keras.applications.MobileNetV2(
        include_top=include_top, weights=None, input_shape=(32, 32, 3), pooling="avg", alpha=0.35
    )
    with h5py.File(tmp_path / "no_top.h5", "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, source)
    model = mobile()
    warm_start = read_warm_start(str(tmp_path / "no_top.h5"), model, model.get_weights(), mobile)
    assert warm_start.left_out == ("logits/kernel", "logits/bias") and not warm_start.taken
    body = source.get_weights()[: len(warm_start.weights) - 2]
    assert all((a == b).all() for a, b in zip(warm_start.weights[:-2], body, strict=True))
    larger = build((32, 32, 1), 3, "MobileNetV2", alpha=0.75)
    with pytest.raises(ConfigError, match="fits less than half of the model"):
        read_warm_start(
            str(tmp_path / "no_top.h5"),
            larger,
            larger.get_weights(),
            lambda: build((32, 32, 1), 3, "MobileNetV2", alpha=0.75),
        )


@pytest.mark.models
@pytest.mark.parametrize(
    "name",
    [
        "ConvNeXtTiny",
        "DenseNet121",
        "EfficientNetB0",
        "EfficientNetV2B0",
        "InceptionV3",
        "MobileNetV3Small",
        "ResNet50V2",
        "Xception",
    ],
)
def test_a_file_with_a_top_fills_the_backbone_of_each_family(name, tmp_path):
    import h5py
    import keras
    from keras.src.legacy.saving import legacy_h5_format

    from pipeline_ops.models.backbones import build
    from pipeline_ops.training.warm_start import read_warm_start

    source = getattr(keras.applications, name)(weights=None, input_shape=(96, 96, 3))
    with h5py.File(tmp_path / "top.h5", "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, source)
    model = build((96, 96, 3), 3, name)
    warm_start = read_warm_start(
        str(tmp_path / "top.h5"), model, model.get_weights(), lambda: build((96, 96, 3), 3, name)
    )
    assert warm_start.left_out == ("logits/kernel", "logits/bias") and not warm_start.taken
    expected = source.get_weights()[: len(warm_start.weights) - 2]
    assert all(np.array_equal(*pair) for pair in zip(warm_start.weights, expected, strict=False))


def poisoned(folder, written):
    """A SavedModel with the weights of `net`, whose initializer writes a file when it is loaded."""
    import tensorflow as tf

    from pipeline_ops.served.model import ServedClassifier

    class Writing(tf.lookup.KeyValueTensorInitializer):
        def initialize(self, table):
            with tf.control_dependencies([tf.io.write_file(str(written), "owned")]):
                return super().initialize(table)

    model = net()
    served = ServedClassifier(model, (4, 4, 1))
    served.table = tf.lookup.StaticHashTable(Writing(["a"], [1]), 0)
    tf.saved_model.save(served, str(folder), signatures={"serving_default": served.serving_default})
    written.unlink(missing_ok=True)
    return model


def test_the_graph_of_a_saved_model_is_not_run(tmp_path):
    """F2: an initializer with WriteFile wrote a file before anything was trained."""
    import tensorflow as tf

    from pipeline_ops.training.warm_start import read_warm_start

    written, place = tmp_path / "written", tmp_path / "poisoned"
    source, model = poisoned(place, written), net()
    warm_start = read_warm_start(str(place), model, model.get_weights(), net)
    assert all(
        (a == b).all() for a, b in zip(warm_start.weights, source.get_weights(), strict=True)
    )
    assert not written.exists()
    tf.saved_model.load(str(place))
    assert written.exists()  # shows that the assertion above can fail


def test_a_gang_begins_with_a_part_of_a_file_and_says_which_one(make_job, host_pool, tmp_path):
    import keras

    from pipeline_ops.models.digits_cnn import build

    keras.utils.clear_session()
    model = build((16, 16, 1), 10)
    place, arrays = npz(model, tmp_path), model.get_weights()
    arrays[0] = arrays[0][..., :1]  # the first weight does not fit
    write_arrays(place, arrays)
    sha256 = hashlib.sha256(place.read_bytes()).hexdigest()
    start = {"path": str(place), "sha256": sha256}
    job = make_job("part", **QUICK, **ALONE, train__warm_start=start)
    run_gang(job, host_pool, steps_limit=1)
    [warning] = read_state(job).warnings
    assert warning.startswith(f"starts from the weights of {place}, with ")
    assert "% of the parameters besides the head: " in warning
    assert warning.endswith(f". Randomly initialized: {model.weights[0].path}")
    events = ProgressReader(open_path(job.attempt.progress)).read_new()
    assert [event.message for event in events if event.phase == "warm start"] == [warning]


def test_a_saved_model_of_other_weights_is_refused_by_name(tmp_path):
    from pipeline_ops.training.warm_start import read_warm_start

    place, other = saved_model(net(), tmp_path), backbone()
    with pytest.raises(ConfigError, match="The first weight, Conv1/kernel .* is not there"):
        read_warm_start(str(place), other, other.get_weights(), backbone)


@pytest.mark.models
def test_the_weights_of_a_branched_model_come_back_under_their_own_names(tmp_path):
    """The order of variables in a checkpoint is not that of the model's weights."""
    import tensorflow as tf

    from pipeline_ops.served.model import ServedClassifier
    from pipeline_ops.training.warm_start import read_warm_start

    source, model = backbone(), backbone()
    served = ServedClassifier(source, (32, 32, 1))
    tf.saved_model.save(
        served, str(tmp_path / "saved"), signatures={"serving_default": served.serving_default}
    )
    warm_start = read_warm_start(str(tmp_path / "saved"), model, model.get_weights(), backbone)
    assert all(
        (a == b).all() for a, b in zip(warm_start.weights, source.get_weights(), strict=True)
    )


def backbone():
    from pipeline_ops.models.backbones import build

    return build((32, 32, 1), 3, "MobileNetV2", alpha=0.35)


@pytest.mark.parametrize("damage", ["variables.index", "variables.data-00000-of-00001"])
def test_a_damaged_saved_model_is_named(tmp_path, damage):
    from pipeline_ops.training.warm_start import read_warm_start

    place = saved_model(net(), tmp_path)
    (place / "variables" / damage).write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="cannot read .*saved as weights for train.warm_start"):
        read_warm_start(str(place), net(), net().get_weights(), net)


def test_a_file_that_is_none_is_named(tmp_path):
    from pipeline_ops.training.warm_start import read_warm_start

    (tmp_path / "weights.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(
        DataError, match=r"cannot read .*weights.npz as weights for train.warm_start"
    ):
        read_warm_start(str(tmp_path / "weights.npz"), net(), net().get_weights(), net)


def write_zip(file: Path, name: str, content: bytes, **options) -> Path:
    with zipfile.ZipFile(file, "w", **options) as archive:
        archive.writestr(f"{name}", content)
    return file


def make_array_file(shape: tuple[int, ...], content: bytes = b"") -> bytes:
    """An .npy file whose header says a shape of float32, whatever content it has."""
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + content


def read_start(file: Path):
    from pipeline_ops.training.warm_start import read_warm_start

    return read_warm_start(str(file), net(), net().get_weights(), net)


def test_an_npz_that_declares_terabytes_is_named_and_no_array_is_made(tmp_path):
    """M11: 194 bytes were a MemoryError without a name, and three tries."""
    file = write_zip(tmp_path / "weights.npz", "w0000.npy", make_array_file((1 << 40,)))
    with pytest.raises(DataError, match=r"weights.npz .*header of w0000.npy says \(1099511627776,"):
        read_start(file)


def test_sizes_of_an_npz_that_agree_in_a_lie_are_found_out(tmp_path):
    """M11: the directory of the archive says the same as the header of the array."""
    content = make_array_file((1 << 28,))
    file = write_zip(tmp_path / "weights.npz", "w0000.npy", content)
    old, new = (size.to_bytes(4, "little") for size in (len(content), len(content) + (4 << 28)))
    file.write_bytes(file.read_bytes().replace(old, new))
    with pytest.raises(TooLarge, match=r"weights.npz: its arrays have 1073741\d+ bytes, allowed"):
        read_start(file)


def test_of_an_npz_only_weights_of_the_models_shapes_take_memory(tmp_path):
    """M11: 600 kB took 600 MB, of arrays that no weight needs."""
    model, large = net(), np.zeros(150 << 20, np.uint8)
    write_arrays(tmp_path / "own.npz", model.get_weights())
    with zipfile.ZipFile(tmp_path / "own.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        for name in ("other.npy", "weights.npy", "w.npy"):
            archive.writestr(name, large.tobytes())
    tracemalloc.start()
    weights = read_start(tmp_path / "own.npz").weights
    np.savez(tmp_path / "large.npz", w0000=large, w0001=large[:9])
    tracemalloc.reset_peak()
    with pytest.raises(ConfigError, match="has 2 weights and the model"):
        read_start(tmp_path / "large.npz")
    peak_bytes = tracemalloc.get_traced_memory()[1] - tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert peak_bytes < 20 << 20
    assert all((a == b).all() for a, b in zip(weights, model.get_weights(), strict=True))


@pytest.mark.parametrize("name", ["model.h5", "model.weights.h5", "model.keras"])
def test_a_file_of_keras_that_unpacks_to_gigabytes_is_refused(name, tmp_path):
    """M11: .npz and .keras expanded without a limit."""
    content = io.BytesIO()
    with h5py.File(content, "w") as stored:
        options = {"chunks": (1 << 20,), "compression": "gzip"}
        stored.create_dataset("layers/dense/vars/0", (1 << 40,), np.float32, **options)
    file = tmp_path / name
    file.write_bytes(content.getvalue())
    if name == "model.keras":
        write_zip(file, "model.weights.h5", content.getvalue())
    with pytest.raises(TooLarge, match=f"{name}: its arrays have 4398046511104 bytes, allowed are"):
        read_start(file)


def test_an_archive_of_keras_that_unpacks_to_gigabytes_is_refused(tmp_path):
    """M11: 600 kB became 600 MB."""
    zeros = bytes(200 << 20)
    options = {"compression": zipfile.ZIP_DEFLATED}
    file = write_zip(tmp_path / "model.keras", "model.weights.h5", zeros, **options)
    with pytest.raises(TooLarge, match=r"model.keras: its arrays have 209715200 bytes, allowed"):
        read_start(file)


def test_a_header_that_python_cannot_parse_is_named(tmp_path):
    content = b"\x93NUMPY\1\0" + (99).to_bytes(2, "little") + b"(" * 99
    file = write_zip(tmp_path / "weights.npz", "w0000.npy", content)
    with pytest.raises(DataError, match=r"weights.npz .*: w0000.npy has no header of NumPy"):
        read_start(file)


@pytest.mark.parametrize("suffix", ["npz", "keras", "h5", "weights.h5"])
def test_a_damaged_file_of_every_kind_is_named(suffix, tmp_path):
    file = tmp_path / f"model.{suffix}"
    for content in (b"", b"PK\3\4" + bytes(60), b"\x89HDF\r\n\x1a\n" + bytes(99)):
        file.write_bytes(content)
        with pytest.raises(DataError, match=f"cannot read .*model.{suffix} as weights for train"):
            read_start(file)


@pytest.mark.parametrize("kind", ["npz", "weights.h5", "keras"])
@pytest.mark.training
def test_a_lack_of_memory_is_one_of_the_machine_and_names_the_file(kind, tmp_path):
    command = [sys.executable, little_memory.__file__, kind, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(CODE_ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    place = tmp_path / f"w8192.{kind}"
    expected = f"MachineError: the process has no memory left for the weights in {place}. Give"
    assert done.stdout.startswith(expected), (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "message, problem",
    [
        ("OOM when allocating tensor with shape[9]", "the process has no memory left for the wei"),
        ("a.h5; Too many open files", "cannot read .*a.h5 as weights .*; Too many open files. Rep"),
    ],
)
def test_exhausted_resources_of_tensorflow_are_memory_or_the_disk(tmp_path, message, problem):
    import tensorflow as tf

    from pipeline_ops.training.warm_start import read_warm_start

    def fail():
        raise tf.errors.ResourceExhaustedError(None, None, message)

    net().save_weights(tmp_path / "a.weights.h5")
    file = (tmp_path / "a.weights.h5").rename(tmp_path / "a.h5")
    with pytest.raises(MachineError, match=problem):
        read_warm_start(str(file), net(), net().get_weights(), fail)


def make_base():
    import keras

    image = keras.Input((8, 8, 1))
    hidden = keras.layers.Conv2D(4, 3, name="first")(image)
    return keras.Model(image, keras.layers.Conv2D(4, 3, name="second")(hidden), name="base")


def make_on_base():
    import keras

    keras.utils.clear_session()
    image = keras.Input((8, 8, 1))
    hidden = keras.Sequential([keras.layers.RandomFlip()], name="changes")(image)
    hidden = keras.layers.GlobalAveragePooling2D()(make_base()(hidden))
    return keras.Model(image, keras.layers.Dense(3, name="logits")(hidden))


@pytest.mark.parametrize("write", [hdf5, keras_file, saved_model_of_keras])
def test_a_file_of_the_base_fills_the_base_inside_of_the_model(write, tmp_path):
    from pipeline_ops.training.warm_start import read_warm_start

    base, model = make_base(), make_on_base()
    place = write(base, tmp_path)
    started = read_warm_start(str(place), model, model.get_weights(), make_on_base)
    assert started.left_out == ("logits/kernel", "logits/bias") and not started.taken
    for new, old in zip(started.weights, base.get_weights(), strict=False):
        assert np.array_equal(new, old)


@pytest.mark.parametrize("write", [hdf5, keras_file])
def test_a_file_without_names_that_fits_nothing_says_what_to_save(write, tmp_path):
    import keras

    from pipeline_ops.training.warm_start import read_warm_start

    place = write(keras.Sequential([keras.Input((5,)), keras.layers.Dense(7)]), tmp_path)
    model = make_on_base()
    order = "fits no layer of the model. The format keeps layers by their types and order, and not "
    with pytest.raises(ConfigError, match=order + r"by name.* SavedModel.*model\.export\(FOLDER\)"):
        read_warm_start(str(place), model, model.get_weights(), make_on_base)
