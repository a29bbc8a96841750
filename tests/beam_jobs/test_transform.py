"""Transforms of Beam as a source: what they yield becomes the data set, once, and each fault in
them has a message that names it."""

from __future__ import annotations

import os
import re
import signal
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from beam_jobs.output.shard import ShardBuilder
from pipeline_ops.cli.main import main
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.sources import BeamSource
from pipeline_ops.contract.layout import work_folder
from pipeline_ops.contract.manifest import read_manifest
from pipeline_ops.contract.source_code import CODE_ROOT
from pipeline_ops.errors import ConfigError, ExitCode, MachineError
from pipeline_ops.planning.job_kinds import digest_job_code

PAGE = (CODE_ROOT / "docs" / "add-a-source.md").read_text().partition("## Read with Beam")[2]
JOIN, FILTER = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
WAREHOUSE = {"type": "beam", "path": "../raw", "transform": "warehouse:FromWarehouse"}
HEAD = """\
import apache_beam as beam
import numpy as np
from beam_jobs.sources.source import Box, SourceEntry

class Own(beam.PTransform):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

"""


@pytest.fixture
def warehouse(pipeline, encode):
    """The two tables of the page: 40 photographs, and labels for 39 of them, one of which has two.

    The transform leaves a line in a file whenever it runs."""
    photos = [{"id": n, "photo": encode(seed=n)} for n in range(40)]
    labels = [{"photo_id": n, "species": "cat" if n % 2 else "dog"} for n in range(39)]
    write_table(pipeline, "photos", photos)
    write_table(pipeline, "labels", [*labels, {"photo_id": 0, "species": "cat"}])
    use(pipeline, "warehouse.py", JOIN)
    return pipeline


def write_table(pipeline, name: str, rows: list[dict]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), pipeline.raw / f"{name}.parquet")


def use(pipeline, name: str, text: str) -> None:
    (pipeline.config_file.parent / name).write_text(text)


def run_own(pipeline, body: str, **overrides):
    """The job with a transform whose `expand` has this body."""
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    use(pipeline, "own.py", f"{HEAD}    def expand(self, entries):\n{indented}")
    source = {"type": "beam", "path": "../raw", "transform": "own:Own"}
    return pipeline.run(source=source, **overrides)


def describe(outcome) -> dict[str, str]:
    return {line["key"]: line["reason"] for line in outcome.quarantine}


def test_the_join_of_the_page_makes_the_data_set_of_the_same_images_in_folders(
    warehouse, encode, tmp_path
):
    outcome = warehouse.make(source=WAREHOUSE, rejects={"max_fraction": 0.1})
    assert describe(outcome) == {"0.png": "duplicate", "39.png": "no_label"}
    assert not (outcome.artifact.parent / f".{outcome.artifact.name}.work").exists()
    for file in warehouse.raw.iterdir():
        file.unlink()
    lines = [f"{n}.png,{'cat' if n % 2 else 'dog'}" for n in range(1, 39)]
    for number in range(1, 39):
        warehouse.add(f"{number}.png", encode(seed=number))
    warehouse.add("labels.csv", "\n".join(["path,label", *lines]).encode())
    source = {"type": "csv", "path": "../raw", "manifest": "labels.csv", "task": "classification"}
    assert warehouse.make(source=source).shards == outcome.shards


def test_the_filter_of_the_page_drops_entries_of_another_source_and_keeps_its_rejects(
    animals, encode
):
    use(animals, "large_files.py", FILTER.replace("num_bytes > 100", "key[-6:] >= '10.png'"))
    animals.add("cat/070.png", b"")
    source = {"type": "beam", "path": "../raw", "transform": "large_files:LargeFiles"}
    source["input"] = {"type": "image_folder"}
    outcome = animals.make(source=source, rejects={"max_count": 1})
    whole = animals.make(rejects={"max_count": 1})
    assert describe(outcome) == describe(whole) == {"cat/070.png": "empty"}
    assert sum(outcome.manifest.figures["num_examples"].values()) == 50
    assert sum(whole.manifest.figures["num_examples"].values()) == 60
    code = digest_job_code(
        "preprocess",
        load_config(
            animals.config_file, {"preprocess.source": source | {"input": {"type": "image_folder"}}}
        ),
    )
    assert "beam_jobs/sources/image_folder.py" in code and "beam_jobs/sources/coco.py" not in code


