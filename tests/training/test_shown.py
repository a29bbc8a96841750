"""What a training shows to a person: its author's own content, and the pictures as it saw them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from gangs import QUICK, train
from PIL import Image

from pipeline_ops.card.items import CardContent
from pipeline_ops.card.page import CARD_PAGE
from pipeline_ops.config.train import Train
from pipeline_ops.contract.gang_protocol import CARD
from pipeline_ops.contract.manifest import find_damage, read_manifest
from pipeline_ops.contract.results import SEEN_PICTURES, TrainingFigures
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.input.augment import MixedLabels
from pipeline_ops.job.local_inputs import open_host_cache, open_host_dataset
from pipeline_ops.launch.train import train as run_train_job
from pipeline_ops.models.boxes import Boxes
from pipeline_ops.models.center_detector import make_head
from pipeline_ops.models.classification import Classification
from pipeline_ops.models.detection import Detection
from pipeline_ops.training.input_pipeline import InputPipeline
from pipeline_ops.training.seen_pictures import NUM_SEEN, draw_seen

SHAPE = (16, 16, 1)
AUGMENT = {"rotation": 15, "mixup": 0.4}


def read_card(job) -> CardContent:
    return CardContent.model_validate_json((job.work / CARD).read_bytes())


@pytest.mark.training
def test_content_of_the_chief_outlives_a_kill_and_no_item_comes_twice(make_job, host_pool):
    options = QUICK | {"train__epochs": 3, "train__workers": 2}
    quiet = make_job("quiet", **options, train__callbacks=["own_watchers:Shower"])
    train(quiet, host_pool)
    callbacks = ["own_watchers:Shower", {"own_watchers:DieOnce": {"epoch": 1}}]
    killed = make_job("killed", **options, train__callbacks=callbacks)
    train(killed, host_pool)
    assert (killed.work / "callbacks" / "died").exists()
    shown = read_card(killed)
    assert shown == read_card(quiet)
    titles = [item.title for item in shown.items if item.kind == "figure"]
    assert titles == ["Loss of epoch 1", "Epochs", "Loss of epoch 2", "Loss of epoch 3"]
    assert [item.value for item in shown.items if item.kind == "figure"][1] == "3"


@pytest.mark.training
def test_a_figure_that_cannot_be_shown_is_an_error_of_the_author_with_call_and_line(
    make_job, host_pool
):
    job = make_job("nan", **QUICK, train__callbacks=["own_watchers:ShowNan"])
    with pytest.raises(ConfigError, match=r"card\.figure\('loss'\): nan.*own_watchers.py:\d+"):
        train(job, host_pool)


@pytest.mark.training
def test_what_is_shown_is_part_of_the_artifact_and_changes_no_weight(
    user_package, make_job_in, dataset, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
    options = QUICK | {"train__epochs": 1, "train__input": {"augment": AUGMENT}}
    found = {}
    for name, callbacks in (("silent", []), ("shown", ["Shower"]), ("again", ["Shower"])):
        entries = [f"own_watchers:{each}" for each in callbacks]
        job = make_job_in(tmp_path / name, dataset)(**options, train__callbacks=entries)
        assert run_train_job(job) is ExitCode.SUCCESS
        manifest = job.folder / "manifest.json"
        assert find_damage(manifest, read_manifest(manifest), checksums=True) == []
        found[name] = job.folder.local, read_manifest(manifest)
    assert {each.path for each in found["silent"][1].files} & {CARD_PAGE, SEEN_PICTURES} == {
        SEEN_PICTURES
    }
    digests = {
        TrainingFigures.model_validate(manifest.figures).weights_digest
        for _, manifest in found.values()
    }
    assert len(digests) == 1
    shown, again = (found[name][0] for name in ("shown", "again"))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in (shown / CARD_PAGE).read_text()
    for name in (CARD_PAGE, SEEN_PICTURES):
        assert (shown / name).read_bytes() == (again / name).read_bytes()
    assert Image.open(shown / SEEN_PICTURES).size == (680, 412)


@pytest.fixture
def pipeline(dataset):
    config = Train(model="digits_cnn", epochs=2, input={"augment": AUGMENT | {"shift": 0.1}})
    host_dataset = open_host_dataset(dataset, config.input, open_host_cache(config.input), print)
    return InputPipeline(config, host_dataset, Classification(SHAPE), (0, 2), "", print)


def test_the_pictures_are_those_of_the_first_batch_and_reading_them_changes_no_batch(pipeline):
    batches = pipeline.make_batches(0)
    first, second = next(batches), next(batches)
    images, labels = pipeline.read_first_examples(NUM_SEEN)
    np.testing.assert_array_equal(images, first[0][:NUM_SEEN])
    tf.nest.map_structure(
        lambda ours, theirs: np.testing.assert_array_equal(ours, theirs[:NUM_SEEN]),
        labels,
        first[1],
    )
    again = pipeline.make_batches(0)
    for batch in (first, second):
        tf.nest.map_structure(np.testing.assert_array_equal, next(again), batch)
    tf.nest.map_structure(np.testing.assert_array_equal, next(batches), next(again))


def test_a_detectors_pictures_have_the_boxes_of_their_mosaics(scenes):
    config = Train(model="center_detector", epochs=1, input={"augment": {"mosaic": 1.0}})
    opened = open_host_dataset(scenes, config.input, open_host_cache(config.input), print)
    task = Detection((128, 128, 1), make_head((128, 128, 1), 10))
    pipeline = InputPipeline(config, opened, task, (0, 1), "", print)
    images, labels = pipeline.read_first_examples(NUM_SEEN)
    without = labels._replace(classes=tf.fill(tf.shape(labels.classes), -1))
    names = pipeline.figures.class_names
    drawn, bare = draw(images, labels, names), draw(images, without, names)
    changed = (drawn != bare).any(-1)[8:168, 8:168]
    assert drawn.shape == (412, 680, 3) and 0 < changed.mean() < 1


def draw(images, labels, names=("cat", "dog")) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(draw_seen(images, labels, names))).convert("RGB"))


def test_pixels_are_drawn_as_they_are_and_scaled_only_beyond_their_range():
    grey = np.full((1, 4, 4, 1), 100.4, np.float32)
    assert (draw(grey, tf.constant([0]))[8:168, 8:168] == 100).all()
    beyond = grey.copy()
    beyond[0, 0, 0, 0] = -50
    drawn = draw(beyond, tf.constant([0]))
    assert (drawn[8:48, 8:48] == 0).all() and (drawn[100:168, 100:168] == 255).all()
    text = drawn[186:200, 8:168]
    assert (text < 200).any()  # "scaled from -50..100.4"
    assert (draw(grey, tf.constant([0]))[186:200, 8:168] == 255).all()
    beyond[0, 0, 0, 0] = np.nan
    assert (draw(beyond, tf.constant([0]))[8:168, 8:168] == 0xEE).all()


def test_mixtures_and_boxes_are_drawn_with_their_labels():
    images = np.zeros((2, 8, 8, 3), np.uint8)
    mixed = MixedLabels(tf.constant([0, 1]), tf.constant([1, 1]), tf.constant([0.7, 1.0]))
    plain = tf.constant([0, 1])
    left, right = np.s_[170:186, 8:168], np.s_[170:186, 176:336]
    assert (draw(images, mixed)[left] != draw(images, plain)[left]).any()  # 70% cat + 30% dog
    assert (draw(images, mixed)[right] == draw(images, plain)[right]).all()  # dog
    corners = tf.constant([[[0.25, 0.25, 0.75, 0.75], [0.0, 0, 0, 0]]] * 2)
    boxes = Boxes(corners, tf.constant([[0, -1], [-1, -1]]), tf.zeros((2, 2), tf.bool))
    drawn = draw(images, boxes)
    assert (drawn[8:168, 8:168] != 0).any() and (drawn[8:168, 176:336] == 0).all()
