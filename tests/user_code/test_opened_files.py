"""Files that an author's function opens by itself are named in the config, or refused."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from pipeline_ops.config.pipeline import load_config
from pipeline_ops.config.train import Train
from pipeline_ops.errors import ConfigError
from pipeline_ops.job.job_code import write_user_files
from pipeline_ops.user_code.models import read_user_code
from pipeline_ops.user_code.modules import load_object
from pipeline_ops.user_code.opened_files import explain_unnamed_files
from pipeline_ops.user_code.planned_imports import PlannedCode, import_as_planned

DIGITS = Path(__file__).resolve().parents[2] / "configs" / "digits.yaml"
KEY = "train.model: net:build"


@pytest.fixture
def here(tmp_path):
    """The folder of an author's module, as it has travelled."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "labels.txt").write_text("cat\ndog\n")
    return folder


@pytest.fixture
def elsewhere(tmp_path):
    """Files that are in no fingerprint, by kind."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "labels.txt").write_text("cat\ndog\n")
    np.save(folder / "table.npy", np.arange(3))
    np.savez(folder / "tables.npz", a=np.arange(3))
    np.arange(3).tofile(folder / "raw.bin")
    with h5py.File(folder / "weights.h5", "w") as file:
        file["a"] = np.arange(3)
    return folder


def _read_gfile(path):
    import tensorflow as tf

    with tf.io.gfile.GFile(str(path)) as file:
        return file.read()


def _read_tensor(path):
    import tensorflow as tf

    return tf.io.read_file(str(path))


@pytest.mark.parametrize(
    "name, read",
    [
        ("labels.txt", Path.read_text),
        ("labels.txt", lambda path: os.close(os.open(path, os.O_RDONLY))),
        ("labels.txt", _read_gfile),
        ("labels.txt", _read_tensor),
        ("table.npy", np.load),
        ("table.npy", lambda path: np.load(path, mmap_mode="r")),
        ("tables.npz", np.load),
        ("raw.bin", np.fromfile),
        ("weights.h5", h5py.File),
        ("weights.h5", lambda path: h5py.File(name=str(path), mode="r")),
    ],
)
def test_a_file_that_no_fingerprint_covers_is_refused(here, elsewhere, name, read):
    import tensorflow as tf  # noqa: F401

    cure = rf"opens {elsewhere}/{name}.*`train\.files: \[\"{name}\"\]`.*Path\(__file__\)"
    with pytest.raises(ConfigError, match=cure), explain_unnamed_files(here, KEY):
        read(elsewhere / name)


def test_a_link_is_followed(here, elsewhere):
    (here / "link.txt").symlink_to(elsewhere / "labels.txt")
    with pytest.raises(ConfigError, match="elsewhere"), explain_unnamed_files(here, KEY):
        (here / "link.txt").read_text()


def test_an_author_who_suppresses_all_errors_is_refused_too(here, elsewhere):
    with pytest.raises(ConfigError, match="and 1 more"), explain_unnamed_files(here, KEY):
        for name in ("labels.txt", "table.npy", "labels.txt"):
            with contextlib.suppress(BaseException):
                (elsewhere / name).read_bytes()


def test_files_of_the_job_of_python_and_of_the_function_itself_are_not_refused(
    here, tmp_path, monkeypatch
):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    (tmp_path / "keras" / "models").mkdir(parents=True)
    (tmp_path / "keras" / "models" / "resnet.h5").write_text("weights")
    with explain_unnamed_files(here, KEY):
        assert (here / "labels.txt").read_text()
        assert Path(np.__file__).read_text() and Path(os.__file__).read_text()
        assert Path("/proc/self/stat").read_text()
        assert Path("/etc/hostname").exists()
        assert (tmp_path / "keras" / "models" / "resnet.h5").read_text()
        with tempfile.NamedTemporaryFile("w+", suffix=".txt") as file:
            file.write("own")
            file.flush()
            assert Path(file.name).read_text() == "own"
        (tmp_path / "part").write_text("own")
        (tmp_path / "part").rename(tmp_path / "whole")
        assert (tmp_path / "whole").read_text() == "own"
        with h5py.File(tmp_path / "own.h5", "w") as made:
            made["a"] = 1
        h5py.File(tmp_path / "own.h5", "r").close()
    assert (tmp_path / "whole").read_text() == "own"  # afterwards nothing is watched


def test_another_thread_may_open_any_file(here, elsewhere):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool, explain_unnamed_files(here, KEY):
        assert pool.submit((elsewhere / "labels.txt").read_text).result()


def test_a_path_relative_to_the_current_directory_is_explained(here):
    cure = r'relative to the current directory.*Path\(__file__\)\.parent / "labels\.txt".*train\.f'
    with pytest.raises(ConfigError, match=cure), explain_unnamed_files(here, KEY):
        Path("somewhere/labels.txt").read_text()


def test_a_file_beside_the_module_that_is_not_named_is_explained(here):
    cure = r"opens tables/names\.txt beside the config.*`train\.files: \[\"tables/names\.txt\"\]`"
    with pytest.raises(ConfigError, match=cure), explain_unnamed_files(here, KEY):
        (here / "tables" / "names.txt").read_text()


def test_a_file_that_may_be_missing_may_be_missing(here):
    with explain_unnamed_files(here, KEY):
        try:
            (here / "optional.txt").read_text()
        except FileNotFoundError:
            text = "default"
    assert text == "default"
    with pytest.raises(ZeroDivisionError), explain_unnamed_files(here, KEY):
        try:
            (here / "optional.txt").read_text()
        except FileNotFoundError:
            text = 1 / 0


class TestFiles:
    """The key `files`."""

    @pytest.fixture
    def beside(self, tmp_path):
        folder = tmp_path / "beside"
        (folder / "tables").mkdir(parents=True)
        (folder / "net.py").write_text(
            "from pathlib import Path\n"
            "LABELS = (Path(__file__).parent / 'labels.txt').read_text().split()\n"
            "def build():\n"
            "    import importlib\n"
            "    return importlib.import_module('part_' + 'one').value\n"
        )
        (folder / "part_one.py").write_text("value = 1\n")
        (folder / "labels.txt").write_text("cat dog")
        np.save(folder / "tables" / "a.npy", np.arange(3))
        np.save(folder / "tables" / "b.npy", np.arange(4))
        return folder

    @staticmethod
    def read(folder, *files):
        section = load_config(DIGITS, {"train.files": list(files), "train.model": "net:build"})
        return read_user_code(section.train, folder)

    def test_their_contents_count_and_travel(self, beside):
        code = self.read(beside, "labels.txt", "tables/*.npy")
        names = {"net.py", "labels.txt", "tables/a.npy", "tables/b.npy"}
        assert code.digests.keys() == code.files.keys() == names
        assert code.files["tables/b.npy"] == (beside / "tables" / "b.npy").read_bytes()
        (beside / "labels.txt").write_text("dog cat")
        assert self.read(beside, "labels.txt", "tables/*.npy").digests != code.digests

    def test_the_job_opens_them_as_they_were(self, beside, tmp_path):
        code = self.read(beside, "labels.txt", "part_*.py")
        (beside / "labels.txt").write_text("an edit")
        (beside / "part_one.py").write_text("value = 2\n")
        folder = write_user_files(code.files, tmp_path / "job")
        with (
            import_as_planned(PlannedCode(folder, beside, code.digests)),
            explain_unnamed_files(folder, KEY),
        ):
            assert load_object("net:LABELS", "train.model", "") == ["cat", "dog"]
            assert load_object("net:build", "train.model", "")() == 1

    def test_without_the_key_the_job_says_so(self, beside, tmp_path):
        code = self.read(beside)
        folder = write_user_files(code.files, tmp_path / "job")
        with (
            pytest.raises(ConfigError, match=r'`train\.files: \["labels\.txt"\]`'),
            import_as_planned(PlannedCode(folder, beside, code.digests)),
            explain_unnamed_files(folder, KEY),
        ):
            load_object("net:LABELS", "train.model", "")

    def test_a_module_by_a_computed_name_on_the_path_is_refused(
        self, beside, tmp_path, monkeypatch
    ):
        (beside / "part_one.py").rename(tmp_path / "part_one.py")
        monkeypatch.syspath_prepend(str(tmp_path))
        code = self.read(beside, "labels.txt")
        folder = write_user_files(code.files, tmp_path / "job")
        with (
            pytest.raises(ConfigError, match=rf"imports {tmp_path}/part_one\.py"),
            import_as_planned(PlannedCode(folder, beside, code.digests)),
            explain_unnamed_files(folder, KEY),
        ):
            load_object("net:build", "train.model", "")()
        del sys.modules["part_one"]

    @pytest.mark.parametrize(
        "pattern, message",
        [
            ("gone.txt", r"train\.files\.0: gone\.txt matches no file in "),
            ("tables", r"tables matches no file .*Write tables/\*\*/\* for all files below it"),
        ],
    )
    def test_a_pattern_without_a_file_is_an_error(self, beside, pattern, message):
        with pytest.raises(ConfigError, match=message):
            self.read(beside, pattern)

    @pytest.mark.parametrize("pattern", ["/etc/passwd", "../x", "a/../../x", "~/x", "s3://b/x", ""])
    def test_a_file_elsewhere_cannot_be_named(self, pattern):
        with pytest.raises(ConfigError, match=r"train\.files\.0.*below the folder of this file"):
            load_config(DIGITS, {"train.files": [pattern]})

    def test_too_large_files_are_refused_with_the_cure(self, beside):
        with open(beside / "large.bin", "wb") as file:
            file.truncate(17 << 20)
        with pytest.raises(ConfigError, match=r"17\.0 MiB, and at most 16.*train\.warm_start"):
            self.read(beside, "*.bin")

    def test_many_small_files_are_too_large_together(self, beside):
        for number in range(3):
            (beside / f"{number}.bin").write_bytes(bytes(6 << 20))
        with pytest.raises(ConfigError, match=r"18\.0 MiB, and at most 16"):
            self.read(beside, "*.bin")

    def test_the_patterns_themselves_change_no_fingerprint(self):
        one, other = (Train(model="dense", files=files) for files in ([], ["labels.txt"]))
        assert one.to_fingerprint_dict() == other.to_fingerprint_dict()