def test_a_retry_goes_on_with_what_the_transform_has_given(warehouse, tmp_path, monkeypatch):
    marks = tmp_path / "marks"
    marked = f"    number, rows = joined\n    open({str(marks)!r}, 'a').write('x')\n"
    use(warehouse, "warehouse.py", JOIN.replace("    number, rows = joined\n", marked))
    plan = warehouse.plan(source=WAREHOUSE, rejects={"max_fraction": 0.1})

    def fail(self, shard):
        raise MachineError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ShardBuilder, "build", fail)
        assert warehouse.run(plan).exit_code is ExitCode.RETRY
    assert warehouse.run(plan).exit_code is ExitCode.SUCCESS
    assert len(marks.read_text()) == 40, "it has run once"


def test_a_job_that_is_killed_in_its_transform_is_made_whole_by_the_next_try(
    warehouse, tmp_path, wait_for
):
    started = tmp_path / "started"
    slow = (
        "    number, rows = joined\n"
        "    import pathlib, time\n"
        f"    if number == 30 and not pathlib.Path({str(started)!r}).exists():\n"
        f"        pathlib.Path({str(started)!r}).touch()\n"
        "        time.sleep(60)\n"
    )
    use(warehouse, "warehouse.py", JOIN.replace("    number, rows = joined\n", slow))
    plan = warehouse.plan(source=WAREHOUSE, rejects={"max_fraction": 0.1})
    process, _ = warehouse.start(plan)
    wait_for(started.exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    outcome = warehouse.run(plan)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert sum(outcome.manifest.figures["num_examples"].values()) == 38
    assert [each.name for each in outcome.artifact.parent.iterdir() if "work" in each.name] == []


def test_only_what_is_new_is_built_again(warehouse, encode):
    rejects = {"max_fraction": 0.1}
    before = warehouse.make(source=WAREHOUSE, rejects=rejects)
    photos = [{"id": n, "photo": encode(seed=n)} for n in range(41)]
    write_table(warehouse, "photos", photos)
    after = warehouse.make(source=WAREHOUSE, rejects=rejects)
    assert describe(after).keys() == describe(before).keys() | {"40.png"}
    assert before.shards.items() <= after.shards.items()


def test_code_and_parameters_are_in_the_fingerprint_and_the_interval_is_one(warehouse):
    before = warehouse.plan(source=WAREHOUSE).request.fingerprint
    other = WAREHOUSE | {"photos": "photos.parquet"}
    assert warehouse.plan(source=other).request.fingerprint != before
    use(warehouse, "warehouse.py", JOIN.replace('f"{number}.png"', 'f"{number}.jpg"'))
    assert warehouse.plan(source=WAREHOUSE).request.fingerprint != before
    source = BeamSource.model_validate(WAREHOUSE | {"until": "{end:%Y-%m-%d}", "like": "{a}"})
    assert source.has_interval
    first, second = (datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2))
    values = source.format_interval(first, second)
    assert values["parameters"] == {"until": "2026-01-02", "like": "{a}"}
    assert not BeamSource.model_validate(WAREHOUSE | {"like": "{a}"}).has_interval
    with pytest.raises(ConfigError, match="preprocess.source.parameters: is .*until.* only runs"):
        warehouse.plan(source=WAREHOUSE | {"until": "{end:%Y-%m-%d}"})


