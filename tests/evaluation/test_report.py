"""The report: what it shows, and what nothing that is shown can do to the reader."""

from __future__ import annotations

import base64
import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from pages import BREAKOUT, SCRIPT, TEMPLATE, Page
from workshop import Workshop, copy_dataset, training_figures

from pipeline_ops.artifacts.dataset import DatasetFigures
from pipeline_ops.artifacts.fingerprint import Fingerprint
from pipeline_ops.artifacts.manifest import Manifest, read_manifest
from pipeline_ops.artifacts.results import REPORT, EvaluationFigures, RuleVerdict
from pipeline_ops.config.evaluate import Bootstrap
from pipeline_ops.evaluation.groups import slice_groups, whole_group
from pipeline_ops.evaluation.leaks import Leaks
from pipeline_ops.evaluation.lineage import Lineage, Since
from pipeline_ops.evaluation.metrics import ModelAnswer, compare, evaluate_model
from pipeline_ops.evaluation.predictions import DrawnBox, Shown
from pipeline_ops.evaluation.report import ReportData, render

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


def answer_of(classes: np.ndarray, num_classes: int, generator: np.random.Generator) -> ModelAnswer:
    """A model that gives its answer the largest probability."""
    scores = generator.dirichlet(np.ones(num_classes), len(classes))
    scores[np.arange(len(classes)), classes] += 1.0
    scores /= scores.sum(axis=1, keepdims=True)
    return ModelAnswer(classes, np.zeros(len(classes), int), scores.max(axis=1), scores.T)


def report_data(
    num_classes: int = 3,
    num_examples: int = 60,
    noise: float = 0.3,
    champion: bool = True,
    **changes,
) -> ReportData:
    names, generator = [f"class {i}" for i in range(num_classes)], np.random.default_rng(3)
    labels = np.arange(num_examples) % num_classes
    wrong = generator.random((2, num_examples)) < noise
    classes = [(labels + w) % num_classes for w in wrong.astype(int)]
    answers = [answer_of(c, num_classes, generator) for c in classes[: 1 + champion]]
    evaluated = [evaluate_model(labels, answer, names, 2, 10) for answer in answers]
    whole = whole_group(
        labels, answers, [evaluation for evaluation, _ in evaluated], 2, Bootstrap(samples=100)
    )
    slices = slice_groups(
        labels,
        answers,
        {"camera": np.where(labels % 2, "front", "back")},
        names,
        2,
        Bootstrap(samples=100),
    )
    dataset = DatasetFigures(
        class_names=names,
        image_shape=(28, 28, 1),
        num_examples={"train": 9, "validation": 5, "test": num_examples},
        labels={},
        num_rejected=0,
        rejected_by_reason={},
    )
    figures = EvaluationFigures(
        num_examples=num_examples,
        challenger=whole.challenger.model_copy(update={"intervals": whole.intervals()}),
        champion=whole.champion,
        champion_version=4 if champion else None,
        differences=whole.differences(),
        slices=[group.as_slice() for group in slices],
        gate_passed=True,
        rules=[
            RuleVerdict(metric="accuracy", passed=True, text="accuracy 0.9000 is at least 0.5000")
        ],
    )
    mistakes = [
        Shown(
            key=f"{i}.png",
            label=int(labels[i]),
            answer=int(classes[0][i]),
            confidence=0.9,
            label_probability=0.1,
            image=b"none",
        )
        for i in np.flatnonzero(wrong[0])[:4]
    ]
    data = ReportData(
        pipeline="digits",
        figures=figures,
        comparison=compare(labels, *classes) if champion else None,
        why_alone=None if champion else "there is no champion to compare it with",
        curves=[curves for _, curves in evaluated],
        mistakes=mistakes,
        surprises=mistakes,
        rejected=[],
        training=training_figures_of(dataset),
        dataset=dataset,
        drift=None,
        leaks=Leaks(0, None),
        lineage=Lineage([], "f" * 32, Since({"preprocess": [], "train": []}) if champion else None),
        top_k=2,
        bootstrap_samples=100,
    )
    return dataclasses.replace(data, **changes)


