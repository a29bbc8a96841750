"""The programs of the engines: what is merged, and what the messages say. Nothing is fetched."""

from __future__ import annotations

import shutil
import zipfile

import pytest
from engines.fetch import ENGINES, EngineError, fetch_engine, list_digests, merge_jars

SERVICE = "META-INF/services/org.example.Registrar"


def write_jar(file, **contents) -> None:
    with zipfile.ZipFile(file, "w") as jar:
        for name, content in contents.items():
            jar.writestr(name, content)


@pytest.fixture
def merged(tmp_path) -> zipfile.ZipFile:
    parts = {
        "another.jar": {
            SERVICE: "# first\norg.example.A\norg.example.B\n",
            "same.txt": "another",
            "META-INF/KEYS.SF": "signature",
            "META-INF/KEYS.RSA": "signature",
            "module-info.class": "module",
        },
        "beam-runner.jar": {
            SERVICE: "org.example.B\norg.example.C",
            "same.txt": "beam",
            "META-INF/versions/9/module-info.class": "module",
            "META-INF/MANIFEST.MF": "Main-Class: Wrong",
        },
    }
    for name, contents in parts.items():
        write_jar(tmp_path / name, **contents)
    merge_jars(tmp_path.glob("*.jar"), tmp_path / "merged.zip", "org.example.Main")
    with zipfile.ZipFile(tmp_path / "merged.zip") as jar:
        yield jar


def test_services_of_all_jars_are_joined(merged):
    assert sorted(merged.read(SERVICE).decode().split()) == [
        f"org.example.{name}" for name in "ABC"
    ]


def test_of_two_files_with_one_name_beams_is_taken(merged):
    assert merged.read("same.txt") == b"beam"


def test_signatures_and_module_descriptors_are_left_out(merged):
    names = {"META-INF/MANIFEST.MF", SERVICE, "same.txt"}
    assert sorted(merged.namelist()) == sorted(names)


def test_the_jar_starts_the_given_class(merged):
    assert "Main-Class: org.example.Main" in merged.read("META-INF/MANIFEST.MF").decode()


def test_a_changed_part_changes_the_list_of_digests(tmp_path):
    part = tmp_path / "part.jar"
    part.write_bytes(b"")
    before = list_digests([part])
    part.write_bytes(b"1")
    assert before.split()[1] == "part.jar"
    assert list_digests([part]) != before


@pytest.mark.parametrize(
    ("absent", "package"), [("java", "openjdk-17-jre-headless"), ("mvn", "maven")]
)
def test_a_missing_program_is_named(absent, package, tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in {"java", "mvn"} - {absent}:
        (programs / name).symlink_to(shutil.which("true"))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(EngineError, match=f"{absent} is not in PATH. .* apt install {package}"):
        fetch_engine("flink")


def test_a_small_disk_is_reported_with_the_cure(small_disk, tmp_path, monkeypatch):
    for name in ("java", "mvn"):
        (tmp_path / name).symlink_to(shutil.which("true"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    with pytest.raises(EngineError, match="need 3072 MB of disk in .* set XDG_CACHE_HOME"):
        fetch_engine("spark")


def test_a_failed_download_is_reported_and_leaves_no_programs(tmp_path, monkeypatch):
    """pip finds no package, because it may look into an empty folder only."""
    for name in ("java", "mvn"):
        (tmp_path / name).symlink_to(shutil.which("true"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(EngineError, match="pip download .* has failed(.|\n)*machine's settings"):
        fetch_engine("spark")
    assert not list((tmp_path / "cache").rglob("spark-*"))


def test_each_checksum_is_pinned():
    for engine in ENGINES.values():
        assert all(len(digest) == 64 for digest in (engine.sha256, engine.digest))
