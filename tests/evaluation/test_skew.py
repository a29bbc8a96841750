"""Requests in production beside the training data: the plan, the gate and the report."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from evaluation.evaluations import read_figures
from manifests import list_counted
from pages import SCRIPT, Page
from PIL import Image
from sandbox import Sandbox

from beam_jobs.stages.stage import Example
from beam_jobs.statistics.summary import add_up, measure_example
from pipeline_ops.contract.dataset import STATISTICS, list_shard_paths
from pipeline_ops.contract.manifest import NAME, read_manifest, write_manifest
from pipeline_ops.contract.results import METRICS, REPORT
from pipeline_ops.errors import ConfigError, ExitCode
from pipeline_ops.input.reading import read_records
from pipeline_ops.served.requests import RequestStatistics

GATE = [{"metric": "serving_skew", "at_most": 0.3}]


@pytest.fixture(scope="module")
def training(dataset) -> list[tuple[bytes, str]]:
    """The files of the training split with their classes."""
    from pipeline_ops.input.tensorflow_start import tf

    manifest = read_manifest(dataset)
    names, found = manifest.figures["class_names"], []
    for record in read_records(list_shard_paths(dataset, manifest, "train"), ()):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        label = names[features["image/class/label"].int64_list.value[0]]
        found.append((features["image/encoded"].bytes_list.value[0], label))
    return found


@pytest.fixture(scope="module")
def measured(dataset, training, tmp_path_factory) -> str:
    """The data set with the statistics that preprocessing leaves; its URI."""
    folder, labels, measured = tmp_path_factory.mktemp("measured") / "data", Counter(), []
    for file, label in training:
        pixels = decode(file)
        example = Example("", label, file, pixels)
        measured.append(measure_example(pixels.shape, len(file), example))
        labels[label] += 1
    features = add_up(measured).model_dump(mode="json")["features"]
    shutil.copytree(Path(dataset).parent, folder)
    statistics = {"splits": {"train": {"features": features, "labels": labels}}}
    (folder / STATISTICS).write_text(json.dumps(statistics | {"comparison": None}))
    manifest = read_manifest(dataset)
    counts = {file.path: file.num_examples for file in manifest.files}
    files = list_counted(folder, counts | {STATISTICS: None})
    write_manifest(folder, manifest.model_copy(update={"files": files}))
    return str(folder / NAME)


@pytest.fixture
def shop(measured, saved_models, tmp_path) -> Sandbox:
    return Sandbox(tmp_path / "root", measured, saved_models)


def decode(file: bytes) -> np.ndarray:
    pixels = np.asarray(Image.open(io.BytesIO(file)))
    return pixels.reshape(*pixels.shape[:2], -1)


def encode(pixels: np.ndarray) -> bytes:
    output = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(output, "PNG")
    return output.getvalue()


def ask(shop: Sandbox, images, labels, version: int = 1) -> None:
    """Counts requests for these images, with these answers, as a server does."""
    model = shop.registry.location
    names = sorted(set(labels))
    with RequestStatistics(model, version, names, decode, max_share=1) as statistics:
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            statistics.add(image, {"probabilities": [0.9], "classes": names.index(label)})
            if number % 50 == 49:
                statistics.flush()


CHANGES = {
    "same": (lambda pixels: pixels, ""),
    "brighter": (lambda pixels: 255 - (255 - pixels) // 3, "brightness"),
    "larger": (lambda pixels: np.kron(pixels, np.ones((4, 4, 1), np.uint8)), "image height"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_requests_of_other_images_are_refused_with_the_feature_and_equal_ones_pass(
    shop, training, change
):
    function, feature = CHANGES[change]
    images = [encode(function(decode(file))) if feature else file for file, _ in training[::2]]
    ask(shop, images, [label for _, label in training[::2]], version=7)
    plan = shop.plan("evaluate", shop.train("good"), evaluate__gate=GATE)
    code, folder = shop.run(plan)
    [rule] = read_figures(folder).rules
    report = Page((folder / REPORT).read_text())
    if feature:
        assert code == ExitCode.GATE_NOT_PASSED
        assert f"serving_skew of {feature}" in rule.text and "is above 0.3000" in rule.text
    else:
        assert code == ExitCode.SUCCESS and "is at most 0.3000" in rule.text, rule.text
    assert rule.text in report.text and "Requests in production" in report.text
    assert f"{len(images):,}× version 7" in report.text and "mean " in report.text
    metrics = json.loads((folder / METRICS).read_text())
    serving, counted = metrics["serving"], metrics["requests"]["features"]
    assert counted["brightness"]["count"] == len(images)
    assert serving["num_images"] == len(images) and serving["versions"] == {"7": len(images)}
    assert {each["feature"] for each in serving["distances"]} >= {"labels", "contrast"}


def test_answers_of_one_class_are_far_from_training(shop, training):
    ask(shop, [file for file, _ in training[:200]], ["3"] * 200)
    _, folder = shop.run(shop.plan("evaluate", shop.train("good"), evaluate__gate=GATE))
    [rule] = read_figures(folder).rules
    assert not rule.passed and "serving_skew of classes" in rule.text


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "no requests to the model in service were counted in the last 7 days"),
        (9, "9 images were requested in the last 7 days, and a comparison needs 100"),
    ],
)
def test_without_enough_requests_the_rule_passes_and_says_so(shop, training, count, text):
    ask(shop, *zip(*training[:count], strict=True)) if count else None
    plan = shop.plan("evaluate", shop.train("good"), evaluate__gate=GATE)
    code, folder = shop.run(plan)
    [rule] = read_figures(folder).rules
    assert code == ExitCode.SUCCESS and f"serving_skew is unknown: {text}" in rule.text
    assert f"No comparison: {text}" in Page((folder / REPORT).read_text()).text


def test_only_an_evaluation_that_asks_for_it_is_repeated_for_new_requests(shop, training):
    train, overrides = shop.train("good"), {"evaluate__serving_skew": {"days": 2}}
    ask(shop, *zip(*training[:120], strict=True))
    shop.run(shop.plan("evaluate", train))
    shop.run(shop.plan("evaluate", train, **overrides), "second")
    assert shop.plan("evaluate", train, **overrides).is_cached
    ask(shop, *zip(*training[120:130], strict=True))
    assert shop.plan("evaluate", train).is_cached
    plan = shop.plan("evaluate", train, **overrides)
    assert (plan.is_cached, plan.reason) == (False, "inputs serving statistics changed")
    assert plan.request.serving.num_images == 130
    first, second = shop.run(plan, "third")[1], shop.root / "copy"
    shutil.move(first, second)
    assert shop.run(plan, "fourth")[1] == first
    for name in (REPORT, METRICS):  # the request pins the counts
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_damaged_and_hostile_lines_are_named_in_the_report_and_do_nothing(shop, training):
    ask(shop, *zip(*training[:120], strict=True))
    [day] = (shop.root / "models" / "digits.requests").iterdir()
    line = {"model": SCRIPT, "version": 1, "start": 0, "end": 1, "num_images": 1}
    (day / f"{'x' * 9}.jsonl").write_text(json.dumps(line | {"labels": {SCRIPT: 1}}) + "\n{\n")
    _, folder = shop.run(shop.plan("evaluate", shop.train("good"), evaluate__gate=GATE))
    html = (folder / REPORT).read_text()
    assert SCRIPT not in html
    text = Page(html).text
    assert SCRIPT in text and "1 line was not used" in text and "xxx.jsonl:2" in text


def test_a_file_in_the_way_of_the_statistics_is_no_crash(shop):
    (shop.root / "models").mkdir(parents=True)
    (shop.root / "models" / "digits.requests").write_text("")
    plan = shop.plan("evaluate", shop.train("good"), evaluate__gate=GATE)
    assert plan.request.serving is None


def test_only_the_author_may_choose_the_days(shop):
    with pytest.raises(ConfigError, match="days"):
        shop.config(evaluate__serving_skew={"days": 31})
