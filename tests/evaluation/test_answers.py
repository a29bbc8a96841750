"""The files of answers: exact counts by threshold, equal bytes, and refusal of damaged files."""

from __future__ import annotations

import dataclasses
import io
import time
import zipfile

import numpy as np
import pytest
from evaluation.report_pages import make_findings

from pipeline_ops.contract.predictions import read_answers
from pipeline_ops.contract.results import ANSWERS, ANSWERS_BY_THRESHOLD
from pipeline_ops.contract.thresholds import (
    ThresholdCounts,
    find_best_f1,
    find_precise,
    trace_curves,
)
from pipeline_ops.errors import DataError
from pipeline_ops.evaluation.answers import count_by_threshold, write_answers
from pipeline_ops.evaluation.detector import compute_findings
from pipeline_ops.served.client import ImageDetections, TrueBoxes
from pipeline_ops.storage.open_store import open_path


def find_answers(num_classes=3, num_examples=400, champion=True):
    """Findings with a key for each example."""
    found = make_findings(num_classes, num_examples, 0.3, champion)
    keys = [f"ü/{row}.png" for row in range(num_examples)]
    return dataclasses.replace(found, predictions=dataclasses.replace(found.predictions, keys=keys))


def write(folder, found, num_classes=3) -> ThresholdCounts:
    names = [f"class {i}" for i in range(num_classes)]
    counts = count_by_threshold(found, names, 4)
    write_answers(folder, found, counts)
    return counts


@pytest.mark.parametrize("index", [0, 35, 50, 80, 100])
def test_the_rates_at_a_threshold_are_those_of_the_answers_that_reach_it(index):
    found = find_answers()
    counts = count_by_threshold(found, ["a", "b", "c"], 4)
    labels, least = found.predictions.labels, np.float32(index / 100)
    for answers, model in zip(found.predictions.models, counts.models, strict=True):
        reaches = answers.confidences.astype(np.float32) >= least
        confusion, f1 = model.count_confusions(), []
        for c in range(3):
            is_class, is_answer = labels == c, (answers.classes == c) & reaches
            right = (is_class & is_answer).sum()
            rates = model.classes[c].trace()[index]
            assert rates == (is_answer.sum(), right, is_class.sum())
            assert rates.recall == right / is_class.sum()
            assert rates.precision == (right / is_answer.sum() if is_answer.any() else None)
            f1.append(2 * right / (is_answer.sum() + is_class.sum()))
            cells = [(is_class & reaches & (answers.classes == other)).sum() for other in range(3)]
            assert [confusion[c][other][index] for other in range(3)] == cells
        assert model.trace_mean_f1()[index] == pytest.approx(np.mean(f1))
        is_right = (answers.classes == labels) & reaches
        assert model.trace_total()[index] == (reaches.sum(), is_right.sum(), 400)


def test_a_probability_that_is_the_threshold_reaches_it():
    found = find_answers(champion=False)
    [model] = found.predictions.models
    confidences = np.tile(np.float64(np.float32([0.95, 0.07, 1.0, 0.0])), 100)
    model = dataclasses.replace(model, confidences=confidences)
    found = dataclasses.replace(
        found, predictions=dataclasses.replace(found.predictions, models=[model])
    )
    total = count_by_threshold(found, ["a", "b", "c"], None).models[0].trace_total()
    reached = [rates.answered for rates in total]
    assert [reached[i] for i in (0, 7, 8, 95, 96, 100)] == [400, 300, 200, 200, 100, 100]


def test_the_presets_are_the_best_of_all_thresholds():
    [challenger, _] = count_by_threshold(find_answers(), ["a", "b", "c"], 4).models
    values, total = challenger.trace_mean_f1(), challenger.trace_total()
    assert values[find_best_f1(challenger)] == max(values)
    precise = find_precise(total)
    shares = [rates.precision or 0.0 for rates in total]
    assert precise is None or (shares[precise] >= 0.99 > max(shares[:precise], default=0.0))
    assert (precise is None) == (max(shares) < 0.99)


def box(*corners):
    return np.array([corners], np.float32)


def test_the_counts_of_a_detector_are_those_of_cocos_matching_at_each_score():
    """By hand: two true cats, one found twice; a dog that is called a cat; a crowd."""
    cat, other = (0.0, 0.0, 0.4, 0.4), (0.5, 0.5, 0.9, 0.9)
    scenes = [
        TrueBoxes("1", b"", np.array([cat, other]), np.array([0, 1]), np.zeros(2, bool)),
        TrueBoxes("2", b"", np.array([cat, other]), np.array([0, 0]), np.array([False, True])),
    ]
    answers = [
        ImageDetections(
            np.array([cat, cat, other]), np.array([0, 0, 0]), np.float32([0.9, 0.6, 0.3])
        ),
        ImageDetections(np.array([cat, other]), np.array([0, 0]), np.float32([0.5, 0.8])),
    ]
    found = compute_findings(scenes, [answers], (100, 100), ["cat", "dog"], [{}], lambda keys: {})
    counts = count_by_threshold(found, ["cat", "dog"], None)
    cats, dogs = (each.trace() for each in counts.models[0].classes)
    # Cats: 0.9 right, 0.8 in the crowd, 0.6 found before, 0.5 right, 0.3 a dog.
    expected = {0: (4, 2), 31: (3, 2), 50: (3, 2), 51: (2, 1), 61: (1, 1), 91: (0, 0)}
    assert {i: cats[i][:2] for i in expected} == expected
    assert cats[0].support == 2, "a crowd is no box to find"
    assert dogs[0] == (0, 0, 1) and dogs[0].precision is None and dogs[0].recall == 0
    assert counts.start == round(100 * found.min_score)
    _, best = trace_curves(counts).lines
    # From 0.31 to 0.50, cats have 2 * 2 / (2 + 3), and dogs are never found.
    assert (best.name, best.points) == ("best: 0.31", [(0.31, pytest.approx(0.4))])


