"""A served detector: it turns the bytes of a file into boxes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scenes import DETECTOR_KINDS, DIGIT_SCENES

from pipeline_ops.config.export import Export
from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import TRAINED, CandidateSpec
from pipeline_ops.contract.manifest import read_manifest, write_manifest
from pipeline_ops.contract.results import SAVED_MODEL
from pipeline_ops.errors import DataError

CLIENT = """
import json, sys
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
images = tf.constant([open(path, "rb").read() for path in sys.argv[2:]])
print(json.dumps({
    name: value.numpy().tolist()
    for name, value in model.signatures["serving_default"](image_bytes=images).items()
}))
"""

NUMBERS = [1, 2, 3, 5, 8, 13, 21, 34, 55, 90]
"""Of the classes in the label map of the data."""

pytestmark = pytest.mark.models


@pytest.fixture(scope="module", params=DETECTOR_KINDS.values(), ids=list(DETECTOR_KINDS))
def candidate(request, scenes, make_job_in, tmp_path_factory):
    """The artifact's folder, the detector in memory that it was made of, and its head. The weights
    are random, so the detector finds many boxes."""
    import keras

    from pipeline_ops import models
    from pipeline_ops.training.saved_model_export import export_saved_model
    from pipeline_ops.training.weight_files import write_arrays

    folder = tmp_path_factory.mktemp("candidate")
    (folder / "work").mkdir()
    (folder / "made").mkdir()
    shutil.copytree(Path(scenes).parent, folder / "scenes", copy_function=os.link)
    manifest, numbered = read_manifest(scenes), folder / "scenes" / "manifest.json"
    numbered.unlink()
    figures = manifest.figures | {"class_numbers": NUMBERS}
    write_manifest(numbered.parent, manifest.model_copy(update={"figures": figures}))
    job = make_job_in(folder, str(numbered), DIGIT_SCENES)(
        train__model=request.param[0], train__model_parameters=request.param[1]
    )
    config = Train.model_validate(job.request.config)
    keras.utils.set_random_seed(3)
    model = models.build_model(config, (128, 128, 1), 10, folder, for_training=False)
    weights = [
        w + np.float32(3.0) if w.shape in ((10,), (60,), (90,)) else w for w in model.get_weights()
    ]  # the biases of 10 classes, or of 10 classes at six or nine anchors
    for number, variable in enumerate(model.weights):
        if variable.path.endswith("class_last/pointwise_kernel"):  # or all anchors answer alike
            weights[number] = 400 * weights[number]
    model.set_weights(weights)
    write_arrays(folder / "work" / TRAINED, weights)
    export_saved_model(
        CandidateSpec(
            request=str(job.attempt.request), work=str(folder / "work"), folder=str(folder / "made")
        )
    )
    return folder / "made", model, models.make_head(config, (128, 128, 1), 10)


def write_images(folder: Path) -> list[Path]:
    """A PNG and a JPEG of the model's input size, and a JPEG of another size."""
    import cv2
    from scenes import scene_example

    image = scene_example("test", 3).image
    files = [folder / "scene.png", folder / "scene.jpg", folder / "large.jpg"]
    for file, pixels in zip(files, (image, image, cv2.resize(image, (300, 200))), strict=True):
        assert cv2.imwrite(str(file), pixels)
    return files


def test_a_clean_process_gets_from_png_and_jpeg_bytes_what_the_model_in_memory_finds(
    candidate, tmp_path
):

    folder, model, head = candidate
    files = write_images(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", CLIENT, str(folder / SAVED_MODEL), *map(str, files)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    answer = {
        name: np.array(value) for name, value in json.loads(run.stdout.splitlines()[-1]).items()
    }
    images = [prepare(file.read_bytes()) for file in files]
    expected = head.detect(model(np.stack(images), training=False))
    assert set(answer) == {"boxes", "scores", "classes", "num_detections"}
    assert answer["num_detections"].min() >= 5
    for name, value in expected._asdict().items():
        assert answer[name] == pytest.approx(value.numpy(), abs=1e-5), name
    assert answer["boxes"].min() >= 0 and answer["boxes"].max() <= 1


def prepare(file: bytes) -> np.ndarray:
    """Decodes and resizes a file by the stages. Returns float32 [128, 128, 1]."""
    from beam_jobs.stages.decode import Decode, decode
    from beam_jobs.stages.resize import Resize, resize
    from beam_jobs.stages.stage import Example

    decoded = decode(Example("", "", file), Decode(channels=1))
    return resize(decoded, Resize(height=128, width=128)).image.astype(np.float32)


def test_a_client_of_the_object_detection_api_gets_the_same_boxes(candidate, tmp_path):
    import cv2
    import tensorflow as tf

    folder = candidate[0] / SAVED_MODEL
    model = tf.saved_model.load(str(folder))
    scene, _, large = write_images(tmp_path)
    cv2.imwrite(str(large.with_suffix(".png")), cv2.imread(str(large)))
    for file in (scene, large.with_suffix(".png")):
        wanted = model.signatures["serving_default"](tf.constant([file.read_bytes()]))
        pixels = tf.io.decode_image(file.read_bytes(), 3)[None]
        found = model.signatures["detection_api"](input_tensor=pixels)
        assert (model(pixels)["detection_scores"] == found["detection_scores"]).numpy().all()
        assert wanted["num_detections"].numpy().min() >= 5
        for name in ("boxes", "scores"):
            assert (found[f"detection_{name}"].numpy() == wanted[name].numpy()).all()
        classes = found["detection_classes"].numpy()
        assert classes.max() > len(NUMBERS)
        assert (classes == np.array(NUMBERS)[wanted["classes"].numpy()]).all()
        assert found["num_detections"].numpy() == wanted["num_detections"].numpy()


