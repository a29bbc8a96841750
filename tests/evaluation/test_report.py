"""The contents of the report, and its safety with hostile contents."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from evaluation.report_pages import make_findings, make_training_figures, render
from pages import BREAKOUT, SCRIPT, TEMPLATE, Page
from sandbox import Sandbox, copy_dataset

from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.remarks import describe_small_splits
from pipeline_ops.contract.results import REPORT, CalibrationBin, Epoch, RuleVerdict
from pipeline_ops.evaluation.inputs import Leaks, Lineage
from pipeline_ops.evaluation.metrics import NUM_SAMPLES
from pipeline_ops.evaluation.report import (
    compare_with_training,
    describe_overfitting,
    mark_mistakes,
)
from pipeline_ops.served.client import ImageDetections, TrueBoxes

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory, dataset, saved_models) -> str:
    """A report on data in which every name wants to be a program."""
    folder = tmp_path_factory.mktemp("hostile")
    hostile = copy_dataset(
        dataset,
        folder / "dataset",
        class_names=[SCRIPT, BREAKOUT, TEMPLATE, *"3456789"],
        key_prefix=SCRIPT + BREAKOUT,
        rejected=[
            {"key": SCRIPT, "stage": "decode", "reason": BREAKOUT},
            {"key": BREAKOUT, "stage": SCRIPT, "reason": TEMPLATE},
        ],
    )
    shop = Sandbox(folder / "root", hostile, saved_models)
    return (shop.run(shop.plan("evaluate", shop.train("poor")))[1] / REPORT).read_text(
        encoding="utf-8"
    )


def test_the_layers_of_the_model_are_folded_below_the_training():
    html = render(training={"model_summary": f"Conv2D {SCRIPT}"})
    assert "Layers of the model" in Page(html).text and f"Conv2D {SCRIPT}" in Page(html).text
    assert SCRIPT not in html
    assert "Layers of the model" not in Page(render()).text


def test_hostile_text_is_shown_as_text(hostile_page):
    page = Page(hostile_page)
    for text in (SCRIPT, BREAKOUT, TEMPLATE):
        assert page.text.count(text) >= 3, text
    assert SCRIPT not in hostile_page


def test_a_page_runs_nothing_and_loads_nothing(hostile_page):
    tags = Page(hostile_page).tags
    assert not {tag for tag, _ in tags} & {
        "script",
        "iframe",
        "object",
        "embed",
        "link",
        "base",
        "form",
        "audio",
        "video",
    }
    attributes = [
        (name, value or "") for _, attributes in tags for name, value in attributes.items()
    ]
    assert not [name for name, _ in attributes if name.startswith("on")]
    loaded = [
        value
        for name, value in attributes
        if name in ("src", "href", "srcset", "xlink:href", "action", "poster", "background")
    ]
    assert loaded and all(
        re.fullmatch(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/=]+|#[a-z]+", value)
        for value in loaded
    )
    assert not re.search(r"url\(|@import|https?://", hostile_page)


def test_the_page_forbids_itself_everything_but_its_own_pictures_and_styles(hostile_page):
    [policy] = [
        attributes["content"]
        for tag, attributes in Page(hostile_page).tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.split("; ")[:3] == [
        "default-src 'none'",
        "img-src data:",
        "style-src 'unsafe-inline'",
    ]


def test_every_table_scrolls_in_a_box_of_its_own(hostile_page):
    tags = [(tag, attributes.get("class", "")) for tag, attributes in Page(hostile_page).tags]
    before = [tags[index - 1] for index, (tag, _) in enumerate(tags) if tag == "table"]
    assert before and set(before) == {("div", "scroll")}


def test_the_verdict_comes_first():
    text = Page(render()).text
    assert (
        text.index("Gate passed")
        < text.index("accuracy 0.9000 is at least 0.5000")
        < text.index("Champion and challenger")
    )
    assert "When it was evaluated, version 4 was in service." in text


def test_page_and_documentation_tell_the_number_of_draws():
    draws = f"from {NUM_SAMPLES:,} draws of the test images"
    guide = Path(__file__).resolve().parents[2] / "docs" / "gate.md"
    assert draws in Page(render()).text and draws in guide.read_text()


def test_what_is_not_published_and_why_is_said():
    failed = RuleVerdict(metric="accuracy", passed=False, text="accuracy 0.9000 is below 0.9900")
    text = Page(render(figures={"gate_passed": False, "rules": [failed]})).text
    assert "Gate not passed" in text and failed.text in text
    assert "When it was evaluated, version 4 was in service." in text


def test_without_a_champion_there_is_no_column_for_one():
    text = Page(render(champion=False)).text
    assert "No comparison: there is no champion to compare it with." in text
    assert "Champion's recall" not in text and "there was no version to compare it with" in text


def test_so_many_classes_that_a_matrix_can_not_be_read_are_shown_as_pairs():
    page = Page(render(num_classes=120, num_examples=600))
    assert not [attributes for tag, attributes in page.tags if attributes.get("class") == "matrix"]
    assert "The 100 classes with the lowest recall. 20 more are in metrics.json." in page.text
    assert "taken for" in page.text


def test_a_challenger_without_mistakes_has_an_empty_gallery():
    text = Page(render(noise=0.0)).text
    assert "Every test image was classified correctly." in text
    assert "No image of the test split was confused." in text


def test_a_picture_that_can_not_be_shown_leaves_its_words():
    page = Page(render())
    assert "cannot be shown" in page.text and not [tag for tag, _ in page.tags if tag == "img"]


def test_a_training_that_recorded_nothing_is_no_reason_not_to_report():
    assert "Nothing was recorded." in Page(render(training={"history": [], "best_epoch": -1})).text


def test_every_entry_of_the_contents_leads_somewhere():
    page = Page(render())
    targets = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = [attributes["href"][1:] for tag, attributes in page.tags if tag == "a"]
    assert len(links) > 8 and set(links) <= targets


def test_boxes_are_drawn_over_the_picture_in_fractions_of_it():
    scene = TrueBoxes(
        "a.png", PNG, np.array([[0.1, 0.2, 0.6, 0.7]]), np.array([0]), np.array([False])
    )
    answer = ImageDetections(np.array([[0.0, 0.0, 0.05, 0.5]]), np.array([1]), np.array([0.93]))
    [picture] = mark_mistakes([scene], [answer], 0.5, [SCRIPT, "cat"])
    assert picture["text"] == "1 missed, 1 false alarm"
    truth, found = picture["boxes"]
    assert truth == {
        "style": "truth-box",
        "text": f"{SCRIPT} missed",
        **{"left": 20.0, "top": 10.0, "width": pytest.approx(50.0), "height": 50.0},
    }
    assert (found["style"], found["text"]) == ("answer-box", "cat 0.93")


def test_of_very_many_rules_those_that_hold_are_folded_away_and_none_of_the_others():
    rules = [
        RuleVerdict(metric="recall", passed=i % 10 != 0, text=f"recall of class {i} says so")
        for i in range(200)
    ]
    page = render(figures={"rules": rules, "gate_passed": False})
    shown, rest = page.split("<details>", 1)
    folded = rest.split("</details>", 1)[0]
    assert all(f"recall of class {i} says so" in shown for i in range(0, 200, 10))
    assert folded.count("says so") == 180 and "180 more rules that hold" in folded


def test_slices_leaks_and_drift_are_shown():
    drift = [
        {"feature": "brightness", "jensen_shannon": 0.4321, "l_infinity": 0.2, "is_above": True}
    ]
    text = Page(render(drift=drift, leaks=Leaks(3, 17))).text
    assert "camera" in text and "front" in text and "brightness" in text and "0.432" in text
    assert "The champion was trained on 17 of these test images" in text


def test_a_champion_of_other_preprocessing_is_told_of():
    changes = {"preprocess": ["config stages: [] -> [{}]"], "train": []}
    lineage = Lineage([], "f" * 32, changes)
    assert "preprocessed differently" in Page(render(lineage=lineage)).text
    assert "preprocessed differently" not in Page(render()).text


def test_rejected_files_are_named_and_the_rest_is_counted():
    rejected = [
        {
            "key": f"{i}.png",
            "stage": "decode",
            "reason": "not an image",
            "detail": "begins with zeros",
        }
        for i in range(50)
    ]
    counts = {"num_rejected": 70, "rejected_by_reason": {"not an image": 70}}
    text = Page(render(dataset=counts, rejected=rejected)).text
    assert "49.png" in text and "begins with zeros" in text
    assert "20 more are in the data set's quarantine.jsonl." in text


def test_of_very_much_a_page_shows_a_part_and_says_so():
    """Its size depends on constants, not on the data."""
    history = [
        Epoch(
            epoch=number,
            step=number,
            metrics={"loss": number % 7, "validation_loss": 90.0 if number == 4321 else 1.0},
            learning_rate=0.1,
        )
        for number in range(20_000)
    ]
    text = "w" * 200
    rules = [RuleVerdict(metric="recall", passed=True, text=f"rule {i}") for i in range(3000)]
    page = render(
        num_classes=120,
        num_examples=115,
        champion=False,
        figures={"rules": rules},
        training={"history": history, "warnings": [f"{text} {i}" for i in range(10_000)]},
        dataset={
            "warnings": [f"{text} {i}" for i in range(10_000)],
            "labels": {"train": {f"class {i}": i for i in range(120)}},
        },
    )
    shown = Page(page).text
    assert shown.count("epoch (lowest and highest values of neighbours)") == 2
    assert '<circle class="point' not in page.split('id="scores"')[0]
    assert shown.count("And 9950 more.") == 2 and page.count(f"{text} 49<") == 2
    assert "988 more rules that hold" in shown and "2000 more rules are in manifest.json" in shown
    assert "The 100 largest classes. 20 more are in the data set's statistics.json." in shown
    by_split = page.split("Images by class and split")[1].split("</table>")[0]
    assert "class 119<" in by_split and "class 19<" not in by_split
    assert len(page) < 700_000


def test_of_very_many_boxes_the_mistakes_are_drawn():
    boxes, is_crowd = np.tile([0.1, 0.1, 0.2, 0.2], (300, 1)), np.arange(300) < 290
    scene = TrueBoxes("a.png", PNG, boxes, np.zeros(300, int), is_crowd)
    answer = ImageDetections(np.zeros((0, 4)), np.zeros(0, int), np.zeros(0))
    [picture] = mark_mistakes([scene], [answer], 0.5, ["cat"])
    assert picture["text"] == "10 missed, 100 of 300 boxes are not drawn"
    assert [box["text"] for box in picture["boxes"]] == ["cat missed"] * 10 + ["cat"] * 190


def test_what_is_new_since_the_champion_is_listed(sandbox):
    sandbox.publish("fair")
    text = Page(
        (sandbox.run(sandbox.plan("evaluate", sandbox.train("good")))[1] / REPORT).read_text()
    ).text
    assert 'config model: "fair" -> "good"' in text


@pytest.mark.models
def test_a_champion_whose_origin_is_gone_can_still_be_reported_on(sandbox):
    shutil.rmtree(Path(sandbox.publish("fair")).parent)
    text = Page(
        (sandbox.run(sandbox.plan("evaluate", sandbox.train("good")))[1] / REPORT).read_text()
    ).text
    assert "the artifacts that it was made from are gone" in text


def test_the_dataset_figures_are_shown(sandbox):
    text = Page(
        (sandbox.run(sandbox.plan("evaluate", sandbox.train("good")))[1] / REPORT).read_text()
    ).text
    figures = DatasetFigures.model_validate(read_manifest(sandbox.dataset).figures)
    assert "16×16×1" in text and str(figures.labels["train"]["3"]) in text


@pytest.mark.parametrize(
    ("used", "monitor", "label", "sentence"),
    [
        (9, "validation_accuracy", "best", "epoch 10 of 15: the best validation accuracy."),
        (14, None, "used", "epoch 15 of 15: the last one, because train.best_checkpoint is null."),
    ],
)
def test_the_curves_mark_the_epoch_that_was_used_and_the_page_says_why(
    used, monitor, label, sentence
):
    html = render(training={"best_epoch": used, "best_monitor": monitor})
    page = Page(html)
    assert f"The model has the weights of {sentence}" in page.text
    assert {word: html.count(f">{word}</text>") for word in ("best", "used")} == {
        "best": 0,
        "used": 0,
        label: 2,
    }


def test_a_challenger_of_little_skill_is_compared_with_a_model_that_has_not_looked():
    text = Page(render(noise=0.5)).text
    assert (
        "Better than a model that has not looked at the images: accuracy 0.5000 against 0.3333 "
        "(it always answers class 0)."
    ) in text
    assert "a model that has not looked at the images" not in Page(render(noise=0.0)).text
    assert "Not better than a model that has not looked at the images" in Page(render(noise=1)).text


TOO_FEW = (
    "The training data are too few for this model ({data}): from epoch 2 to 3, the validation "
    "loss rose from 2.4 to 5.6, while the training loss fell from 0.5 to 0.25. {harm}More images "
    "help most, then more random changes (train.input.augment), a smaller model, or a warm start "
    "(train.warm_start)."
)
NO_HARM = "This did no harm: the model has the weights of epoch 2, before the rise. "


def test_warnings_and_the_batch_by_replica_are_in_the_report():
    training = {"batch": "2 x 32", "warnings": ["starts from <60 %> of the parameters"]}
    page = Page(render(dataset={"warnings": ["A <b>split</b> is odd."]}, training=training))
    assert "A <b>split</b> is odd." in page.text
    assert "2 x 32." in page.text and "starts from <60 %> of the parameters" in page.text


def test_a_small_test_split_is_named_beside_the_gate():
    [warning] = describe_small_splits({"test": 9})
    html = render(num_examples=9, figures={"warnings": [warning]})
    gate = html[html.index('<section id="gate">') : html.index('<section id="models">')]
    assert warning in Page(gate).text


def describe_losses(train: tuple, validation: tuple, training: dict, dataset: dict) -> str:
    """Returns the sentences on a training with these losses by epoch."""
    figures = DatasetFigures(
        class_names=["cat", "dog"],
        image_shape=(28, 28, 1),
        num_examples={"train": 9, "validation": 5, "test": 60},
        num_rejected=0,
        rejected_by_reason={},
        **{"labels": {"train": {"cat": 7, "dog": 2}}} | dataset,
    )
    history = [
        Epoch(epoch=n, step=n, learning_rate=0.1, metrics={"loss": a, "validation_loss": b})
        for n, (a, b) in enumerate(zip(train, validation, strict=True))
    ]
    changes = {"history": history, "best_epoch": 2, "best_monitor": None} | training
    return describe_overfitting(make_training_figures(figures).model_copy(update=changes), figures)


@pytest.mark.parametrize(
    ("training", "harm"),
    [
        ({}, "Keep the best epoch (train.best_checkpoint). "),
        ({"best_monitor": "validation_accuracy"}, ""),
        ({"best_monitor": "validation_loss", "best_epoch": 1}, NO_HARM),
    ],
)
def test_a_training_that_overfits_has_too_few_data(training, harm):
    text = describe_losses((1.0, 0.5, 0.25), (3.0, 2.4, 5.6), training, {})
    data = "9 images; class dog has the fewest images, 2"
    assert text == TOO_FEW.format(data=data, harm=harm)


@pytest.mark.parametrize(
    ("dataset", "data"),
    [
        ({"labels": {}}, "9 images"),
        (
            {"labels": {"train": {"cat": 7}}, "task": "detection"},
            "9 images; class dog has the fewest boxes, 0",
        ),
    ],
)
def test_the_rarest_class_is_named_where_it_is_known(dataset, data):
    text = describe_losses((1.0, 0.5, 0.25), (3.0, 2.4, 5.6), {"best_epoch": 1}, dataset)
    assert text == TOO_FEW.format(data=data, harm=NO_HARM)


@pytest.mark.parametrize(
    ("train", "validation"),
    [
        ((1.0, 0.5, 0.25), (3.0, 2.4, 2.6)),  # less than a tenth
        ((1.0, 0.5, 0.75), (3.0, 2.4, 5.6)),  # the training loss rises as well
        ((1.0, 0.5, 0.25), (3.0, 2.4, 2.3)),
        ((), ()),
    ],
)
def test_other_losses_show_no_overfitting(train, validation):
    assert describe_losses(train, validation, {}, {}) == ""


def test_too_few_training_data_are_told_below_the_curves():
    text = Page(render(figures={"overfitting": f"Too few {SCRIPT}."})).text
    assert f"Too few {SCRIPT}." in text


@pytest.mark.parametrize(
    ("validated", "tested", "sizes", "is_told"),
    [
        (0.88, 0.03, (100, 100), True),
        (0.88, 0.85, (100, 100), False),
        (0.9, 0.6, (20, 20), False),  # chance can do that
        (0.9, 0.6, (2000, 2000), True),
        (0.5, 0.9, (2000, 2000), False),  # better
        (float("nan"), 0.5, (2000, 2000), False),
    ],
)
def test_a_model_that_is_worse_than_in_its_training_is_told(validated, tested, sizes, is_told):
    figures = DatasetFigures(
        class_names=["cat", "dog"],
        image_shape=(28, 28, 1),
        num_examples={"train": 9, "validation": sizes[0], "test": sizes[1]},
        num_rejected=0,
        rejected_by_reason={},
        labels={},
    )
    metrics = {"loss": 1.0, "validation_loss": 1.0, "validation_accuracy": validated}
    epoch = Epoch(epoch=0, step=1, learning_rate=0.1, metrics=metrics)
    training = make_training_figures(figures).model_copy(
        update={"history": [epoch], "best_epoch": 0}
    )
    told = compare_with_training(training, figures, {"accuracy": tested})
    assert bool(told) == is_told
    if told:
        assert f"was {validated:.4f} on the validation split after epoch 1" in told[0]


def test_a_rule_that_has_nothing_to_compare_with_has_no_green_tick():
    text = "accuracy 0.9 is not compared: there is no champion to compare it with"
    rules = [RuleVerdict(metric="accuracy", passed=True, text=text, is_compared=False)]
    page = Page(render(figures={"rules": rules}))
    signs = [attributes.get("aria-label") for tag, attributes in page.tags if tag == "svg"]
    assert "not compared" in signs and signs.count("passed") == 1, "the verdict alone has a tick"


def test_classes_without_a_mistake_are_not_among_the_weakest():
    assert "Weakest classes" not in Page(render(noise=0.0)).text
    assert "(1.000)" not in Page(render(noise=0.05)).text


def test_a_bin_of_few_answers_is_no_point_of_the_calibration_curve():
    answers = [(0.15, 4, 1.0), (0.55, 5, 0.4), (0.95, 90, 0.9)]
    bins = [
        CalibrationBin(low=p - 0.05, high=p + 0.05, count=n, confidence=p, accuracy=right)
        for p, n, right in answers
    ]
    model = make_findings(3, 60, 0.3, champion=False).whole.challenger
    figures = {"challenger": model.model_copy(update={"calibration": bins})}
    page = render(champion=False, figures=figures)
    chart = page[page.index("<b>Calibration</b>") :].split("</svg>")[0]
    curve = re.search(r'class="curve validation" points="([^"]*)"', chart)[1]
    assert len(curve.split()) == 2
    assert chart.count('class="bin"') == 3 and "4 answers of probability 0.10" in chart
