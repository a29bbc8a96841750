"""Raw files become the same pixels in a served model as in the stages."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import pytest
from odd_files import SIZES, exif, make_files, photograph, save

from beam_jobs.stages import bind_stages, run_stages
from beam_jobs.stages.stage import Box, Example
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.contract.dataset import StageFigures
from pipeline_ops.served.client import EncodedBatch, SavedModelClient
from pipeline_ops.served.preprocessing import Preprocessing

SIZE = {"height": 32, "width": 48}
FILES = make_files()
CHAINS = {
    "decode": [],
    "stretch": [{"resize": SIZE}],
    "letterbox": [{"resize": {**SIZE, "mode": "letterbox", "pad_color": [200, 30, 30]}}],
    "crop": [{"resize": {**SIZE, "mode": "crop"}}],
    "two resizes": [{"resize": {"height": 64, "width": 64, "mode": "letterbox"}}, {"resize": SIZE}],
    "equalize": [{"resize": SIZE}, {"equalize": {"limit": 3, "parts": 4}}],
    "equalize before resize": ["equalize", {"resize": SIZE}],
    "an own stage": [{"resize": SIZE}, "served_stages:invert"],
    "an own stage with a condition": [
        {"resize": SIZE},
        {"served_stages:BRIGHTEN": {"factor": 1.4}},
    ],
    "stages that change no pixels": [{"filter": {"min_side": 1}}, {"resize": SIZE}],
}
LIMITS = {"equalize": (1.0, 8), "equalize before resize": (1.0, 8), "two resizes": (0.3, 2)}
"""Of the mean difference and that of any pixel, where a stage enlarges a difference of 1 that comes
from the stage before it. All others have (0.15, 1).
"""


def to_figures(stages, **decode) -> tuple[StageFigures, ...]:
    configs = [StageConfig.model_validate(each) for each in [{"decode": decode}, *stages]]
    return tuple(
        StageFigures(
            name=each.name,
            parameters=each.parameters,
            served="in_graph" if stage.stage.serve else "unchanged",
        )
        for each, stage in zip(configs, bind_stages(configs), strict=True)
    )


def run(figures, data: bytes, boxes=None) -> list[Example]:
    stages = bind_stages(
        StageConfig(name=each.name, parameters=each.parameters) for each in figures
    )
    return run_stages(stages, Example("key", "cat", data, boxes=boxes, split="test"), Counter())


def compile_stages(figures, shape, **options):
    """The function of one file that a SavedModel maps over a request."""
    import tensorflow as tf

    preprocessing = Preprocessing(tuple(figures), **options)
    return tf.function(
        lambda encoded: tuple(preprocessing.serve_file(encoded, shape)),
        [tf.TensorSpec([], tf.string)],
        autograph=False,
    )


def check(found: np.ndarray, wanted: np.ndarray, limits, name) -> None:
    assert found.shape == wanted.shape, name
    difference = np.abs(found.astype(int) - wanted)
    assert (difference.mean(), difference.max()) <= limits, name
    assert difference.mean() <= limits[0] and difference.max() <= limits[1], name


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("chain", CHAINS)
def test_every_kind_of_file_becomes_the_pixels_of_the_data_set(chain, channels):
    figures = to_figures(CHAINS[chain], channels=channels, background=[10, 200, 90], bits=12)
    compiled = functools.cache(functools.partial(compile_stages, figures))
    for name, data in FILES.items():
        [example] = run(figures, data)
        found = compiled(example.image.shape)(data)[0].numpy()
        check(found[0], example.image, LIMITS.get(chain, (0.15, 1)), name)


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("mode", ["stretch", "letterbox", "crop"])
def test_images_of_any_size_are_resized_as_by_the_stage(mode, channels):
    figures = to_figures([{"resize": {**SIZE, "mode": mode}}], channels=channels)
    serve = compile_stages(figures, (*SIZE.values(), channels))
    for height, width in SIZES:
        for kind in ("PNG", "JPEG"):
            data = save(photograph(height, width, "china.jpg"), kind)
            [example] = run(figures, data)
            check(serve(data)[0].numpy()[0], example.image, (0.2, 1), (height, width, kind))


@pytest.mark.parametrize("mode", ["stretch", "letterbox", "crop"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_box_of_a_turned_picture_comes_back_to_its_place(orientation, mode):
    """The window takes a box of the data set back to the upright image of the request."""
    figures = to_figures([{"resize": {**SIZE, "mode": mode}}])
    data = save(photograph(90, 120), "JPEG", exif=exif(orientation))
    upright = (120, 90) if orientation >= 5 else (90, 120)
    box = Box(0.45 * upright[0], 0.4 * upright[1], 0.6 * upright[0], 0.55 * upright[1], "cat")
    [example] = run(figures[:1], data)
    assert example.shape[:2] == upright
    stages = bind_stages(
        StageConfig(name=each.name, parameters=each.parameters) for each in figures
    )
    [prepared] = run_stages(stages[1:], example.with_boxes([box]), Counter())
    [seen] = prepared.boxes
    serve = compile_stages(figures, (*SIZE.values(), 3), has_boxes=True)
    [[top, left, bottom, right]] = serve(data)[1].numpy()
    height, width = SIZE.values()
    found = [
        upright[0] * (top + seen.ymin / height * (bottom - top)),
        upright[1] * (left + seen.xmin / width * (right - left)),
        upright[0] * (top + seen.ymax / height * (bottom - top)),
        upright[1] * (left + seen.xmax / width * (right - left)),
    ]
    np.testing.assert_allclose(found, [box.ymin, box.xmin, box.ymax, box.xmax], atol=0.01)


@pytest.mark.parametrize("size", [(300, 500), (64, 64), (40, 700), (128, 65)])
def test_an_image_is_cut_into_the_tiles_of_the_data_set(size):
    tile = {"height": 64, "width": 96, "overlap": 16}
    figures = to_figures([{"tile": tile}, {"resize": SIZE}])
    serve = compile_stages(figures, (*SIZE.values(), 3), has_boxes=True)
    data = save(photograph(*size), "PNG")
    examples = run(figures, data, boxes=())
    images, windows = (each.numpy() for each in serve(data))
    assert len(images) == len(examples)
    for image, window, example in zip(images, windows, examples, strict=True):
        check(image, example.image, (0.2, 1), example.key)
        if "#" in example.key:
            left, top = map(int, example.key.partition("#")[2].split(","))
            np.testing.assert_allclose(window[:2], [top / size[0], left / size[1]], atol=1e-6)


def test_a_batch_of_many_sizes_is_answered_as_one_by_one(tmp_path):
    """By the signatures for files, examples and pixels, and by the client for images of shards."""
    import tensorflow as tf

    from pipeline_ops.served.model import ServedClassifier, add_assets
    from pipeline_ops.served.references import pack_example

    class Mean(tf.Module):
        def __call__(self, images, training):
            return tf.reduce_mean(images, axis=[1, 2]) / 50

    preprocessing = Preprocessing(to_figures(CHAINS["letterbox"]))
    served = ServedClassifier(Mean(), (32, 48, 3), preprocessing)
    add_assets(served, ["a", "b", "c"], preprocessing, tmp_path)
    tf.saved_model.save(served, str(tmp_path), signatures=served.signatures)
    signatures = tf.saved_model.load(str(tmp_path)).signatures
    files = list(FILES.values())
    together = signatures["serving_default"](image_bytes=tf.constant(files))["probabilities"]
    alone = [
        signatures["serving_default"](image_bytes=tf.constant([each]))["probabilities"][0]
        for each in files
    ]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    examples = tf.constant([pack_example(file) for file in files])
    np.testing.assert_allclose(
        signatures["examples"](examples=examples)["probabilities"], together, atol=1e-6
    )
    images = signatures["decode"](image_bytes=tf.constant(files))["images"]
    np.testing.assert_allclose(
        signatures["images"](images=images)["probabilities"], together, atol=1e-6
    )
    prepared = [tf.io.encode_png(tf.cast(each, tf.uint8)).numpy() for each in images]
    batch = EncodedBatch(list(FILES), np.array(prepared, object), np.zeros(len(files)))
    answers, _ = SavedModelClient(tmp_path, "the model", 3).classify(batch)
    np.testing.assert_allclose(answers, together, atol=1e-6)
