"""Data sets that reference the shards of earlier ones: what is written, and what a fault does."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from manifests import list_again

from pipeline_ops.config.train import InputOptions
from pipeline_ops.contract.dataset import (
    parse_generation,
)
from pipeline_ops.contract.manifest import (
    NAME,
    find_damage,
)
from pipeline_ops.errors import ExitCode, MachineError
from pipeline_ops.job.local_inputs import open_host_dataset
from pipeline_ops.storage.local_files import withdraw_folder
from pipeline_ops.system.disk_cache import HostCache


def find_all_damage(outcome) -> list[str]:
    return find_damage(outcome.artifact / NAME, outcome.manifest, checksums=True)


def find_other_holders(outcome) -> set[str]:
    """The other artifacts that hold files of this one."""
    places = [file.stored_at for file in outcome.manifest.files if file.stored_at]
    return {place.partition("/")[0] for place in places} - {outcome.artifact.name}


def list_own_shards(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.tfrecord")}


def add(number: int) -> Callable:
    return lambda pipeline, encode: pipeline.add(f"cat/{number}.png", encode(seed=number))


def change(pipeline, encode) -> None:
    pipeline.add("dog/002.png", encode(seed=101))


def remove(pipeline, encode) -> None:
    (pipeline.raw / "dog" / "004.png").unlink()


def leave(pipeline, encode) -> None:
    """Nothing changes but a rule, so that there is another data set of the same shards."""


@pytest.mark.parametrize(
    ("changes", "builders"),
    [
        # For each data set: the numbers of the data sets that have built its shards.
        ((leave,), [{1}, {1}]),
        ((remove,), [{1}, {1}]),
        ((change,), [{1}, {1, 2}]),
        ((add(100),), [{1}, {1, 2}]),
        ((add(100), add(101)), [{1}, {1, 2}, {1, 2, 3}]),
        ((add(100), remove, leave), [{1}, {1, 2}, {1, 2}, {1, 2}]),
        ((remove, change, leave, add(100)), [{1}, {1}, {1, 3}, {1, 3}, {1, 3, 5}]),
    ],
    ids=lambda value: (
        "-".join(change.__name__.strip("<>") for change in value)
        if isinstance(value, tuple)
        else None
    ),
)
def test_each_shard_is_written_once_and_referenced_where_it_lies(
    animals, encode, changes, builders
):
    outcomes, holders = [animals.make()], {}
    for number, change_files in enumerate(changes):
        change_files(animals, encode)
        outcomes.append(animals.make(incremental__max_fraction=0.5 + number / 100))
    for number, (outcome, built) in enumerate(zip(outcomes, builders, strict=True), 1):
        folder = outcome.artifact
        holders |= dict.fromkeys(list_own_shards(folder), number)
        assert {holders[name] for name in outcome.shards} == built
        for name in outcome.shards:
            holder = outcomes[holders[name] - 1].artifact
            is_own = holder == folder
            stored_at = outcome.manifest.get_file(name).stored_at
            assert stored_at == (None if is_own else f"{holder.name}/{name}")
        others = {outcomes[builder - 1].artifact.name for builder in built} - {folder.name}
        assert find_other_holders(outcome) == others
        assert {path.stat().st_nlink for path in folder.iterdir()} == {1}
        assert find_all_damage(outcome) == []


def test_a_new_data_set_takes_the_bytes_of_its_new_files_only(animals, encode):
    def measure(outcome) -> int:
        files = [path for path in outcome.artifact.iterdir() if path.name != NAME]
        return sum(path.stat().st_size for path in files)

    first = animals.make()
    change(animals, encode)
    second = animals.make()
    new = [file for file in second.manifest.files if file.stored_at is None]
    assert measure(second) == sum(file.num_bytes for file in new)
    assert not set(first.shards) & {file.path for file in new}


def test_references_and_copies_have_the_same_digest(animals, encode, tmp_path):
    animals.make()
    change(animals, encode)
    second = animals.make()
    whole = tmp_path / "whole"
    shutil.copytree(second.artifact, whole)
    for file in second.manifest.files:
        shutil.copy(file.locate(second.artifact), whole / file.path)
    copied = second.manifest.model_copy(update={"files": list_again(whole, second.manifest)})
    assert copied.files != second.manifest.files
    assert copied.digest == second.manifest.digest


# Faults -------------------------------------------------------------------------------------------


def truncate(shard: Path) -> None:
    os.truncate(shard, 10)


def remove_folder(shard: Path) -> None:
    shutil.rmtree(shard.parent)


@pytest.mark.parametrize("damage", [Path.unlink, truncate, remove_folder])
def test_without_a_referenced_shard_everything_is_built_anew(animals, encode, damage):
    first = animals.make()
    change(animals, encode)
    second = animals.make()
    shard = first.artifact / next(iter(first.shards))
    damage(shard)
    found = find_damage(second.artifact / NAME, second.manifest)[0]
    assert found.startswith(f"{shard if shard.parent.exists() else first.artifact}")
    assert f" (referenced by {second.artifact / NAME}) " in found
    plan = animals.plan()
    assert plan.reason.endswith(f"the last artifact is damaged: {found}")
    assert "base" not in plan.request.inputs
    third = animals.make()
    assert find_other_holders(third) == set()
    assert find_all_damage(third) == []
    assert {parse_generation(name) for name in third.shards} == {1}
    assert animals.plan().is_cached


def test_the_rebuild_of_a_data_set_heals_those_that_reference_it(animals, encode):
    first = animals.make()
    content = (animals.raw / "dog" / "002.png").read_bytes()
    change(animals, encode)
    second = animals.make()
    truncate(first.artifact / next(iter(first.shards)))
    assert len(find_all_damage(second)) == 1
    animals.add("dog/002.png", content)
    assert animals.make().artifact == first.artifact
    assert find_all_damage(first) == find_all_damage(second) == []


def test_a_rebuild_keeps_the_files_that_others_reference_until_it_is_done(animals, encode):
    first = animals.make()
    change(animals, encode)
    second = animals.make()
    shards = second.shards
    add(100)(animals, encode)
    third = animals.make()
    assert find_other_holders(third) == {first.artifact.name, second.artifact.name}
    (second.artifact / "data.html").unlink()
    os.utime(first.artifact / NAME)  # as after its restoration: so it is the newest again
    (animals.raw / "cat" / "100.png").unlink()
    plan = animals.plan()
    assert plan.damage == (f"{second.artifact}/data.html is missing",)
    withdraw_folder(plan.manifest.parent.local, plan.manifest.name)
    assert not plan.manifest.exists()
    # The job fails and is started again.
    (animals.raw / "dog" / "002.png").rename(animals.folder / "aside")
    assert animals.run(plan).exit_code is ExitCode.RETRY
    assert find_all_damage(third) == []
    (animals.folder / "aside").rename(animals.raw / "dog" / "002.png")
    assert animals.make().artifact == second.artifact
    assert second.shards == shards
    assert find_all_damage(second) == find_all_damage(third) == []
    folders = {path for path in first.artifact.parent.iterdir() if path.is_dir()}
    assert folders == {first.artifact, second.artifact, third.artifact}


def test_a_shard_that_goes_during_the_job_is_named_and_the_retry_builds_everything(animals, encode):
    first = animals.make()
    change(animals, encode)
    plan = animals.plan()
    shard = first.artifact / next(iter(first.shards))
    shard.unlink()
    outcome = animals.run(plan)
    assert outcome.exit_code is ExitCode.RETRY
    assert f"{shard} (referenced by {outcome.artifact / NAME}) is missing" in outcome.message
    assert not outcome.artifact.exists()
    assert find_all_damage(animals.make()) == []


def test_a_flipped_bit_in_a_referenced_shard_stops_a_reader_and_its_remedy_helps(
    animals, encode, tmp_path
):
    first = animals.make()
    change(animals, encode)
    second = animals.make()
    shard = first.artifact / next(iter(first.shards))
    data = bytearray(shard.read_bytes())
    data[20] ^= 1
    shard.write_bytes(data)
    uri, cache = str(second.artifact / NAME), HostCache(tmp_path / "host", 1 << 30)
    with pytest.raises(MachineError, match="Remove the damaged file. Clear the task") as error:
        open_host_dataset(uri, InputOptions(), cache, print)
    assert str(shard) in str(error.value)
    shard.unlink()
    third = animals.make()
    assert find_all_damage(third) == []
    open_host_dataset(str(third.artifact / NAME), InputOptions(), cache, print)