def test_an_export_in_which_the_signature_of_the_api_differs_is_refused(candidate):
    from pipeline_ops.served.client import RawRecord
    from pipeline_ops.served.references import References

    references = References(candidate[0], candidate[0] / SAVED_MODEL, 10, "detection")
    references.files = [
        (RawRecord(f"{number}.png", image, "PNG", [f"{number}.png"], [image]), number)
        for number, image in enumerate(references.encoded[:12])
    ]
    assert references.check_files().max_difference == 0
    call = references.model.call_signature

    def call_other(name, **inputs):
        answer = call(name, **inputs)
        if name == "detection_api":
            answer["detection_classes"] = answer["detection_classes"] + 1
        return answer

    references.model.call_signature = call_other
    with pytest.raises(DataError, match="the signature detection_api of the SavedModel is not"):
        references.check_files()


def test_the_label_map_travels_with_a_detector(candidate):
    import tensorflow as tf

    from beam_jobs.sources.tfrecord import parse_label_map

    model = tf.saved_model.load(str(candidate[0] / SAVED_MODEL))
    file, names = (
        Path(each.asset_path.numpy().decode()) for each in (model.label_map, model.class_names)
    )
    assert names.read_text().split() == [str(digit) for digit in range(10)]
    found = parse_label_map(file.read_bytes(), str(file)).names
    assert found == {number: str(digit) for digit, number in enumerate(NUMBERS)}


def test_export_accepts_the_candidate_and_no_other(candidate):
    from pipeline_ops.export.check import choose_rule
    from pipeline_ops.served.references import References

    rule = choose_rule("saved_model", Export(model="scenes"))
    references = References(candidate[0], candidate[0] / SAVED_MODEL, 10, "detection")
    agreement = references.check_prepared(rule)
    assert (
        agreement.num_checked == 30
        and agreement.top1_agreement == 1.0
        and agreement.max_difference <= 1e-4
    )
    references.outputs = references.outputs.copy()
    references.outputs[3, 0, :4] += 0.01
    with pytest.raises(
        DataError, match="is not the model that was trained: on 30 test images a number differs by"
    ):
        references.check_prepared(rule)


def test_two_detections_of_nearly_the_same_score_may_come_in_any_order():
    from pipeline_ops.export.check import choose_rule
    from pipeline_ops.served.references import check_agreement

    rule = choose_rule("saved_model", Export(model="scenes"))
    one = np.zeros([1, 3, 6], np.float32)
    one[0, :2] = [[0.1, 0.1, 0.2, 0.2, 0.5, 1], [0.5, 0.5, 0.9, 0.9, 0.49999, 0]]
    assert check_agreement(one, one[:, [1, 0, 2]], rule, "it").max_difference < 1e-4
    other = one.copy()
    other[0, 0, 5] = 2
    with pytest.raises(DataError):
        check_agreement(one, other, rule, "it")


def test_a_format_in_which_rounding_has_chosen_another_box_may_differ_in_few_images():
    from pipeline_ops.export.check import choose_rule
    from pipeline_ops.served.references import check_agreement

    config = Export(model="scenes", box_agreement=0.9)
    one = np.zeros([20, 3, 6], np.float32)
    one[:, 0] = [0.1, 0.1, 0.2, 0.2, 0.9, 1]
    other = one + np.float32([0, 0, 0, 0, 1e-5, 0]) * (one > 0)
    other[4, 0, :4] += 0.05
    agreement = check_agreement(
        one, other, choose_rule("tflite", config, "detection"), "the format tflite"
    )
    assert agreement.top1_agreement == 0.95 and 0 < agreement.max_difference <= 1e-4
    with pytest.raises(DataError, match="the SavedModel is not the model that was trained"):
        check_agreement(
            one,
            other,
            choose_rule("saved_model", config, "detection"),
            "the SavedModel",
        )
    other[5:9, 0, :4] += 0.05
    with pytest.raises(
        DataError,
        match=r"75\.0% of the answers are the same, export\.box_agreement requires 90\.0%",
    ):
        check_agreement(one, other, choose_rule("tflite", config, "detection"), "the format tflite")


def test_every_format_finds_the_boxes_of_the_detector_in_memory(candidate, tmp_path):
    """One of them is a retinanet, whose backbone has depthwise convolutions and batch norms."""
    from pipeline_ops.export.check import check_format
    from pipeline_ops.export.formats import run_converter
    from pipeline_ops.served.references import References

    config, formats = Export(model="scenes"), ["tflite", "onnx"]
    folder = shutil.copytree(candidate[0] / SAVED_MODEL, tmp_path / "version")
    references = References(candidate[0], folder, 10, "detection")
    with run_converter(folder, "", formats, 10) as wait:
        seconds = wait()
    for name in formats:
        figures = check_format(name, references, folder, config, seconds[name])
        assert figures.num_checked == 30 and 0 < figures.max_difference <= 1e-4