def training_figures_of(dataset: DatasetFigures):
    fingerprint = Fingerprint(config={}, inputs={}, code={}, versions={})
    return training_figures(
        Manifest(
            job="preprocess",
            pipeline="digits",
            fingerprint=fingerprint,
            fingerprint_digest=fingerprint.digest,
            files=[],
            figures=dataset.model_dump(mode="json"),
        )
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
    shop = Workshop(folder / "root", hostile, saved_models)
    return (shop.run(shop.plan("evaluate", shop.train("poor")))[1] / REPORT).read_text(
        encoding="utf-8"
    )


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
    text = Page(render(report_data())).text
    assert (
        text.index("Gate passed")
        < text.index("accuracy 0.9000 is at least 0.5000")
        < text.index("Champion and challenger")
    )
    assert "The challenger may take the place of version 4." in text


def test_what_is_not_published_and_why_is_said():
    data = report_data()
    failed = RuleVerdict(metric="accuracy", passed=False, text="accuracy 0.9000 is below 0.9900")
    text = Page(
        render(
            dataclasses.replace(
                data,
                figures=data.figures.model_copy(update={"gate_passed": False, "rules": [failed]}),
            )
        )
    ).text
    assert (
        "Gate not passed" in text
        and "Trained, not published. Version 4 stays in service." in text
        and failed.text in text
    )


def test_without_a_champion_there_is_no_column_for_one():
    text = Page(render(report_data(champion=False))).text
    assert "No comparison: there is no champion to compare it with." in text
    assert "Champion's recall" not in text and "may become the first champion" in text


def test_so_many_classes_that_a_matrix_can_not_be_read_are_shown_as_pairs():
    page = Page(render(report_data(num_classes=120, num_examples=600)))
    assert not [attributes for tag, attributes in page.tags if attributes.get("class") == "matrix"]
    assert "The 100 classes that are found least; 20 more are in metrics.json." in page.text
    assert "taken for" in page.text


def test_a_challenger_without_mistakes_has_an_empty_gallery():
    text = Page(render(report_data(noise=0.0, mistakes=[]))).text
    assert (
        "every test image was classified correctly" in text
        and "No image of the test split was confused." in text
    )


def test_a_picture_that_can_not_be_shown_leaves_its_words():
    page = Page(render(report_data()))
    assert "can't be shown" in page.text and not [tag for tag, _ in page.tags if tag == "img"]


def test_a_training_that_recorded_nothing_is_no_reason_not_to_report():
    data = report_data()
    text = Page(
        render(
            dataclasses.replace(
                data, training=data.training.model_copy(update={"history": [], "best_epoch": -1})
            )
        )
    ).text
    assert "Nothing was recorded." in text


def test_every_entry_of_the_contents_leads_somewhere():
    page = Page(render(report_data()))
    targets = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    links = [attributes["href"][1:] for tag, attributes in page.tags if tag == "a"]
    assert len(links) > 8 and set(links) <= targets


def test_boxes_are_drawn_over_the_picture_in_fractions_of_it():
    data = report_data()
    boxes = (
        DrawnBox(0.1, 0.2, 0.6, 0.7, SCRIPT, True),
        DrawnBox(0.0, 0.0, 0.5, 0.5, "cat 0.93", False),
    )
    shown = dataclasses.replace(data.mistakes[0], boxes=boxes, image=PNG)
    page = Page(render(dataclasses.replace(data, mistakes=[shown])))
    [truth] = [
        attributes
        for tag, attributes in page.tags
        if "truth-box" in (attributes.get("class") or "")
    ]
    assert truth["style"] == "left:20.00%;top:10.00%;width:50.00%;height:50.00%"
    assert SCRIPT in page.text and "cat 0.93" in page.text


def test_of_very_many_rules_those_that_hold_are_folded_away_and_none_of_the_others():
    data = report_data()
    rules = [
        RuleVerdict(metric="recall", passed=i % 10 != 0, text=f"recall of class {i} says so")
        for i in range(200)
    ]
    page = render(
        dataclasses.replace(
            data, figures=data.figures.model_copy(update={"rules": rules, "gate_passed": False})
        )
    )
    shown, folded = (
        page.split("<details>", 1)[0],
        page.split("<details>", 1)[1].split("</details>", 1)[0],
    )
    assert all(f"recall of class {i} says so" in shown for i in range(0, 200, 10))
    assert folded.count("says so") == 180 and "180 more rules that hold" in folded


def test_slices_leaks_and_drift_are_shown():
    drift = [
        {"feature": "brightness", "jensen_shannon": 0.4321, "l_infinity": 0.2, "is_above": True}
    ]
    text = Page(render(report_data(drift=drift, leaks=Leaks(3, 17)))).text
    assert "camera" in text and "front" in text and "brightness" in text and "0.432" in text
    assert "The champion was trained on 17 of these test images" in text


def test_a_champion_of_other_preprocessing_is_told_of():
    data = report_data()
    lineage = Lineage(
        [], "f" * 32, Since({"preprocess": ["config stages: [] -> [{}]"], "train": []})
    )
    assert "preprocessed otherwise" in Page(render(dataclasses.replace(data, lineage=lineage))).text
    assert "preprocessed otherwise" not in Page(render(data)).text


def test_rejected_files_are_named_and_the_rest_is_counted():
    data = report_data()
    dataset = data.dataset.model_copy(
        update={"num_rejected": 70, "rejected_by_reason": {"not an image": 70}}
    )
    rejected = [
        {
            "key": f"{i}.png",
            "stage": "decode",
            "reason": "not an image",
            "detail": "begins with zeros",
        }
        for i in range(50)
    ]
    text = Page(render(dataclasses.replace(data, dataset=dataset, rejected=rejected))).text
    assert (
        "49.png" in text
        and "begins with zeros" in text
        and "20 more are in the data set's quarantine.jsonl." in text
    )


def test_what_is_new_since_the_champion_is_listed(workshop):
    workshop.publish("fair")
    text = Page(
        (workshop.run(workshop.plan("evaluate", workshop.train("good")))[1] / REPORT).read_text()
    ).text
    assert 'config model: "fair" -> "good"' in text


def test_a_champion_whose_origin_is_gone_can_still_be_reported_on(workshop):
    shutil.rmtree(Path(workshop.publish("fair")).parent)
    text = Page(
        (workshop.run(workshop.plan("evaluate", workshop.train("good")))[1] / REPORT).read_text()
    ).text
    assert "the artifacts that it was made from are gone" in text


def test_the_dataset_figures_are_shown(workshop):
    text = Page(
        (workshop.run(workshop.plan("evaluate", workshop.train("good")))[1] / REPORT).read_text()
    ).text
    figures = DatasetFigures.model_validate(read_manifest(workshop.dataset).figures)
    assert "16×16×1" in text and str(figures.labels["train"]["3"]) in text