def test_values_of_numpy_and_numbers_are_read_as_those_of_a_source(pipeline, encode):
    for number in range(30):
        pipeline.add(f"{number}.png", encode(16, 16, seed=number))
    body = """\
def make(n):
    right = 99 if n == 3 else 4
    boxes = [Box(np.float32(1), "2", 8, np.int64(9), np.str_("ball")), Box(0, 0, right, 4, 7)]
    return SourceEntry(f"{n}.png", boxes=boxes, frame=np.array([16, 16]))
return entries | beam.Create(range(30)) | beam.Map(make)
"""
    outcome = run_own(pipeline, body, rejects={"max_count": 1}, stages=["decode"])
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert describe(outcome) == {"3.png": "box_outside"}
    assert outcome.manifest.figures["class_names"] == ["7", "ball"]


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("return 1", ExitCode.CONFIG, "own:Own yields a int and no PCollection of entries."),
        (
            "return entries | beam.Create(['a.png'])",
            ExitCode.BUG,
            "the transform own:Own yielded a str. It must yield a SourceEntry.",
        ),
        (
            "return entries | beam.Create([0]) | beam.Map(lambda n: 1 / n)",
            ExitCode.BUG,
            r"preprocess.source.transform failed in \S+own.py:11: ZeroDivisionError: division",
        ),
        (
            "def read(n):\n    raise ConnectionResetError('the database is away')\n"
            "return entries | beam.Create([1]) | beam.Map(read)",
            ExitCode.RETRY,
            "own.py:12: ConnectionResetError: the database is away. Retry.",
        ),
        (
            "return entries | beam.Create([SourceEntry('a.png', label={1})])",
            ExitCode.BUG,
            "an entry has a set and not text and numbers: SourceEntry",
        ),
        (
            "pair = [SourceEntry('a', 'x', encoded=b'1'), SourceEntry('b', 'y')]\n"
            "return entries | beam.Create(pair)",
            ExitCode.BUG,
            "the transform own:Own gave the bytes of some images, and not of 'b'. Give those of",
        ),
        (
            "return entries | beam.io.ReadFromText(f'{self.folder}/no.csv')",
            ExitCode.DATA,
            "No files found based on the file pattern .*no.csv. Correct the parameter",
        ),
        ("return entries | beam.Create([])", ExitCode.DATA, "the source own:Own found no image"),
    ],
)
def test_a_fault_of_a_transform_is_named(animals, body, code, message):
    outcome = run_own(animals, body)
    assert outcome.exit_code is code, outcome.message
    assert re.search(message, outcome.message), outcome.message


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ({"transform": "warehouse:Nothing"}, 4, "warehouse has no function 'Nothing'; valid"),
        ({"transform": "nothing:Nothing"}, 4, "there is no module nothing"),
        ({"photo": "a"}, 4, "unknown parameter; the nearest valid name is 'photos'"),
        ({"labels": ""}, 4, "preprocess.source.labels: string should have at least 1"),
        (
            {"input": {"type": "tfds", "builder": "voc", "parts": [{"name": "a"}]}},
            4,
            "input: must not be",
        ),
        ({"input": {"type": "coco"}}, 4, "input.parts: Field required"),
        ({"input": {"type": "coc"}}, 4, "input"),
    ],
)
def test_a_wrong_section_is_refused_before_it_runs(warehouse, capsys, source, line, message):
    values = yaml.safe_load(warehouse.config_file.read_text())
    values["preprocess"]["source"] = WAREHOUSE | source
    warehouse.config_file.write_text(yaml.safe_dump(values))
    assert main(["validate", str(warehouse.config_file)]) == ExitCode.CONFIG
    assert message in capsys.readouterr().err


def test_a_source_that_is_no_transform_cannot_give_bytes(animals):
    use(
        animals,
        "plain.py",
        "from beam_jobs.sources.source import SourceEntry, SourceFiles, parameters\n"
        "@parameters\nclass No:\n    pass\n"
        "def plain(files: SourceFiles, parameters: No):\n"
        "    for path in files:\n        yield SourceEntry(path, 'a', encoded=b'1')\n",
    )
    outcome = animals.run(source={"type": "plain:plain", "path": "../raw"})
    assert outcome.exit_code is ExitCode.DATA
    assert "only a transform of Beam can give the bytes" in outcome.message


@pytest.mark.stores
def test_a_root_in_a_bucket_holds_the_images_of_a_transform(warehouse, s3_root):
    folder = warehouse.make(source=WAREHOUSE, rejects={"max_fraction": 0.1})
    values = yaml.safe_load(warehouse.config_file.read_text())
    warehouse.config_file.write_text(yaml.safe_dump(values | {"storage": {"root": str(s3_root)}}))
    plan = warehouse.plan(source=WAREHOUSE, rejects={"max_fraction": 0.1})
    outcome = warehouse.run(plan)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    bucket, local = read_manifest(plan.manifest), folder.manifest
    sums = [
        {f.path: f.identity for f in m.files if f.path.endswith(".tfrecord")}
        for m in (bucket, local)
    ]
    assert sums[0] == sums[1]
    assert work_folder(plan.manifest.parent).walk() == []
