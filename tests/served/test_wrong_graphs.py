"""Export refuses a SavedModel that preprocesses raw files otherwise than the stages do."""

from __future__ import annotations

from collections import Counter

import cv2
import numpy as np
import pytest
from odd_files import exif, make_files, photograph, save

from beam_jobs.io.example import encode_png
from beam_jobs.stages import bind_stages, run_stages
from beam_jobs.stages.stage import Example
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.contract.dataset import StageFigures
from pipeline_ops.contract.results import REFERENCE_EXAMPLES, REFERENCE_OUTPUTS, SAVED_MODEL
from pipeline_ops.errors import DataError
from pipeline_ops.served.client import RawRecord, decode_pixels, pack_raw_record
from pipeline_ops.served.preprocessing import Preprocessing, ServedImage
from pipeline_ops.served.references import References

pytestmark = pytest.mark.models
SHAPE = (64, 64, 3)
KINDS = ["jpeg 4:2:0", "png", "rgba png", "12 of 16 bits png", "grey jpeg", "jpeg turned by exif 6"]


def stages(*names_and_parameters, **decode) -> tuple[StageFigures, ...]:
    found = [("decode", {"bits": 12, **decode}), *names_and_parameters]
    return tuple(
        StageFigures(name=name, parameters=parameters, served="in_graph")
        for name, parameters in found
    )


RESIZE = ("resize", {"height": 64, "width": 64})
CORRECT = stages(RESIZE)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    made = make_files(180, 240)
    found = {kind: made[kind] for kind in KINDS}
    return found | {
        "small": save(photograph(30, 40), "PNG"),
        "long": save(photograph(40, 300), "PNG"),
    }


def write_training(folder, figures, files, preprocessing=None):
    """The artifact of a training whose SavedModel preprocesses as `preprocessing`, and whose
    references are what the stages of `figures` make."""
    import tensorflow as tf

    from pipeline_ops.served.model import ServedClassifier, add_assets

    class Model(tf.Module):
        def __call__(self, images, training):
            return tf.reduce_mean(images, axis=[1, 2]) / 100

    right = Preprocessing(figures)
    served = ServedClassifier(Model(), SHAPE, preprocessing or right)
    add_assets(served, ["a", "b", "c"], right, folder)
    tf.saved_model.save(served, str(folder / SAVED_MODEL), signatures=served.signatures)
    bound = bind_stages(StageConfig(name=each.name, parameters=each.parameters) for each in figures)
    pixels = []
    with tf.io.TFRecordWriter(str(folder / REFERENCE_EXAMPLES)) as writer:
        for kind, file in files.items():
            [example] = run_stages(bound, Example(kind, "a", file, split="test"), Counter())
            pixels.append(encode_png(example.image))
            writer.write(pack_raw_record(RawRecord(kind, file, kind, [kind], pixels[-1:])))
    answers = served.images(decode_pixels(pixels, SHAPE))["probabilities"].numpy()
    np.save(folder / REFERENCE_OUTPUTS, answers)
    return References(folder, folder / SAVED_MODEL, 3)


def test_the_stages_in_the_graph_are_accepted(files, tmp_path):
    figures = write_training(tmp_path, CORRECT, files).check_files()
    assert figures.num_checked == len(files)
    assert figures.mean_difference < 0.2 and figures.max_difference <= 1


def with_pixels(change):
    """A graph that changes what the right one makes."""

    class Changed(Preprocessing):
        def serve_file(self, encoded, image_shape):
            images, windows = super().serve_file(encoded, image_shape)
            return ServedImage(change(images), windows)

    return Changed(CORRECT)


def with_image(resize):
    """A graph that decodes rightly, and resizes otherwise."""

    class Changed(Preprocessing):
        def serve_image(self, image_HWC, image_shape):
            import tensorflow as tf

            image = tf.clip_by_value(tf.round(resize(image_HWC)), 0, 255)
            images = tf.ensure_shape(tf.cast(image, tf.uint8), image_shape)[tf.newaxis]
            return ServedImage(images, tf.constant([[0.0, 0, 1, 1]]))

    return Changed(CORRECT)


def plain_decode():
    """TensorFlow's decoder as it is: no EXIF, no background, the upper eight of 16 bits."""

    class Changed(Preprocessing):
        def serve_file(self, encoded, image_shape):
            import tensorflow as tf

            image = tf.io.decode_image(encoded, 3, expand_animations=False)
            return self.serve_image(tf.ensure_shape(image, [None, None, 3]), image_shape)

    return Changed(CORRECT)


def resize_by(**options):
    def resize(image):
        import tensorflow as tf

        return tf.image.resize(image, SHAPE[:2], **options)

    return resize


