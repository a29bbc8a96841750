"""Building one shard, without Beam."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.exchange import Exchange, StoppedByDriver
from beam_jobs.output.raw_test import RawTestQuota
from beam_jobs.output.shard import ShardBuilder, ShardBuildSpec
from beam_jobs.planning.plan import Record, ShardPlan
from pipeline_ops.config.preprocess import StageConfig
from pipeline_ops.errors import MachineError
from pipeline_ops.raw_data.local import list_raw_files
from pipeline_ops.storage.open_store import open_root


class Bench:
    """A builder, and the plan of one shard of everything in the folder `raw`."""

    def __init__(self, folder: Path):
        self.raw, self.target = folder / "raw", folder / "target"
        self.target.mkdir()
        self.listing = list_raw_files(self.raw, open_root(folder) / "listings")
        self.exchange = Exchange(open_root(folder) / "exchange")
        spec = ShardBuildSpec(
            self.raw,
            open_root(self.target),
            (StageConfig(name="decode", parameters={"channels": 1}),),
            ("cat", "dog"),
            RawTestQuota(0, 0, 0),
            folder / "tiny.yaml",
        )
        self.builder = ShardBuilder(spec, self.exchange)

    def build(self):
        records = tuple(Record(file, file.key.split("/")[0]) for file in self.listing.files)
        return self.builder.build(ShardPlan("train", "train-00000-of-00001.tfrecord", records))


@pytest.fixture
def raw(tmp_path: Path, encode) -> Path:
    for index, name in enumerate(["cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"]):
        (tmp_path / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).write_bytes(encode(seed=index))
    return tmp_path / "raw"


def test_the_summary_counts_what_was_built(raw, read_records):
    (raw / "dog" / "2.png").write_bytes(b"no image")
    bench = Bench(raw.parent)
    summary = bench.build()
    assert summary.labels == {"cat": 2, "dog": 1}
    assert summary.num_examples == 3
    assert summary.shapes == [((8, 8, 1), "cat/1.png")]
    assert [record.key for record in summary.rejected] == ["dog/2.png"]
    assert len(read_records(bench.target / summary.name)) == 3


def test_a_summary_survives_its_way_through_json(raw):
    summary = Bench(raw.parent).build()
    assert type(summary).model_validate_json(summary.model_dump_json()) == summary


def test_a_file_that_changed_since_the_listing_is_a_reason_to_retry(raw, encode):
    bench = Bench(raw.parent)
    (raw / "cat" / "2.png").write_bytes(encode(seed=9))
    with pytest.raises(MachineError, match="cat/2.png has changed since the run started. Retry"):
        bench.build()
    assert list(bench.target.iterdir()) == []


def test_a_file_that_vanished_since_the_listing_is_a_reason_to_retry(raw):
    bench = Bench(raw.parent)
    (raw / "cat" / "2.png").unlink()
    with pytest.raises(MachineError, match="cannot read cat/2.png: No such file or directory"):
        bench.build()
    assert list(bench.target.iterdir()) == []


def test_a_second_image_shape_ends_the_work_early(raw, encode):
    (raw / "cat" / "2.png").write_bytes(encode(9, 9))
    bench = Bench(raw.parent)
    assert bench.build().shapes == [((8, 8, 1), "cat/1.png"), ((9, 9, 1), "cat/2.png")]


def test_a_builder_stops_when_the_driver_has_given_up(raw):
    bench = Bench(raw.parent)
    bench.exchange.stop()
    with pytest.raises(StoppedByDriver):
        bench.build()