@pytest.mark.parametrize("num_classes", [3, 24])
def test_the_file_of_answers_has_every_example(tmp_path, num_classes):
    found = find_answers(num_classes)
    write(tmp_path, found, num_classes)
    read = read_answers(open_path(str(tmp_path / ANSWERS)), num_classes)
    challenger, champion = found.predictions.models
    assert list(read.labels) == found.predictions.labels.tolist()
    assert list(read.answers) == challenger.classes.tolist()
    assert list(read.champion_answers) == champion.classes.tolist()
    for row in (0, 17, 399):
        assert read.read_key(row) == f"ü/{row}.png"
        for model, prefix in ((challenger, ""), (champion, "champion_")):
            answer, label = read.read_answer(row, prefix), found.predictions.labels[row]
            assert answer.index == model.classes[row]
            assert answer.confidence == np.float16(model.confidences[row])
            is_kept = num_classes == 3 or label in np.argsort(-model.scores[:, row])[:5]
            assert (answer.label_probability is not None) == is_kept
            if is_kept:
                assert answer.label_probability == np.float16(model.scores[label, row])


def test_equal_answers_give_equal_bytes(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, find_answers())
        time.sleep(2.1)  # the times in a zip have a step of two seconds
    for file in (ANSWERS, ANSWERS_BY_THRESHOLD):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_the_counts_read_back(tmp_path):
    counts = write(tmp_path, find_answers())
    text = (tmp_path / ANSWERS_BY_THRESHOLD).read_bytes()
    assert ThresholdCounts.model_validate_json(text) == counts and len(text) < 30_000


def pack(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def make_arrays(**changes):
    arrays = {
        "keys": np.frombuffer(b"ab", np.uint8),
        "key_ends": np.array([1, 2]),
        "labels": np.array([0, 1], np.int32),
        "answers": np.array([0, 1], np.int32),
        "confidences": np.array([0.5, 1], np.float16),
        "probabilities": np.zeros((2, 2), np.float16),
    }
    return {name: array for name, array in (arrays | changes).items() if array is not None}


def compress(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as read, zipfile.ZipFile(file, "w", 8) as written:
        for name in read.namelist():
            written.writestr(name, read.read(name))
    return file.getvalue()


def damage(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content and len(old) == len(new)
    return content.replace(old, new)


HOSTILE = {
    "empty": b"",
    "no zip": b"PK\x03\x04" + bytes(100),
    "cut": pack(**make_arrays())[:-40],
    "compressed": compress(pack(**make_arrays(keys=np.zeros(10**6, np.uint8)))),
    "pickled": pack(**make_arrays(keys=np.array([object], object))),
    "missing": pack(**make_arrays(answers=None)),
    "too few rows": pack(**make_arrays(answers=np.zeros(1, np.int32))),
    "another type": pack(**make_arrays(labels=np.zeros(2, np.float16))),
    "no such class": pack(**make_arrays(answers=np.array([0, 2], np.int32))),
    "negative class": pack(**make_arrays(labels=np.array([0, -1], np.int32))),
    "too wide": pack(**make_arrays(labels=np.zeros((2, 2), np.int32))),
    "other classes": pack(**make_arrays(probabilities=np.zeros((2, 3), np.float16))),
    "huge": damage(pack(**make_arrays()), b"(2, 2)", b"(9,99)"),
    "bit flip": damage(
        pack(**make_arrays()), b"\x00\x00\x01\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00"
    ),
}


def test_an_undamaged_file_of_this_form_is_read(tmp_path):
    (tmp_path / ANSWERS).write_bytes(pack(**make_arrays()))
    assert read_answers(open_path(str(tmp_path / ANSWERS)), 2).read_key(1) == "b"


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_of_answers_is_one_error_with_its_name(tmp_path, content):
    (tmp_path / ANSWERS).write_bytes(content)
    with pytest.raises(DataError, match=r"predictions\.npz: not the answers of an evaluation"):
        read_answers(open_path(str(tmp_path / ANSWERS)), 2)


def test_the_ends_of_keys_lead_nowhere_else(tmp_path):
    ends = np.array([-(2**62), 2**62])
    (tmp_path / ANSWERS).write_bytes(pack(**make_arrays(key_ends=ends)))
    read = read_answers(open_path(str(tmp_path / ANSWERS)), 2)
    assert [read.read_key(0), read.read_key(1)] == ["", "ab"]
