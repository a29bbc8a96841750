"""The shards that are taken over from the previous data set, and those that are built."""

from __future__ import annotations

import dataclasses
import random

import pytest

from beam_jobs.planning.generations import (
    BaseDataset,
    Delta,
    compute_annotation_digest,
    plan_delta,
)
from beam_jobs.planning.plan import Record
from beam_jobs.planning.splits import split_records
from beam_jobs.stages.stage import Box
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.contract.dataset import IndexEntry, parse_generation
from pipeline_ops.raw_data.raw_file import RawFile, format_digest

CLASSES = ["a", "b"]


def config(**incremental) -> Preprocess:
    return Preprocess.model_validate(
        {
            "source": {"type": "image_folder", "path": "raw"},
            "stages": [{"name": "decode"}],
            "shards": 4,
            "split": {"train": 0.6, "validation": 0.2, "test": 0.2, "seed": 7},
            "incremental": incremental,
        }
    )


def record(number: int, content: int | None = None, label: str | None = None, **keys) -> Record:
    label = label or CLASSES[number % 2]
    content = number if content is None else content
    return Record(RawFile(f"{label}/{number}.png", 1000, content), label, **keys)


def plan(records, base: BaseDataset | None, **incremental) -> Delta:
    return plan_delta(split_records(records, config().split), base, config(**incremental), CLASSES)


def base_after(delta: Delta) -> BaseDataset:
    """The data set that a delta makes, if each record becomes one example."""
    entries = {entry.key: entry for entry in delta.unchanged}
    for shard in delta.shards:
        for position, member in enumerate(shard.records):
            entries[member.key] = IndexEntry(
                member.key,
                format_digest(member.file.digest),
                compute_annotation_digest(member),
                shard.split,
                shard.name,
                position,
                1,
            )
    return BaseDataset(entries, delta.kept, CLASSES, delta.figures["generation"])


def readable(base: BaseDataset, delta: Delta) -> dict[str, tuple[str, str]]:
    """The view of a reader of the data set: content and annotation by key.
    Fails if something comes twice."""
    slots = {
        (entry.shard, entry.position): (entry.key, entry.content, entry.annotation)
        for entry in base.entries.values()
    }
    found = [
        content
        for (shard, position), content in slots.items()
        if shard in delta.kept and position not in delta.kept[shard]
    ]
    found += [
        (member.key, format_digest(member.file.digest), compute_annotation_digest(member))
        for shard in delta.shards
        for member in shard.records
    ]
    assert len({key for key, *_ in found}) == len(found)
    return {key: rest for key, *rest in found}


FIRST = [record(number) for number in range(200)]


@pytest.fixture
def base() -> BaseDataset:
    return base_after(plan(FIRST, None))


def test_without_a_data_set_before_everything_is_built():
    delta = plan(FIRST, None)
    assert sum(len(shard.records) for shard in delta.shards) == 200
    assert (dict(delta.kept), delta.unchanged, delta.figures["generation"]) == ({}, (), 1)
    assert "there is no data set to continue" in delta.reason


def test_of_equal_records_nothing_is_built(base):
    delta = plan(FIRST, base)
    assert (delta.shards, delta.figures["generation"]) == ((), 1)
    assert len(delta.kept) == 12
    assert not any(delta.kept.values())
    assert delta.reason == "0 new, 0 changed, 0 gone, 200 unchanged"


CHANGES = {
    "a new record": ([*FIRST, record(200)], 1, 0),
    "other content": ([*FIRST[1:], record(0, 1000)], 1, 1),
    "another label": ([*FIRST[1:], Record(FIRST[0].file, "b")], 1, 1),
    "a record gone": (FIRST[1:], 0, 1),
    "another name": ([*FIRST[2:], record(0), record(201, 1)], 1, 1),
    "another split": ([*FIRST[1:], dataclasses.replace(FIRST[0], split="test")], 1, 1),
    "boxes": ([*FIRST[1:], dataclasses.replace(FIRST[0], boxes=(Box(0, 0, 1, 1, "a"),))], 1, 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_what_changed_is_built_and_what_it_was_is_skipped(base, change):
    records, num_built, num_skipped = CHANGES[change]
    delta = plan(records, base)
    assert sum(len(shard.records) for shard in delta.shards) == num_built
    assert sum(map(len, delta.kept.values())) == num_skipped
    assert {parse_generation(shard.name) for shard in delta.shards} <= {2}


def test_a_shard_of_which_nothing_is_left_is_dropped(base):
    shard = next(entry.shard for entry in base.entries.values())
    rest = [member for member in FIRST if base.entries[member.key].shard != shard]
    delta = plan(rest, base)
    assert shard not in delta.kept
    assert len(delta.kept) == 11


def test_another_class_makes_everything_anew(base):
    delta = plan_delta(split_records(FIRST, config().split), base, config(), [*CLASSES, "c"])
    assert not delta.kept
    assert delta.reason == "rebuilds everything: the classes changed from a, b to a, b, c"


@pytest.mark.parametrize("num_new, is_anew", [(60, False), (110, True)])
def test_a_large_share_of_new_records_makes_everything_anew(base, num_new, is_anew):
    delta = plan([record(number) for number in range(200 + num_new)], base)
    assert delta.reason.startswith("rebuilds everything: ") is is_anew
    assert bool(delta.kept) is not is_anew


@pytest.mark.parametrize("num_gone, is_anew", [(60, False), (61, True)])
def test_a_large_share_of_removed_records_makes_everything_anew(base, num_gone, is_anew):
    assert plan(FIRST[num_gone:], base).reason.startswith("rebuilds everything: ") is is_anew


def test_too_many_generations_make_everything_anew(base):
    for number in range(200, 208):
        delta = plan([record(index) for index in range(number + 1)], base)
        base = base_after(delta)
    assert delta.reason == "rebuilds everything: it would have 9 generations, more than 8"


def test_everything_anew_is_what_a_first_run_would_make(base):
    records = [record(number) for number in range(100, 400)]
    assert plan(records, base).shards == plan(records, None).shards


def test_a_max_fraction_of_0_makes_everything_anew_at_every_change(base):
    assert plan(FIRST[1:], base, max_fraction=0.0).reason.startswith("rebuilds everything: ")
    assert not plan(FIRST, base, max_fraction=0.0).shards


@pytest.mark.parametrize("seed", range(20))
def test_after_any_number_of_changes_a_reader_gets_exactly_the_records_there_are(seed):
    """Random lives of a data set: records come, go, change and come back."""
    chance, base, records = (
        random.Random(seed),
        None,
        {number: record(number) for number in range(200)},
    )
    for _ in range(12):
        delta = plan(records.values(), base)
        wanted = {
            member.key: [format_digest(member.file.digest), compute_annotation_digest(member)]
            for member in records.values()
        }
        assert readable(base or BaseDataset({}, {}, CLASSES, 1), delta) == wanted
        base = base_after(delta)
        for number in chance.sample(range(260), 8):
            if number in records and chance.random() < 0.5:
                del records[number]
            else:
                records[number] = record(number, chance.randint(0, 3))
    assert max(map(parse_generation, base_after(delta).removed), default=1) >= 1


def test_a_plan_does_not_depend_on_the_order_of_the_records(base):
    records = [record(number) for number in range(5, 230)]
    shuffled = random.Random(3).sample(records, len(records))
    one, other = plan(records, base), plan(shuffled, base)
    assert (one.shards, one.kept, {e.key for e in one.unchanged}) == (
        other.shards,
        other.kept,
        {e.key for e in other.unchanged},
    )
