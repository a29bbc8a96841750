"""Whether the SavedModel is the model that was trained."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from pipeline_ops.config.export import Export
from pipeline_ops.contract.results import REFERENCE_EXAMPLES, REFERENCE_OUTPUTS, SAVED_MODEL
from pipeline_ops.errors import DataError
from pipeline_ops.export.check import check_format, choose_rule
from pipeline_ops.served.client import RawRecord, pack_raw_record
from pipeline_ops.served.references import AgreementRule, References, check_agreement

REFERENCES = np.array([[0.9, 0.1], [0.2, 0.8]], np.float32)


CONFIG = Export(model="digits")
RULE = choose_rule("saved_model", CONFIG)


def check(training, num_classes: int = 10):
    folder = training / SAVED_MODEL
    return check_format("saved_model", References(training, folder, num_classes), folder, CONFIG)


@pytest.fixture
def training(saved_models, tmp_path):
    """The folder of a training's artifact, to be spoiled."""
    return shutil.copytree(saved_models["good"], tmp_path / "training")


def test_a_candidate_that_answers_as_in_training_is_accepted(training):
    found = check(training)
    assert (found.num_checked, found.top1_agreement, found.path) == (16, 1.0, "")
    assert found.max_difference < 1e-6
    assert 0 < found.latency_seconds < 10
    assert found.num_bytes == sum(
        file.stat().st_size for file in (training / SAVED_MODEL).rglob("*") if file.is_file()
    )


def test_another_model_than_the_trained_one_is_refused(training, saved_models):
    shutil.rmtree(training / SAVED_MODEL)
    shutil.copytree(saved_models["fair"] / SAVED_MODEL, training / SAVED_MODEL)
    with pytest.raises(DataError, match="not the model that was trained"):
        check(training)


def test_a_model_that_can_not_be_loaded_is_named(training):
    (training / SAVED_MODEL / "saved_model.pb").write_bytes(b"no model")
    with pytest.raises(DataError, match="saved_model: cannot load the candidate"):
        check(training)


def test_a_model_with_another_signature_is_refused(training):
    import tensorflow as tf

    class Other(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "pictures")])
        def other(self, pictures):
            return {"probabilities": tf.zeros([tf.size(pictures), 10])}

    shutil.rmtree(training / SAVED_MODEL)
    other = Other()
    tf.saved_model.save(other, str(training / SAVED_MODEL), signatures=other.other)
    with pytest.raises(
        DataError,
        match=(
            "must have the signature serving_default from image_bytes to probabilities and classes"
        ),
    ):
        check(training)


def test_a_model_for_other_classes_is_refused(training):
    with pytest.raises(DataError, match=r"returns the shape \(16, 10\), expected \(16, 11\)"):
        check(training, 11)


def test_a_reference_that_is_no_image_is_refused_by_key(training):
    import tensorflow as tf

    record = RawRecord("800.png", b"no image", "PNG", ["800.png"], [b"no image"])
    with tf.io.TFRecordWriter(str(training / REFERENCE_EXAMPLES)) as writer:
        writer.write(pack_raw_record(record))
    with pytest.raises(DataError, match="800.png of reference.tfrecord cannot be decoded"):
        check(training)


def test_a_torn_reference_file_is_refused(training):
    content = (training / REFERENCE_EXAMPLES).read_bytes()
    (training / REFERENCE_EXAMPLES).write_bytes(content[:-7])
    with pytest.raises(DataError, match="reference.tfrecord cannot be read"):
        check(training)


def test_references_that_are_no_array_are_refused(training):
    (training / REFERENCE_OUTPUTS).write_bytes(b"no array")
    with pytest.raises(DataError, match="cannot read .*reference.npy"):
        check(training)


@pytest.mark.parametrize(
    "answers, complaint",
    [
        ([[0.9, 0.1], [0.2, 0.8002]], "differs by 0.0002"),
        ([[np.nan, 0.1], [0.2, 0.8]], "differs by nan"),
        ([[0.9, 0.1]], "Train again"),
    ],
)
def test_a_difference_beyond_the_tolerance_is_refused_with_its_size(answers, complaint):
    with pytest.raises(DataError, match=complaint):
        check_agreement(REFERENCES, np.array(answers, np.float32), RULE, "the SavedModel")


def test_another_answer_is_refused_however_small_the_difference():
    close = np.array([[0.50001, 0.49999]], np.float32)
    with pytest.raises(DataError, match="0.0% of the answers are the same"):
        check_agreement(
            close,
            close[:, ::-1],
            AgreementRule(1e-3, 1.0, ("export.tolerance", "the format")),
            "the SavedModel",
        )


def test_a_difference_within_the_tolerance_is_measured():
    agreement = check_agreement(REFERENCES, REFERENCES + np.float32(5e-5), RULE, "the SavedModel")
    assert agreement.max_difference == pytest.approx(5e-5, rel=1e-2)


def test_without_references_nothing_is_accepted():
    with pytest.raises(DataError, match="Train again"):
        check_agreement(np.empty((0, 2)), np.empty((0, 2)), RULE, "the SavedModel")


def test_a_signature_that_answers_otherwise_is_refused_by_name(training):
    import tensorflow as tf

    good = tf.saved_model.load(str(training / SAVED_MODEL))
    shifted = tf.Module()
    shifted.good = good
    shifted.images = tf.function(
        lambda images: good.signatures["images"](images=images + 40.0),
        input_signature=[tf.TensorSpec([None, 16, 16, 1], tf.float32, "images")],
    )
    others = {name: each for name, each in good.signatures.items() if name != "images"}
    shutil.rmtree(training / SAVED_MODEL)
    tf.saved_model.save(
        shifted, str(training / SAVED_MODEL), signatures=others | {"images": shifted.images}
    )
    with pytest.raises(
        DataError, match="the signature images of the SavedModel is not the model that was trained"
    ):
        check(training)


def test_how_far_eight_bits_may_be_off_is_a_matter_of_its_own():
    rule = choose_rule("tflite_int8", CONFIG)
    far = REFERENCES + np.array([[-0.2, 0.2], [0.2, -0.2]], np.float32)
    assert check_agreement(REFERENCES, far, rule, "the format tflite_int8").top1_agreement == 1.0
    with pytest.raises(DataError, match=r"export\.int8\.top1_agreement requires 95\.0%"):
        check_agreement(
            REFERENCES,
            REFERENCES[:, ::-1],
            AgreementRule(1.0, 0.95, rule.keys),
            "the format tflite_int8",
        )
