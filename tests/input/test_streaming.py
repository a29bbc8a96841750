"""Training from shards in a store: the same examples, within a bounded cache."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from manifests import list_again

from pipeline_ops.config.train import AugmentOptions, InputOptions
from pipeline_ops.contract.dataset import KEY, RECORD_LENGTHS, format_record_lengths
from pipeline_ops.contract.manifest import read_manifest, write_manifest
from pipeline_ops.errors import MachineError
from pipeline_ops.job.local_inputs import open_host_dataset
from pipeline_ops.storage.open_store import open_path
from pipeline_ops.storage.store_path import StorePath
from pipeline_ops.storage.tfrecord import FRAME_BYTES
from pipeline_ops.system.disk_cache import HostCache

pytest_plugins = ["publishers"]

BATCH, STEPS = 60, 40
UNUSED = HostCache(Path("unused"), 0)
REMOVED = {"train-00000-of-00004.tfrecord": [0, 3, 174], "train-00003-of-00004.tfrecord": [5, 6]}


@pytest.fixture(scope="module")
def stored(dataset, tmp_path_factory) -> str:
    """The data set of the tests as preprocess writes it now: with the lengths of its records, and
    some of them removed."""
    from pipeline_ops.input.streaming import read_record_offsets

    folder = tmp_path_factory.mktemp("stored") / "fingerprint"
    shutil.copytree(Path(dataset).parent, folder)
    manifest = read_manifest(dataset)
    lengths = {}
    for file in manifest.files:
        ends = [*read_record_offsets(folder / file.path)[1:], file.num_bytes]
        lengths[file.path] = (np.diff([0, *ends]) - FRAME_BYTES).tolist()
    (folder / RECORD_LENGTHS).write_bytes(format_record_lengths(lengths))
    counts = manifest.figures["num_examples"]
    removed = {"num_examples": counts | {"train": counts["train"] - 5}, "removed": REMOVED}
    files = list_again(folder, manifest)
    write_manifest(
        folder,
        manifest.model_copy(update={"files": files, "figures": manifest.figures | removed}),
    )
    return str(folder / "manifest.json")


@pytest.fixture
def shard_bytes(stored) -> int:
    return max(file.num_bytes for file in read_manifest(stored).files if file.num_examples)


def open_train(uri: str, cache: HostCache, budget: int | None = None, is_streamed=True):
    from pipeline_ops.input.reading import open_split

    options = InputOptions(local_copy="always" if is_streamed else "auto")
    dataset = open_host_dataset(uri, options, cache, print)
    return open_split(dataset, "train", cache.limit_bytes if budget is None else budget)


def parse(records):
    import tensorflow as tf

    parsed = tf.io.parse_example(records, {KEY: tf.io.FixedLenFeature([], tf.string)})
    return records, parsed[KEY]


def open_source(split, window):
    from pipeline_ops.input.batches import make_order
    from pipeline_ops.input.sources import EncodedSource, StreamedSource

    if split.remote is None:
        return EncodedSource(split, parse, UNUSED)
    return StreamedSource(split, split.remote, parse, make_order(split, 3, window))


def stream(split, window=None, start=0, count=STEPS, worker=0, workers=1, source=None):
    """Yields the keys of each batch."""
    from pipeline_ops.input.batches import build_training_dataset, find_worker_slice

    own = source or open_source(split, window)
    part = find_worker_slice(worker, workers, BATCH)
    batches = build_training_dataset(split, own, BATCH, part, 3, start, window=window)
    try:
        for _, keys in batches.take(count).as_numpy_iterator():
            yield keys.tolist()
    finally:
        if source is None and split.remote is not None:
            own.close()


def get_cache_folder(folder: Path) -> Path:
    return folder / "trainyard-cache" / str(os.geteuid())


def measure(folder: Path) -> int:
    """The bytes on the disk below a folder. A reserved file without content has none."""
    total = 0
    for parent, _, names in os.walk(folder):  # unlike rglob it accepts that a folder vanishes
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += 0 if name == ".reserved" else os.lstat(os.path.join(parent, name)).st_size
    return total


@pytest.fixture(scope="module")
def expected(stored, tmp_path_factory):
    """The keys of the batches from a local folder, by the window."""
    cache = HostCache(tmp_path_factory.mktemp("local"), 1 << 30)
    split = open_train(stored, cache, is_streamed=False)
    return {window: list(stream(split, window)) for window in (None, 1, 2)}


@pytest.mark.parametrize(
    ("window", "num_shards"), [(None, 0), (None, 10), (1, 0), (1, 1.5), (2, 1.5), (2, 10)]
)
def test_the_batches_are_those_of_a_local_folder_whatever_fits_into_the_cache(
    stored, expected, tmp_path, shard_bytes, window, num_shards
):
    limit = max(1, int(num_shards * shard_bytes))
    split = open_train(stored, HostCache(tmp_path / "host", limit))
    largest = 0
    for keys, wanted in zip(stream(split, window), expected[window], strict=True):
        assert keys == wanted
        largest = max(largest, measure(tmp_path / "host"))
    assert largest <= limit
    assert (largest > 0) == (num_shards > 0)


@pytest.mark.parametrize(("workers", "window"), [(1, None), (2, 2), (3, None), (3, 2)])
def test_a_restart_goes_on_with_the_next_example_for_any_number_of_workers(
    stored, expected, tmp_path, shard_bytes, window, workers
):
    for start in (0, 7, 13, 29):
        split = open_train(stored, HostCache(tmp_path / "host", int(2.5 * shard_bytes)))
        parts = [
            list(stream(split, window, start, 5, worker, workers)) for worker in range(workers)
        ]
        assert [sum(keys, []) for keys in zip(*parts, strict=True)] == expected[window][
            start : start + 5
        ]


def test_one_source_goes_back_to_an_earlier_step(stored, expected, tmp_path, shard_bytes):
    """After a divergence."""
    split = open_train(stored, HostCache(tmp_path / "host", 2 * shard_bytes))
    source = open_source(split, 1)
    for start in (20, 3, 11):
        found = list(stream(split, 1, start, 4, source=source))
        assert found == expected[1][start : start + 4]
    source.close()


def test_the_examples_of_a_step_are_read_for_a_report(stored, tmp_path):
    from pipeline_ops.input.batches import read_step_examples

    local = open_train(stored, HostCache(tmp_path / "local", 1 << 30), is_streamed=False)
    streamed = open_train(stored, HostCache(tmp_path / "host", 1 << 30))
    found = []
    for split in (local, streamed):
        source = open_source(split, 2)
        found.append(read_step_examples(split, BATCH, 3, 5, source, window=2))
    source.close()
    assert found[0] == found[1] and len(found[0]) == BATCH


def test_augmented_images_are_the_same(stored, tmp_path):
    from pipeline_ops.input.augment import build_augmentation
    from pipeline_ops.input.batches import build_training_dataset, make_order
    from pipeline_ops.input.sources import EncodedSource, StreamedSource
    from pipeline_ops.models.classification import Classification

    parse_images = Classification((16, 16, 1)).parse
    local = open_train(stored, HostCache(tmp_path / "local", 1 << 30), is_streamed=False)
    streamed = open_train(stored, HostCache(tmp_path / "host", 1 << 30))
    source = StreamedSource(streamed, streamed.remote, parse_images, make_order(streamed, 3, None))
    options = AugmentOptions(flip_left_right=True, shift=0.2, brightness=0.1)
    found = []
    for split, own in ((local, EncodedSource(local, parse_images, UNUSED)), (streamed, source)):
        changes = build_augmentation(options, "classification", split.num_examples)
        batches = build_training_dataset(split, own, BATCH, range(10, 40), 3, 5, changes)
        found.append([(x.numpy(), y.numpy()) for x, y in batches.take(6)])
        assert batches.element_spec[0].shape == (30, 16, 16, 1)
    source.close()
    for (x, y), (u, v) in zip(*found, strict=True):
        assert (x == u).all() and (y == v).all()


def test_validation_reads_every_example_once_over_all_workers(stored, tmp_path, shard_bytes):
    from pipeline_ops.input.reading import read_batches

    local = open_train(stored, HostCache(tmp_path / "local", 1 << 30), is_streamed=False)
    wanted = list(read_batches(local, 64).unbatch().as_numpy_iterator())
    for budget in (0, int(1.5 * shard_bytes), 1 << 30):
        split = open_train(stored, HostCache(tmp_path / str(budget), 1 << 30), budget)
        assert list(read_batches(split, 64).unbatch().as_numpy_iterator()) == wanted
        for worker in range(3):
            batches = read_batches(split, 64, worker, 3).as_numpy_iterator()
            assert [record for batch in batches for record in batch] == wanted[worker::3]
        split.release()


@pytest.mark.training
@pytest.mark.parametrize("window", [None, 2])
def test_of_a_data_set_without_lengths_each_shard_is_fetched_once_to_find_them(
    dataset, tmp_path, shard_bytes, window
):
    local = open_train(dataset, HostCache(tmp_path / "local", 1 << 30), is_streamed=False)
    wanted = list(stream(local, window, count=5))
    split = open_train(dataset, HostCache(tmp_path / "host", int(1.5 * shard_bytes)))
    assert list(stream(split, window, count=5)) == wanted


@dataclasses.dataclass(frozen=True)
class WatchedPath:
    """A path in a store, whose reads are counted, and changed or held up."""

    path: StorePath
    calls: list
    change: object = None
    gate: threading.Event | None = None

    def __str__(self) -> str:
        return str(self.path)

    def download(self, target: Path, num_bytes: int):
        self.calls.append(("download", self.path.name))
        if self.gate:
            self.gate.wait()
        found = self.path.download(target, num_bytes)
        if self.change and self.change(len(self.calls)):
            content = bytearray(target.read_bytes())
            content[100] ^= 1
            target.write_bytes(content)
            return dataclasses.replace(found, sha256="0" * 64)
        return found

    def read_range(self, start: int, num_bytes: int) -> bytes:
        self.calls.append(("range", self.path.name))
        content = self.path.read_range(start, num_bytes)
        if self.change and self.change(len(self.calls)):
            return content[:-1] + bytes([content[-1] ^ 1])
        return content


def watch(split, **options):
    """The split with watched paths, and the list of the calls."""
    calls: list = []
    shards = tuple(
        dataclasses.replace(shard, path=WatchedPath(shard.path, calls, **options))
        for shard in split.remote.shards
    )
    remote = dataclasses.replace(split.remote, shards=shards)
    return dataclasses.replace(split, remote=remote), calls


def test_the_first_batch_does_not_wait_for_shards(stored, expected, tmp_path):
    gate = threading.Event()
    split, calls = watch(open_train(stored, HostCache(tmp_path / "host", 1 << 30)), gate=gate)
    batches = stream(split)
    assert next(batches) == expected[None][0]
    assert ("range", "train-00000-of-00004.tfrecord") in calls
    gate.set()
    batches.close()


def test_what_an_earlier_run_has_fetched_is_not_fetched_again(stored, expected, tmp_path):
    cache = HostCache(tmp_path / "host", 1 << 30)
    split, calls = watch(open_train(stored, cache))
    source = open_source(split, 2)
    assert list(stream(split, 2, source=source)) == expected[2]
    while len([kind for kind, _ in calls if kind == "download"]) < 4:
        time.sleep(0.01)
    source.close()
    split, calls = watch(open_train(stored, HostCache(tmp_path / "host", 1 << 30)))
    assert list(stream(split, 2)) == expected[2]
    assert [kind for kind, _ in calls if kind == "download"] == []


def test_workers_of_a_host_fetch_each_shard_once(stored, expected, tmp_path):
    split, calls = watch(open_train(stored, HostCache(tmp_path / "host", 1 << 30)))
    found: dict[int, list] = {}

    def work(worker: int) -> None:
        found[worker] = list(stream(split, 2, 0, STEPS, worker, 3))

    threads = [threading.Thread(target=work, args=[worker]) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    parts = [found[worker] for worker in range(3)]
    assert [sum(keys, []) for keys in zip(*parts, strict=True)] == expected[2]
    downloads = [name for kind, name in calls if kind == "download"]
    assert len(downloads) == len(set(downloads)) <= 4


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_damage_on_the_way_is_repaired_by_a_second_try(stored, expected, tmp_path, budget):
    def is_first(number: int) -> bool:
        return number == 1

    cache = HostCache(tmp_path / "host", 1 << 30)
    split, calls = watch(open_train(stored, cache, budget), change=is_first)
    assert list(stream(split, 2, count=8)) == expected[2][:8]
    assert len(calls) > 1


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_damage_in_the_store_is_an_error_that_names_the_file_and_the_cure(stored, tmp_path, budget):
    from pipeline_ops.input.streaming import raise_read_errors

    shutil.copytree(Path(stored).parent, tmp_path / "store" / "fingerprint")
    shard = tmp_path / "store" / "fingerprint" / "train-00002-of-00004.tfrecord"
    content = bytearray(shard.read_bytes())
    for start in range(100, len(content), 100):
        content[start] ^= 1
    shard.write_bytes(content)
    split = open_train(
        str(shard.with_name("manifest.json")), HostCache(tmp_path / "host", 1 << 30), budget
    )
    with (
        pytest.raises(MachineError, match=f"{shard}.*Clear the task preprocess"),
        raise_read_errors(),
    ):
        list(stream(split, 2, count=30))
    assert not any(get_cache_folder(tmp_path / "host").glob(f"*{shard.name}*"))


def test_a_shard_that_vanished_is_named_also_after_an_error_of_a_reader_that_is_closed(
    stored, tmp_path
):
    from pipeline_ops.input.streaming import _errors, raise_read_errors

    shutil.copytree(Path(stored).parent, tmp_path / "store" / "fingerprint")
    shard = tmp_path / "store" / "fingerprint" / "train-00002-of-00004.tfrecord"
    shard.unlink()
    split = open_train(
        str(shard.with_name("manifest.json")), HostCache(tmp_path / "host", 1 << 30), 0
    )
    with pytest.raises(MachineError, match=f"{shard} is missing"), raise_read_errors():
        _errors.append(MachineError("an error of another reader"))
        list(stream(split, count=1))


@pytest.mark.parametrize("window", [None, 2])
def test_shards_in_s3_are_streamed_also_those_that_other_data_sets_hold(
    stored, s3_uri, expected, tmp_path, shard_bytes, window
):
    holder, own = f"{s3_uri}/{'a' * 32}", f"{s3_uri}/{'b' * 32}"
    manifest = read_manifest(stored)
    files = [
        file.model_copy(update={"stored_at": f"{'a' * 32}/token/{file.path}"})
        if file.path.startswith("train-0000")
        else file
        for file in manifest.files
    ]
    for file in files:
        place = f"{s3_uri}/{file.stored_at}" if file.stored_at else f"{own}/{file.path}"
        open_path(place).upload(Path(stored).parent / file.path)
    content = manifest.model_copy(update={"files": files}).model_dump_json().encode()
    open_path(f"{own}/manifest.json").write(content)
    split = open_train(
        f"{own}/manifest.json", HostCache(tmp_path / "host", int(2.5 * shard_bytes)), None
    )
    assert split.paths[0].startswith(f"{holder}/token/")
    assert list(stream(split, window)) == expected[window]


def test_a_link_in_a_folder_is_not_followed(stored, tmp_path):
    """F7."""
    from pipeline_ops.input.streaming import raise_read_errors

    shutil.copytree(Path(stored).parent, tmp_path / "store" / "fingerprint")
    shard = tmp_path / "store" / "fingerprint" / "train-00002-of-00004.tfrecord"
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    for budget in (0, 1 << 30):
        cache = HostCache(tmp_path / f"host-{budget}", 1 << 30)
        split = open_train(str(shard.with_name("manifest.json")), cache, budget)
        with (
            pytest.raises(MachineError, match=f"{shard} is a link.*Clear the task preprocess"),
            raise_read_errors(),
        ):
            list(stream(split, 2, count=40))


def test_a_small_split_is_held_in_memory_and_a_larger_one_is_streamed(stored, tmp_path):
    from pipeline_ops.input.batches import make_order
    from pipeline_ops.input.sources import MemorySource, StreamedSource, open_example_source
    from pipeline_ops.models.classification import Classification

    cache, said = HostCache(tmp_path / "host", 1 << 30), []
    split = open_train(stored, cache)
    for num_bytes, kind in ((split.num_bytes, MemorySource), (1 << 30, StreamedSource)):
        sized = dataclasses.replace(split, num_bytes=num_bytes)
        source = open_example_source(
            sized,
            Classification((16, 16, 1)).parse,
            InputOptions(),
            cache,
            "1",
            said.append,
            make_order(split, 3, None),
        )
        assert isinstance(source, kind)
    assert "decoded images are not cached, because the shards are streamed" in said


@contextlib.contextmanager
def limit_descriptors(soft: int):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_held_shards_take_a_quarter_of_the_files_that_a_process_may_open(stored, tmp_path):
    from pipeline_ops.input.streaming import ShardFetcher

    remote = open_train(stored, HostCache(tmp_path / "host", 1 << 30)).remote
    with limit_descriptors(16):
        fetcher = ShardFetcher(remote.shards, remote.cache, remote.budget_bytes)
    fetcher.set_targets([3, 1, 0, 2])
    assert sorted(fetcher.get(range(4), wait_seconds=60)) == [1, 3], "two, with two files each"
    fetcher.close()


def test_the_shards_to_fetch_are_chosen_again_only_if_the_order_changes(stored, tmp_path):
    from pipeline_ops.input.batches import make_order
    from pipeline_ops.input.streaming import ShardFetcher

    class CountedShards(list):
        num_reads = 0

        def __getitem__(self, index):
            self.num_reads += 1
            return super().__getitem__(index)

    split = open_train(stored, HostCache(tmp_path / "host", 1 << 30))
    shards, order = CountedShards(split.remote.shards), make_order(split, 3, None)
    fetcher = ShardFetcher(shards, split.remote.cache, budget_bytes=0)
    for position in range(0, 600, BATCH):
        fetcher.set_targets(order.list_upcoming_shards(position))
    assert shards.num_reads == 1
    fetcher.set_targets([1, 0])
    assert shards.num_reads == 2


def test_the_memory_of_a_sequential_reader_does_not_grow_with_the_square_of_the_shards(
    stored, tmp_path
):
    split = open_train(stored, HostCache(tmp_path / "host", 1 << 30))
    many = dataclasses.replace(split.remote, shards=split.remote.shards * 500)
    tracemalloc.start()
    reader = many.sequential_reader
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    reader.close()
    assert peak_bytes < 4 << 20


_WORKER = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from input.test_streaming import open_train, stream
from pipeline_ops.system.disk_cache import HostCache

split = open_train({uri!r}, HostCache(Path({cache!r}), {limit}))
for keys in stream(split, {window}, {start}, 1 << 20):
    print(b" ".join(keys).decode(), flush=True)
"""


@pytest.mark.training
@pytest.mark.parametrize("window", [None, 2])
def test_a_killed_worker_is_continued_with_the_next_example(
    stored, expected, tmp_path, shard_bytes, window
):
    """Each process is killed at some step. The next one has the cache that it left."""
    found: list[list[bytes]] = []
    while len(found) < 30:
        code = _WORKER.format(
            path=[str(Path(__file__).resolve().parents[1]), *sys.path],
            uri=stored,
            cache=str(tmp_path / "host"),
            limit=int(1.5 * shard_bytes),
            window=window,
            start=len(found),
        )
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as worker:
            lines = (line for line in worker.stdout if not line.startswith(b"streaming"))
            found += [line.split() for line, _ in zip(lines, range(13), strict=False)]
            worker.kill()
    assert found == expected[window][: len(found)]
    assert measure(tmp_path / "host") <= 1.5 * shard_bytes
