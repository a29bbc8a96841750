"""Every format, the warm-up and the card of one version that is published with all of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from linear_models import read_examples
from pages import SCRIPT, Page

from pipeline_ops.contract.dataset import list_shard_paths
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.results import METRICS, PUBLICATION, REPORT, ModelFigures
from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.export.formats import FORMAT_PATHS, load_format

ALL = ["saved_model", "tflite", "tflite_int8", "onnx"]
NAMES = ["0", SCRIPT, "a|b", *"3456789"]


@pytest.fixture(scope="module")
def published(dataset, saved_models, tmp_path_factory) -> Path:
    """The folder of a version with all formats."""
    from sandbox import Sandbox

    sandbox = Sandbox(tmp_path_factory.mktemp("all"), dataset, saved_models)
    sandbox.publish(
        "good",
        export__formats=ALL,
        export__card={"Intended use": "Sorts <b>post</b>.", "Contact": "ml@example.org"},
    )
    return sandbox.registry.location / "1"


def figures(published: Path) -> ModelFigures:
    return ModelFigures.model_validate(read_manifest(published / "manifest.json").figures)


def test_every_format_is_measured_and_agrees_with_the_trained_model(published):
    found = {each.name: each for each in figures(published).formats}
    assert list(found) == ALL
    for name, each in found.items():
        assert each.num_checked == 16 and each.num_bytes > 0 and each.latency_seconds > 0
        assert (
            each.max_difference <= each.tolerance and each.top1_agreement >= each.min_top1_agreement
        )
        assert name == "saved_model" or (published / each.path).stat().st_size == each.num_bytes
    assert found["tflite"].max_difference < 1e-4 and found["onnx"].max_difference < 1e-4
    assert 0 < found["tflite_int8"].max_difference < 0.3  # not the float model under another name
    assert found["tflite_int8"].num_bytes < found["tflite"].num_bytes


@pytest.mark.parametrize("name", FORMAT_PATHS)
def test_a_format_answers_for_any_number_of_images_without_the_model(published, dataset, name):
    _, images, labels = read_examples(list_shard_paths(dataset, read_manifest(dataset), "test"))
    batch = (255 * images).reshape(-1, 16, 16, 1).astype(np.float32)
    ask = load_format(name, published / FORMAT_PATHS[name])
    assert np.mean(ask(batch)["probabilities"].argmax(axis=-1) == labels) > 0.8
    assert ask(batch[:1])["probabilities"].shape == (1, 10)


@pytest.mark.filterwarnings("ignore::UserWarning:tensorflow.lite.python.interpreter")
def test_eight_bits_means_eight_bits(published):
    interpreter = tf.lite.Interpreter(model_path=str(published / FORMAT_PATHS["tflite_int8"]))
    assert {tensor["dtype"] for tensor in interpreter.get_tensor_details()} >= {np.int8}


def test_every_signature_answers_alike(published, dataset):
    records, _, _ = read_examples(list_shard_paths(dataset, read_manifest(dataset), "test"))
    encoded = tf.io.parse_example(records, {"image/encoded": tf.io.FixedLenFeature([], tf.string)})[
        "image/encoded"
    ]
    signatures = tf.saved_model.load(str(published)).signatures
    images = signatures["decode"](image_bytes=encoded)["images"]
    expected = signatures["serving_default"](image_bytes=encoded)["probabilities"].numpy()
    for answer in (
        signatures["images"](images=images),
        signatures["examples"](examples=tf.constant(records)),
    ):
        np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-6)


def test_a_version_holds_warm_up_requests_that_the_model_can_answer(published):
    prediction_log_pb2 = pytest.importorskip(
        "tensorflow_serving.apis.prediction_log_pb2",
        reason="tensorflow-serving-api is not installed",
    )
    signatures = tf.saved_model.load(str(published)).signatures
    records = list(
        tf.data.TFRecordDataset(
            [str(published / "assets.extra" / "tf_serving_warmup_requests")]
        ).as_numpy_iterator()
    )
    logs = [prediction_log_pb2.PredictionLog.FromString(record) for record in records]
    for log, record in zip(logs, records, strict=True):
        log.DiscardUnknownFields()
        assert log.ByteSize() == len(record)  # there were none
    requests = [log.predict_log.request for log in logs]
    assert [request.model_spec.signature_name for request in requests] == [
        "examples",
        "images",
        "serving_default",
    ] * 2
    for request in requests:
        assert request.model_spec.name == "digits"
        inputs = {
            name: tf.constant(tf.make_ndarray(tensor)) for name, tensor in request.inputs.items()
        }
        assert (
            signatures[request.model_spec.signature_name](**inputs)["probabilities"].shape[1] == 10
        )


def test_the_card_says_what_the_config_the_evaluation_and_the_lineage_say(published):
    card, text = (
        json.loads((published / "model_card.json").read_text()),
        (published / "MODEL_CARD.md").read_text(),
    )
    assert (card["model"], card["version"], card["texts"]["Intended use"]) == (
        "digits",
        1,
        "Sorts <b>post</b>.",
    )
    assert (
        card["evaluation"]["metrics"]["accuracy"] == 0.87
        and card["data"]["num_examples"]["train"] == 700
    )
    assert [each["name"] for each in card["formats"]] == ALL
    manifest = read_manifest(published / "manifest.json")
    assert {name: card["lineage"][name] for name in ("train", "evaluate")} == {
        name: entry.digest for name, entry in manifest.inputs.items()
    }
    assert "preprocess" in card["lineage"]
    assert "Sorts &lt;b&gt;post&lt;/b&gt;." in text and "<b>" not in text
    assert "## Contact\n\nml@example.org\n\n## Data\n" in text
    assert (
        "| accuracy | 0.8700 |" in text
        and "| tflite\\_int8 | formats/model\\_int8.tflite |" in text
    )


def test_the_page_of_the_run_shows_size_latency_and_agreement_of_every_format(published):
    [page] = (published.parents[2] / "artifacts" / "digits" / "export").glob(f"*/{REPORT}")
    section = page.read_text().split('<section id="publication">')[1].split("</section>")[0]
    rows = [Page(row).text for row in section.split("<tr>")[2:]]
    assert (
        "Published as version 1 of digits" in section
        and "Version 1 came into service." in section
        and PUBLICATION not in page.read_text()
    )
    for row, each in zip(rows, figures(published).formats, strict=True):
        for cell in (
            {"saved_model": "SavedModel", "onnx": "ONNX"}.get(each.name, "TFLite"),
            each.path,
            f"{each.num_bytes:,}",
            f"{1000 * each.latency_seconds:.3f} ms",
            f"{100 * each.top1_agreement:.1f} %",
            f"of 16 images, at least {100 * each.min_top1_agreement:.0f} %",
            f"{each.max_difference:.2g}",
            f"at most {each.tolerance:g}",
        ):
            assert cell in row
    metrics = json.loads(page.with_name(METRICS).read_bytes())
    assert metrics["publication"]["formats"] == [
        each.model_dump(mode="json") for each in figures(published).formats
    ]
    assert metrics["challenger"]["metrics"]["accuracy"] == 0.87


def test_an_evaluation_that_was_changed_is_named_and_nothing_is_published(sandbox):
    train = sandbox.train("good")
    evaluation = Path(sandbox.evaluate(train))
    plan = sandbox.plan("export", train, str(evaluation))
    page = evaluation.with_name(REPORT)
    page.write_text(page.read_text().replace("0.8700", "0.9900"))
    with pytest.raises(DataError, match=r"report\.html has another"):
        sandbox.run(plan)
    assert sandbox.registry.list_versions() == []


def test_no_name_of_a_class_becomes_markdown_or_html(dataset, saved_models, tmp_path):
    from sandbox import Sandbox, copy_dataset

    sandbox = Sandbox(
        tmp_path / "root",
        copy_dataset(dataset, tmp_path / "data", [PUBLICATION, *NAMES[1:]]),
        saved_models,
    )
    sandbox.publish("good")
    [page] = sandbox.root.glob(f"artifacts/digits/export/*/{REPORT}")
    assert (
        page.read_text().count("Published as version 1") == 1
        and PUBLICATION in Page(page.read_text()).text
    )
    assert SCRIPT not in page.read_text() and SCRIPT in Page(page.read_text()).text
    text = (sandbox.registry.location / "1" / "MODEL_CARD.md").read_text()
    assert (
        "<script" not in text
        and "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        and "a\\|b" in text
    )


@pytest.mark.models
def test_a_second_try_writes_the_same_bytes(dataset, saved_models, tmp_path, published):
    from sandbox import Sandbox

    again = Sandbox(tmp_path / "again", dataset, saved_models)
    again.publish(
        "good",
        export__formats=ALL,
        export__card={"Intended use": "Sorts <b>post</b>.", "Contact": "ml@example.org"},
    )
    first, second = (
        read_manifest(folder / "manifest.json")
        for folder in (published, again.registry.location / "1")
    )
    assert [
        file for file in first.files if not file.path.startswith(("model_card", "MODEL_CARD"))
    ] == [file for file in second.files if not file.path.startswith(("model_card", "MODEL_CARD"))]


@pytest.mark.models
def test_a_format_that_is_not_the_trained_model_stops_the_publication(sandbox):
    train = sandbox.train("good")
    plan = sandbox.plan(
        "export",
        train,
        sandbox.evaluate(train),
        export__formats=["saved_model", "tflite_int8"],
        export__int8={"tolerance": 1e-6},
    )
    with pytest.raises(
        DataError,
        match=(
            r"the format tflite_int8 is not the model that was trained: .* "
            r"export\.int8\.tolerance allows 1e-06"
        ),
    ):
        sandbox.run(plan)
    assert sandbox.registry.list_versions() == []


@pytest.mark.models
def test_without_the_training_data_eight_bits_can_not_be_made_and_the_shard_is_named(
    dataset, saved_models, tmp_path
):
    from sandbox import Sandbox, copy_dataset

    sandbox = Sandbox(tmp_path / "root", copy_dataset(dataset, tmp_path / "data"), saved_models)
    train = sandbox.train("good")
    plan = sandbox.plan(
        "export", train, sandbox.evaluate(train), export__formats=["saved_model", "tflite_int8"]
    )
    (tmp_path / "data" / "train-00000-of-00004.tfrecord").unlink()
    with pytest.raises(
        DataError,
        match=r"train-00000-of-00004\.tfrecord is gone, and export\.int8 needs training examples",
    ):
        sandbox.run(plan)


@pytest.mark.parametrize(
    "formats, complaint",
    [
        (["tflite"], "must name saved_model"),
        (["saved_model", "saved_model"], "nothing twice"),
        (["saved_model", "tensorrt"], "tensorrt"),
    ],
)
def test_formats_that_can_not_be_are_refused_in_the_config(sandbox, formats, complaint):
    with pytest.raises(ConfigError, match=complaint):
        sandbox.config(export__formats=formats)