def shift_by_half_a_pixel(image):
    import tensorflow as tf

    shifted = (tf.cast(image, tf.float32) + tf.cast(tf.roll(image, 1, 1), tf.float32)) / 2
    return tf.image.resize(shifted, SHAPE[:2], "area")


def cut_off_a_row(image):
    import tensorflow as tf

    return tf.image.resize(image[2:], SHAPE[:2], "area")


WRONG = {
    "channels in the order of OpenCV": lambda: with_pixels(lambda images: images[..., ::-1]),
    "mirrored": lambda: with_pixels(lambda images: images[:, :, ::-1]),
    "inverted": lambda: with_pixels(lambda images: 255 - images),
    "shifted by one pixel": lambda: with_pixels(
        lambda images: __import__("tensorflow").roll(images, 1, axis=2)
    ),
    "as dark as another scale": lambda: with_pixels(lambda images: images // 2),
    "an anti-aliased triangle": lambda: with_image(resize_by(antialias=True)),
    "linear without anti-aliasing": lambda: with_image(resize_by()),
    "the nearest pixel": lambda: with_image(resize_by(method="nearest")),
    "shifted by half a pixel": lambda: with_image(shift_by_half_a_pixel),
    "cut by two rows": lambda: with_image(cut_off_a_row),
    "letterbox instead of stretch": lambda: Preprocessing(
        stages(("resize", {"height": 64, "width": 64, "mode": "letterbox"}))
    ),
    "another background": lambda: Preprocessing(stages(RESIZE, background=[0, 0, 0])),
    "all bits": lambda: Preprocessing(stages(RESIZE, bits=16)),
    "equalized": lambda: Preprocessing(stages(RESIZE, ("equalize", {}))),
    "no turn by EXIF, no background": plain_decode,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_graph_is_refused(name, files, tmp_path):
    references = write_training(tmp_path, CORRECT, files, WRONG[name]())
    with pytest.raises(DataError, match="the SavedModel makes other pixels of the raw test file"):
        references.check_files()


@pytest.mark.parametrize(
    "kind, wrong", [("rgba png", "another background"), ("12 of 16 bits png", "all bits")]
)
def test_what_is_wrong_for_one_kind_of_file_alone_is_refused(kind, wrong, files, tmp_path):
    references = write_training(tmp_path, CORRECT, files, WRONG[wrong]())
    with pytest.raises(DataError, match=f"raw test file {kind} "):
        references.check_files()


def test_without_exif_a_turned_picture_is_refused(files, tmp_path):
    turned = {"turned": save(photograph(180, 240), "JPEG", exif=exif(6))}
    references = write_training(tmp_path, CORRECT, turned, plain_decode())
    with pytest.raises(DataError, match="raw test file turned"):
        references.check_files()


@pytest.mark.parametrize(
    "stage, named",
    [
        ("served_stages:INVERT_WRONG", "INVERT_WRONG"),
        ("served_stages:SHIFTED_RESIZE", "SHIFTED_RESIZE"),
    ],
)
def test_the_first_stage_with_a_wrong_form_is_named(stage, named, files, tmp_path):
    parameters = RESIZE[1] if "RESIZE" in stage else {}
    figures = stages(RESIZE, ("equalize", {}), (stage, parameters), ("served_stages:invert", {}))
    references = write_training(tmp_path, figures, files)
    with pytest.raises(DataError, match=f"first after the stage served_stages:{named}"):
        references.check_files()


def test_other_answers_to_equal_pixels_are_refused(files, tmp_path):
    """The references are those of another model."""
    references = write_training(tmp_path, CORRECT, files)
    references.outputs = np.roll(references.outputs, 1, axis=1)
    with pytest.raises(DataError, match=r"answers \d of 8 raw test files otherwise"):
        references.check_files()


def test_what_the_client_prepares_is_compared_with_the_pixels_of_the_data_set(files, tmp_path):
    figures = stages(RESIZE, ("served_stages:invert", {}))
    figures = (*figures[:2], figures[2].model_copy(update={"served": "by_client"}))
    references = write_training(tmp_path, figures, files)
    assert not references.model.takes_files
    assert set(references.model.loaded.signatures) == {"serving_default", "images"}
    found = references.check_files()
    assert (found.num_checked, found.max_difference) == (len(files), 0)
    assert found.client_stages == ["served_stages:invert"]
    references.images = 255 - references.images
    with pytest.raises(DataError, match="pipeline_ops.served.prepare makes other pixels"):
        references.check_files()


def test_raw_files_that_no_served_model_takes_are_counted(files, tmp_path):
    image = cv2.cvtColor(photograph(90, 120), cv2.COLOR_RGB2BGR)
    webp = cv2.imencode(".webp", image)[1].tobytes()
    found = write_training(tmp_path, CORRECT, files | {"WebP": webp}).check_files()
    assert (found.num_checked, found.unserved_kinds) == (len(files), ["WebP"])
