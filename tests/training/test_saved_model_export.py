"""The candidate's references: real test examples of the data set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sandbox import remove_from_tests

from pipeline_ops.contract.gang_protocol import TRAINED, CandidateSpec
from pipeline_ops.contract.results import REFERENCE_EXAMPLES, SAVED_MODEL
from pipeline_ops.served.client import parse_raw_record


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_reference_is_an_example_that_was_removed(dataset, make_job_in, tmp_path):
    import tensorflow as tf

    from pipeline_ops.models.digits_cnn import build
    from pipeline_ops.training.saved_model_export import export_saved_model
    from pipeline_ops.training.weight_files import write_arrays

    work, folder = tmp_path / "work", tmp_path / "candidate"
    job = make_job_in(tmp_path, remove_from_tests(dataset, tmp_path / "later", range(0, 10)))()
    for made in (work, folder):
        made.mkdir()
    write_arrays(work / TRAINED, build((16, 16, 1), 10).get_weights())
    export_saved_model(
        CandidateSpec(request=str(job.attempt.request), work=str(work), folder=str(folder))
    )
    records = list(tf.data.TFRecordDataset([str(folder / REFERENCE_EXAMPLES)]).as_numpy_iterator())
    keys = [parse_raw_record(record).key for record in records]
    # The first shard of the test split has every fourth example.
    removed = {str(key) for key in range(800, 840, 4)}
    assert len(keys) == 64
    assert removed.isdisjoint(keys)
    assert "840" in keys


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_class_names_travel_with_the_saved_model(dataset, make_job_in, tmp_path):
    import tensorflow as tf

    from pipeline_ops.models.digits_cnn import build
    from pipeline_ops.training.saved_model_export import export_saved_model
    from pipeline_ops.training.weight_files import write_arrays

    work, folder = tmp_path / "work", tmp_path / "candidate"
    for made in (work, folder):
        made.mkdir()
    write_arrays(work / TRAINED, build((16, 16, 1), 10).get_weights())
    request = str(make_job_in(tmp_path, dataset)().attempt.request)
    export_saved_model(CandidateSpec(request=request, work=str(work), folder=str(folder)))
    moved = (folder / SAVED_MODEL).rename(tmp_path / "moved")
    path = Path(tf.saved_model.load(str(moved)).class_names.asset_path.numpy().decode())
    assert path == moved / "assets" / "class_names.txt"
    assert path.read_text().splitlines() == [str(digit) for digit in range(10)]
    files = sorted(file.name for file in path.parent.iterdir())
    assert files == ["class_names.txt", "preprocessing.json"]
    assert str(tmp_path).encode() not in (moved / "saved_model.pb").read_bytes()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_that_flips_and_turns_images_is_exported(
    dataset, make_job_in, user_package, monkeypatch, tmp_path
):
    import tensorflow as tf
    from acme_vision import nets
    from keras import Input, Sequential, layers

    from pipeline_ops.training.saved_model_export import export_saved_model
    from pipeline_ops.training.weight_files import write_arrays

    def build(image_shape, num_classes):
        augment = Sequential([layers.RandomFlip(), layers.RandomRotation(0.2)])
        rest = [layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(num_classes)]
        return Sequential([Input(image_shape), augment, *rest])

    monkeypatch.setattr(nets, "augmenting", build, raising=False)
    work, folder = tmp_path / "work", tmp_path / "candidate"
    for made in (work, folder):
        made.mkdir()
    model = build((16, 16, 1), 10)
    write_arrays(work / TRAINED, model.get_weights())
    request = make_job_in(tmp_path, dataset)().attempt.request
    content = json.loads(request.read_text())
    content["config"]["model"] = "acme_vision.nets:augmenting"
    request.write_text(json.dumps(content))
    export_saved_model(CandidateSpec(request=str(request), work=str(work), folder=str(folder)))
    images = np.random.default_rng(1).uniform(0, 255, (5, 16, 16, 1)).astype(np.float32)
    serve = tf.saved_model.load(str(folder / SAVED_MODEL)).signatures["images"]
    found = serve(images=tf.constant(images))["probabilities"]
    expected = tf.nn.softmax(model(images, training=False))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_any_class_name_is_one_line_and_one_item_of_the_label_map(tmp_path):
    import tensorflow as tf

    from beam_jobs.sources.tfrecord import parse_label_map
    from pipeline_ops.served.model import add_assets
    from pipeline_ops.served.preprocessing import Preprocessing

    module, names = tf.Module(), ['a "b"', "c\\d", "two\nlines", "żółw", "{"]
    add_assets(module, names, Preprocessing(), tmp_path, [1, 2, 5, 7, 90])
    lines = Path(module.class_names.asset_path.numpy().decode()).read_text("utf-8").splitlines()
    assert lines == ['a "b"', "c\\d", "two lines", "żółw", "{"]
    file = Path(module.label_map.asset_path.numpy().decode())
    assert parse_label_map(file.read_bytes(), "it").names == dict(
        zip([1, 2, 5, 7, 90], names, strict=True)
    )
