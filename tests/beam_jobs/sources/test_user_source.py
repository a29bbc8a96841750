"""Sources of a user's own: they run in the job, their code is in the fingerprint, and each fault
in them has a message that names it."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import yaml
from config_files import set_words

from beam_jobs.planning.plan import Record
from beam_jobs.sources.source import SourceFailed
from beam_jobs.sources.user_source import check_source, read_user_records
from pipeline_ops.cli.main import main
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.sources import UserSource
from pipeline_ops.errors import ConfigError, DataError, ExitCode
from pipeline_ops.job.job_code import check_environment, write_user_files
from pipeline_ops.raw_data.local import list_raw_files
from pipeline_ops.storage.open_store import open_root
from pipeline_ops.user_code.sources import digest_source_code, find_source_versions

HEAD = '''\
"""Images whose class is the first part of their name."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import Field

from beam_jobs.sources.source import (
    Box, Reject, SourceEntry, SourceFiles, parameters,
)


@parameters
class Named:
    separator: str = Field("_", min_length=1)


'''
NAMED = (
    HEAD
    + """\
from named_helper import find_label


def named(files: SourceFiles, parameters: Named) -> Iterator[SourceEntry]:
    for path in files:
        with files.entry(path):
            yield SourceEntry(path, find_label(path, parameters.separator))
"""
)
HELPER = """\
from beam_jobs.sources.source import Reject


def find_label(path, separator):
    label, found, _ = path.partition(separator)
    if not found:
        raise Reject("no_label", f"there is no {separator!r} in the name")
    return label
"""
SOURCE = {"type": "named:named", "path": "../raw"}


@pytest.fixture
def named(pipeline, encode):
    """A pipeline with the source `named:named` next to its config, and 30 images."""
    for index in range(30):
        pipeline.add(f"{'cat' if index % 2 else 'dog'}_{index:03d}.png", encode(seed=index))
    pipeline.source = pipeline.config_file.parent / "named.py"
    pipeline.source.write_text(NAMED)
    pipeline.source.with_name("named_helper.py").write_text(HELPER)
    config = yaml.safe_load(pipeline.config_file.read_text())
    config["preprocess"]["source"] = SOURCE
    pipeline.config_file.write_text(yaml.safe_dump(config))
    return pipeline


@pytest.fixture
def acme(tmp_path: Path, monkeypatch) -> Path:
    """An installed distribution `acme` 1.4 that publishes the source `acme_named`."""
    folder = tmp_path / "site"
    (folder / "acme_sources").mkdir(parents=True)
    (folder / "acme_sources" / "__init__.py").touch()
    (folder / "acme_sources" / "named.py").write_text(
        NAMED.replace("from named_helper", "from acme_sources.helper")
    )
    (folder / "acme_sources" / "helper.py").write_text(HELPER)
    info = folder / "acme-1.4.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.4\n")
    (info / "top_level.txt").write_text("acme_sources\n")
    (info / "entry_points.txt").write_text(
        "[trainyard.sources]\nacme_named = acme_sources.named:named\n"
    )
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    yield folder
    for module in [name for name in sys.modules if name.startswith("acme_sources")]:
        del sys.modules[module]


class Bench:
    """A folder with raw files, and a source next to a config that need not exist."""

    def __init__(self, folder: Path):
        self.folder, self.raw = folder, folder / "raw"
        self.raw.mkdir()

    def add(self, *names: str) -> None:
        for name in names:
            file = self.raw / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)

    def read(self, body: str, **source):
        """The records by key, and the rejected entries (reason, detail) by key, of the function
        `read` with this body."""
        indented = "".join(f"    {line}\n" for line in body.splitlines())
        header = "def read(files: SourceFiles, parameters: Named):\n"
        (self.folder / "mine.py").write_text(f"{HEAD}{header}{indented}")
        section = UserSource.model_validate({"type": "mine:read", "path": "raw", **source})
        listing = list_raw_files(self.raw, open_root(self.folder) / "listings")
        found = read_user_records(section, listing, self.folder / "config.yaml")
        return {record.key: record for record in found.records}, {
            record.key: (record.reason, record.detail) for record in found.rejected
        }


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def write_csv(named) -> dict[str, str]:
    """The images and classes of `named` as a source of the catalogue."""
    lines = [f"{f.name},{f.name.partition('_')[0]}" for f in sorted(named.raw.glob("*.png"))]
    (named.raw / "labels.csv").write_text("\n".join(["path,label", *lines]))
    return {"type": "csv", "path": "../raw", "manifest": "labels.csv", "task": "classification"}


def test_a_source_next_to_the_config_makes_the_same_shards_as_one_of_the_catalogue(named):
    outcome = named.make()
    assert named.make(source=write_csv(named)).shards == outcome.shards
    assert "named" not in sys.modules and "named_helper" not in sys.modules


@pytest.mark.parametrize("kind", ["acme_sources.named:named", "acme_named"])
def test_a_source_of_a_package_runs_by_its_path_and_by_its_entry_point(named, acme, kind):
    outcome = named.make(source={"type": kind, "path": "../raw"})
    assert outcome.manifest.fingerprint.versions["acme"] == "1.4"
    assert "acme_sources/helper.py" in outcome.manifest.fingerprint.code
    assert outcome.shards == named.make(source=SOURCE).shards


def test_rejected_entries_are_in_the_quarantine_with_their_reasons(named):
    named.add("odd.png", b"x")
    outcome = named.make(rejects={"max_count": 1})
    [entry] = outcome.quarantine
    assert (entry["key"], entry["stage"], entry["reason"]) == ("odd.png", "source", "no_label")
    named.add("odder.png", b"x")
    assert named.run(rejects={"max_count": 1}).exit_code is ExitCode.DATA


def test_a_change_of_code_or_parameters_changes_the_fingerprint_and_a_comment_does_not(named):
    def digest(**source) -> str:
        return named.plan(source={**SOURCE, **source}).request.fingerprint.digest

    before, code = digest(), named.plan().request.fingerprint.code
    assert {"named.py", "named_helper.py"} <= code.keys()
    named.source.write_text(NAMED + "# a comment\n")
    assert digest() == before
    named.source.write_text(NAMED.replace("(path, find", "(path.strip(), find"))
    changed = digest()
    helper = named.source.with_name("named_helper.py")
    helper.write_text(HELPER.replace("no_label", "unlisted"))
    assert len({before, changed, digest(), digest(separator="-")}) == 4
    assert digest(separator="-") == digest(parameters={"separator": "-"})


def test_the_moved_folder_of_a_config_changes_no_fingerprint(named, tmp_path):
    before = digest_source_code(UserSource(type="named:named", path="x"), named.source.parent)
    moved = named.source.parent.rename(tmp_path / "elsewhere")
    assert digest_source_code(UserSource(type="named:named", path="x"), moved) == before != {}


def test_planning_and_the_reading_of_a_config_run_no_code_of_a_source(named):
    named.source.write_text("raise SystemExit('the source was run')\n")
    assert load_config(named.config_file).preprocess.source.type == "named:named"
    assert "named.py" in named.plan().request.fingerprint.code


def test_a_source_of_the_catalogue_has_no_code_of_the_user(named):
    source = load_config(named.config_file, {"preprocess.source.type": "voc"}).preprocess.source
    assert digest_source_code(source, named.folder) == find_source_versions(source) == {}


def test_the_modules_travel_to_a_job_on_another_host(named, tmp_path):
    request = named.plan().request
    found = {path: content.decode() for path, content in request.user_files.items()}
    assert found == {"named.py": NAMED, "named_helper.py": HELPER}
    folder = write_user_files(request.user_files, tmp_path / "attempt")
    assert (folder / "named.py").read_text() == NAMED
    named.source.unlink()  # the host does not see this folder
    check_environment(request, folder)
    (folder / "named.py").write_text(NAMED + "other = 1\n")
    with pytest.raises(ConfigError, match=r"named\.py on .* is not the one that Airflow has"):
        check_environment(request, folder)


def test_the_job_with_modules_that_travelled_makes_the_same_data_set(named, tmp_path):
    plan = named.plan()
    named.source.write_text("raise SystemExit('the source of this host was run')\n")
    outcome = named.run(plan)
    assert outcome.exit_code is ExitCode.SUCCESS, outcome.message
    assert outcome.shards == named.make(source=write_csv(named)).shards


def test_two_configs_may_have_modules_of_one_name(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(f"{HEAD}def {name}(files, parameters: Named): ...")
        source = UserSource(type=f"mine:{name}", path="raw")
        check_source(source, tmp_path / name / "config.yaml")


def test_the_commands_that_read_the_data_run_the_source(named, capsys, tmp_path):
    text = re.sub(r"(height|width): 8", r"\1: 16", named.config_file.read_text())
    named.config_file.write_text(text)
    named.add("odd.png", b"x")
    words = set_words("preprocess.rejects.max_count=1", "train.global_batch_size=8")
    arguments = [str(named.config_file), *words]
    assert main(["validate", "--deep", *arguments]) == 0, capsys.readouterr().err
    assert re.search(r"checked +\d+ train, \d+ validation, \d+ test", capsys.readouterr().out)
    picture = tmp_path / "picture.png"
    assert main(["preview", *arguments, "--output", str(picture)]) == 0, capsys.readouterr().err
    assert picture.stat().st_size > 0
    separator = ["--set", "preprocess.source.separator=+"]
    assert main(["validate", "--deep", *arguments, *separator]) == 65
    assert "there is no '+' in the name" in capsys.readouterr().err


def test_validate_accepts_a_source_and_reports_file_line_and_cure(named, capsys):
    text = re.sub(r"(height|width): 8", r"\1: 16", named.config_file.read_text())
    named.config_file.write_text(text)
    config, line = str(named.config_file), text.splitlines()
    assert main(["validate", config]) == 0, capsys.readouterr().err
    place = f"{config}:{line.index('    type: named:named') + 1}: preprocess.source.type: "
    named.source.write_text(NAMED + "import no_such_package\n")
    assert main(["validate", config]) == 78
    message = capsys.readouterr().err
    assert message.startswith(f"{place}cannot import the module named: ModuleNotFoundError: ")
    assert f"({named.source}:{NAMED.count(chr(10)) + 1}). Correct it, or install" in message
    named.source.write_text("def named(:\n")
    assert main(["validate", config]) == 78
    assert f"{place}named, or a module that it imports, is not valid" in capsys.readouterr().err
    named.source.unlink()
    assert main(["validate", config]) == 78
    assert f"{place}there is no module named. Put it next to" in capsys.readouterr().err


@pytest.mark.parametrize(
    "source, message",
    [
        (
            {"type": "named:nmaed"},
            "the module named has no function 'nmaed'; the nearest valid name is 'named'",
        ),
        ({"type": "named_helper:find_label"}, "find_label must take `(files: SourceFiles,"),
        ({"type": "named:Named"}, "named:Named is no function, but <class"),
        (
            {"separatr": "-"},
            "preprocess.source.separatr: unknown parameter; the nearest valid name is 'separator'",
        ),
        ({"separator": ""}, "preprocess.source.separator: string should have at least 1"),
        ({"parameters": {}, "separator": "-"}, "preprocess.source.separator: unknown key"),
        ({"type": "named:named-x"}, "preprocess.source.type: must match the pattern"),
        (
            {"type": "acme_nmaed"},
            "unknown type 'acme_nmaed'; the nearest valid name is 'acme_named'",
        ),
        ({"class_names": ["a", "a"]}, "preprocess.source.class_names: must name each class once"),
    ],
)
def test_a_wrong_section_is_reported_with_key_and_rule(named, acme, source, message, capsys):
    config = yaml.safe_load(named.config_file.read_text())
    config["preprocess"]["source"] |= source
    named.config_file.write_text(yaml.safe_dump(config))
    assert main(["validate", str(named.config_file)]) == 78
    error = capsys.readouterr().err
    assert message in error and f"{named.config_file}:" in error


def test_two_packages_with_one_name_are_told_apart_by_their_paths(named, acme):
    info = acme / "other-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[trainyard.sources]\nacme_named = other.n:named\n")
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match=r"packages have a source acme_named \(acme, other\)"):
        named.plan(source={"type": "acme_named", "path": "../raw"})


def test_a_parameter_cannot_have_the_name_of_a_key_of_every_source(bench):
    (bench.folder / "mine.py").write_text(
        HEAD.replace("separator: str", "path: str") + "def read(files, parameters: Named): ..."
    )
    with pytest.raises(ConfigError, match="mine:read has a parameter path, which every source has"):
        check_source(UserSource(type="mine:read", path="raw"), bench.folder / "config.yaml")


def test_entries_are_records_of_plain_values(bench):
    bench.add("a.png", "50%.png", "day 1/ä.png")
    records, rejected = bench.read(
        "box = Box(np.float32(1), np.int64(2), '3', 4.5, 'cat', is_crowd=np.bool_(True))\n"
        "yield SourceEntry('a.png', boxes=[box], split='val', group='p 1',\n"
        "    frame=(np.int64(9), 8))\n"
        "for path in files:\n"
        "    if path != 'a.png': yield SourceEntry(path, boxes=())\n"
    )
    assert rejected == {} and list(records) == ["50%25.png", "a.png", "day 1/ä.png"]
    record: Record = records["a.png"]
    [box] = record.boxes
    assert (box.ymin, box.xmin, box.ymax, box.xmax, box.label) == (1.0, 2.0, 3.0, 4.5, "cat")
    values = (box.ymin, box.xmin, box.is_crowd, *record.frame.size)
    assert [type(value) for value in values] == [float, float, bool, float, float]
    assert (record.split, record.group, record.frame.size) == ("validation", "p 1", (9.0, 8.0))


@pytest.mark.parametrize(
    "entry, reason, detail",
    [
        ("'a.png'", "no_label", "neither a label nor boxes"),
        ("'a.png', ''", "no_label", "'' is not the name of a class"),
        ("'a.png', 3.5", "malformed", "3.5 is not text"),
        ("'a.png', float('nan')", "malformed", "nan is not text"),
        ("'a.png', 'cat', ()", "malformed", "a label and boxes"),
        ("'a.png', 'cow'", "unknown_class", "'cow' is not among"),
        ("'a.png', 'cat', split='trainval'", "unknown_split", "trainval"),
        ("'a.png', 'cat', group=[3]", "malformed", "[3] is not text"),
        ("'a.png', boxes=[(1, 2, 3, 4)]", "malformed", "a box must be a Box, got a tuple"),
        ("'a.png', boxes=[Box(1, 2, 'x', 4, 'cat')]", "malformed", "'x' is not a number"),
        ("'a.png', boxes=[Box(1, 2, float('nan'), 4, 'cat')]", "box_not_finite", "nan"),
        ("'a.png', boxes=[Box(3, 2, 1, 4, 'cat')]", "box_inverted", "cat"),
        ("'a.png', boxes=[Box(0, 0, 9, 9, 'cat')], frame=(4, 4)", "box_outside", "cat"),
        ("'a.png', boxes=[Box(0, 0, 9, 9, 'cat')], frame=5", "malformed", "height and width"),
        ("'gone.png', 'cat'", "missing_image", "there is no file gone.png"),
        ("'../secret.png', 'cat'", "missing_image", "there is no file ../secret.png"),
        ("'/etc/hostname', 'cat'", "missing_image", "there is no file /etc/hostname"),
        ("'a.png/../../x.png', 'cat'", "missing_image", "there is no file ../x.png"),
        ("None, 'cat'", "malformed", "a path must be text, got None"),
        ("b'a.png', 'cat'", "malformed", "a path must be text"),
    ],
)
def test_a_bad_entry_is_rejected_with_reason_and_place_and_the_others_stay(
    bench, entry, reason, detail
):
    bench.add("a.png", "b.png")
    good = "boxes=()" if "boxes=[" in entry else "'dog'"
    records, rejected = bench.read(
        f"with files.entry('labels.csv:2'):\n    yield SourceEntry({entry})\n"
        f"yield SourceEntry('b.png', {good})",
        class_names=["cat", "dog"],
    )
    [(key, found)] = rejected.items()
    assert found[0] == reason and detail in found[1] and list(records) == ["b.png"]
    assert key == (re.findall(r"^'(.*?)'", entry) or ["labels.csv:2"])[0].replace("a.png/../", "")


def test_an_image_that_is_named_twice_is_rejected_with_both_places(bench):
    bench.add("a.png", "b.png")
    records, rejected = bench.read(
        "for number, path in enumerate(['a.png', 'b.png', './a.png'], 1):\n"
        "    with files.entry(f'labels.csv:{number}'):\n"
        "        yield SourceEntry(path, 'cat')"
    )
    assert list(records) == ["b.png"]
    assert rejected == {"a.png": ("duplicate", "named more than once: labels.csv:1, labels.csv:3")}


def test_a_reject_outside_of_all_files_is_known_by_its_place(bench):
    bench.add("a.png")
    records, rejected = bench.read(
        "with files.entry('labels.csv:2'):\n    raise Reject('malformed', 'two fields')\n"
        "yield SourceEntry('a.png', 'cat')"
    )
    assert rejected == {"labels.csv:2": ("malformed", "two fields")} and list(records) == ["a.png"]


FIRST_LINE = HEAD.count("\n") + 2
"""Of the body of the function."""


@pytest.mark.parametrize(
    "body, message",
    [
        ("return None", "mine.py returned a NoneType. It must yield a SourceEntry"),
        ("yield 'a.png'", "yielded a str as entry 1. It must yield a SourceEntry"),
        (
            "yield SourceEntry('a.png', 'cat')\nraise KeyError('label')",
            f"failed after 1 entries, in {{file}}:{FIRST_LINE + 1}: KeyError: 'label'",
        ),
        (
            "raise Reject('no_label', 'none')\nyield",
            "raised Reject outside of `with files.entry(place):`, in "
            f"{{file}}:{FIRST_LINE}: no_label: none",
        ),
        (
            "with files.entry('a.png'):\n    raise Reject('no_label', 3)\nyield",
            f"failed after 0 entries, in {{file}}:{FIRST_LINE}: TypeError",
        ),
        (
            "yield SourceEntry('a.png', 'cat')\nyield SourceEntry('b.png', boxes=[])",
            "mine:read gave a label to a.png and boxes to b.png. All entries must have labels",
        ),
        ("files.read(3)\nyield", "source mine:read reads a file: a path must be text, got 3"),
    ],
)
def test_a_bug_in_a_source_is_reported_with_its_name_and_line(bench, body, message):
    bench.add("a.png", "b.png")
    with pytest.raises(SourceFailed) as error:
        bench.read(body)
    assert message.format(file=bench.folder / "mine.py") in str(error.value)
    assert "mine:read" in str(error.value)


def test_a_bug_in_a_source_fails_the_job_and_is_not_retried(named):
    named.source.write_text(NAMED.replace("yield SourceEntry", "yield 1 / 0, SourceEntry"))
    outcome = named.run()
    assert outcome.exit_code is ExitCode.BUG and not outcome.exit_code.is_retried
    assert "source named:named failed after 0 entries" in outcome.message
    assert "ZeroDivisionError" in outcome.message
    assert outcome.status.cure == "Correct the source, then retry."
    where = outcome.status.location
    assert where.file == named.source.name
    assert "yield 1 / 0, SourceEntry" in where.source[where.line - where.first_line]


@pytest.mark.parametrize(
    "body, message",
    [
        (
            "yield from ()",
            "mine:read found no image among 2 files, and rejected 0 entries. Correct",
        ),
        ("files.read('no.csv')\nyield", "no.csv: no such file. The source mine:read reads this"),
        ("files.read('../x')\nyield", "raw/../x: no such file. The source mine:read reads this"),
        ("files.read_text('bad.csv')\nyield", "bad.csv:2: not UTF-8, which the source mine:read"),
    ],
)
def test_a_fault_of_the_data_as_a_whole_is_one_of_their_owner(bench, body, message):
    bench.add("a.png")
    (bench.raw / "bad.csv").write_bytes(b"path,label\n\xff,1\n")
    with pytest.raises(DataError) as error:
        bench.read(body)
    assert message in str(error.value)


def test_files_are_sorted_and_can_be_read_and_asked_for(bench):
    bench.add("b.txt", "a.txt", "c/d.txt")
    (bench.raw / "a.txt").write_bytes(b"\xef\xbb\xbfcat\n")
    _, rejected = bench.read(
        "text = [*files], len(files), 'c/d.txt' in files, '../x' in files, 3 in files\n"
        "with files.entry('all'):\n"
        "    text = *text, files.read_text('a.txt'), files.read('b.txt')\n"
        "    raise Reject('malformed', repr(text))\n"
        "yield SourceEntry('b.txt', 'cat')"
    )
    assert rejected["all"][1] == repr(
        (["a.txt", "b.txt", "c/d.txt"], 3, True, False, False, "cat\n", b"b.txt")
    )
