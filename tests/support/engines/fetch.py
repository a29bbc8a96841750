"""The programs of Flink and Spark, and a job server of Beam for each. They are fetched once.

The distributions are source archives of Python packages: their jars need no installation. A job
server is one jar, merged of Beam's runner and all that it needs, because Beam's own merged jars are
not in every mirror of Maven's repository. pip and Maven use the settings of this machine.

    python tests/support/engines/fetch.py [flink] [spark]
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline_ops.system.locks import exclusive_lock

RUNNER, JOB_SERVICE, LOGGER = "2.70.0", "2.65.0", "2.0.16"
"""Versions of Beam's runners and its job service, and of a logger. The Python SDK is newer."""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_FREE_BYTES = 3 << 30
_FETCH_SECONDS = 1800
_SIGNATURES = re.compile(r"META-INF/[^/]+\.(SF|RSA|DSA)$")


class EngineError(Exception):
    """A cluster can't be fetched or started. The message says what is missing, and the cure."""


@dataclass(frozen=True)
class Engine:
    """The versions and checksums of an engine.

    Attributes:
      package: the Python package that has the engine's jars.
      sha256: of its source archive.
      jars: the folder of the jars in the archive, below its first folder.
      runner: Beam's runner in Maven's repository.
      driver: the main class of the job server.
      digest: the SHA-256 of the list that `list_digests` makes of the job server's parts.
    """

    name: str
    package: str
    version: str
    sha256: str
    jars: str
    runner: str
    driver: str
    digest: str


ENGINES = {
    "flink": Engine(
        name="flink",
        package="apache-flink-libraries",
        version="1.19.3",
        sha256="4a58e3a1fb7d83340bc96b6c080624c6d792d69fae5d294b96224775204a9c60",
        jars="deps/lib",
        runner="beam-runners-flink-1.19",
        driver="org.apache.beam.runners.flink.FlinkJobServerDriver",
        digest="ea079d8e892c330a2185e5ba4e7be8a2b511d32f4b8202be18e63edbc2b7ef39",
    ),
    "spark": Engine(
        name="spark",
        package="pyspark",
        version="3.5.9",
        sha256="ea27adc39ddac9413b8951e45aa748cbed6c785971b81386efc41938f6243d93",
        jars="deps/jars",
        runner="beam-runners-spark-3",
        driver="org.apache.beam.runners.spark.SparkJobServerDriver",
        digest="36e4445f0bc5bdc1a82890b9158c2e1565909ed6b6b955ba07ce73569dbd60b2",
    ),
}


@dataclass(frozen=True)
class Programs:
    """A folder with `jars/` (the engine) and `job-server.jar`."""

    folder: Path

    @property
    def jars(self) -> list[Path]:
        return sorted((self.folder / "jars").glob("*.jar"))

    @property
    def job_server(self) -> Path:
        return self.folder / "job-server.jar"


def find_cache() -> Path:
    """The folder that keeps what tests have fetched. `XDG_CACHE_HOME` moves it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard-tests"


def find_programs(name: str) -> Programs | None:
    """The programs of an engine, if they were fetched."""
    folder = _find_folder(ENGINES[name])
    return Programs(folder) if folder.is_dir() else None


def _find_folder(engine: Engine) -> Path:
    return find_cache() / f"{engine.name}-{engine.version}-beam-{RUNNER}-{engine.digest[:8]}"


def fetch_engine(name: str) -> Programs:
    """The programs of an engine, fetched if this user does not have them yet.

    Fetching takes one to three minutes, and 0.5 GB (Flink) or 0.8 GB (Spark) of disk.

    Raises:
      EngineError: something is missing, or does not have its checksum.
    """
    engine, cache = ENGINES[name], find_cache()
    folder = _find_folder(engine)
    cache.mkdir(parents=True, exist_ok=True)
    lock = cache / "engines-fetch.lock"
    with exclusive_lock(lock, "the download of Flink and Spark", wait_seconds=_FETCH_SECONDS):
        if not folder.is_dir():
            _check_machine(cache)
            staging = cache / "engines-staging"
            shutil.rmtree(staging, ignore_errors=True)
            (staging / "jars").mkdir(parents=True)
            _fetch_engine_jars(engine, staging)
            _fetch_job_server(engine, staging)
            staging.rename(folder)
    return Programs(folder)


def _check_machine(cache: Path) -> None:
    for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            raise EngineError(f"{program} is not in PATH. On Debian: apt install {package}.")
    if (free := shutil.disk_usage(cache).free) < _FREE_BYTES:
        raise EngineError(
            f"Flink and Spark need {_FREE_BYTES >> 20} MB of disk in {cache}, and {free >> 20} MB "
            "are free. Free some, or set XDG_CACHE_HOME to another folder."
        )


def _fetch_engine_jars(engine: Engine, staging: Path) -> None:
    """pip compares the archive with its checksum."""
    archives, wanted = staging / "archives", staging / "requirements.txt"
    wanted.write_text(f"{engine.package}=={engine.version} --hash=sha256:{engine.sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
    _run([*pip, "--no-build-isolation", "--require-hashes", "-d", archives, "-r", wanted])
    [archive] = archives.iterdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, inside = member.name.partition("/")
            folder, _, name = inside.rpartition("/")
            if folder == engine.jars and name.endswith(".jar") and member.isfile():
                with open(staging / "jars" / name, "wb") as target:
                    shutil.copyfileobj(tar.extractfile(member), target)
    shutil.rmtree(archives)


def _fetch_job_server(engine: Engine, staging: Path) -> None:
    project, parts = staging / "pom.xml", staging / "parts"
    project.write_text(_describe_project(engine))
    options = ["-DincludeScope=runtime", f"-DoutputDirectory={parts}"]
    _run(["mvn", "-q", "-B", "-C", "-ntp", "-f", project, _COPY, *options])
    found = hashlib.sha256(list_digests(parts.glob("*.jar")).encode()).hexdigest()
    if found != engine.digest:
        raise EngineError(
            f"the parts of the job server of {engine.name} have the digest {found}, and "
            f"{engine.digest} is expected. Compare the versions in {Path(__file__).name} with "
            f"those that Maven chose:\n{list_digests(parts.glob('*.jar'))}"
        )
    merge_jars(parts.glob("*.jar"), staging / "job-server.jar", engine.driver)
    shutil.rmtree(parts)


def _describe_project(engine: Engine) -> str:
    """A project of Maven whose only content is what the job server needs."""
    wanted = [
        ("org.apache.beam", engine.runner, RUNNER),
        ("org.apache.beam", "beam-runners-java-job-service", JOB_SERVICE),
    ]
    if engine.name == "flink":  # Spark brings a logger
        wanted.append(("org.slf4j", "slf4j-simple", LOGGER))
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>\n"
        for group, artifact, version in wanted
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId>"
        "<artifactId>job-server</artifactId><version>1</version>\n"
        f"<dependencies>\n{dependencies}</dependencies></project>\n"
    )


def list_digests(files: Iterable[Path]) -> str:
    """One line for each file, sorted by name: its SHA-256 and its name, as of `sha256sum`."""
    lines = []
    for file in sorted(files, key=lambda file: file.name):
        with open(file, "rb") as content:
            lines.append(f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {file.name}\n")
    return "".join(lines)


def merge_jars(jars: Iterable[Path], target: Path, main_class: str) -> None:
    """Writes one jar with the content of many. Of files with the same name, it has Beam's, else the
    first; services of the same name are joined. Signatures, which would not fit, are left out."""
    ordered = sorted(jars, key=lambda jar: (not jar.name.startswith("beam-"), jar.name))
    services: dict[str, dict[str, None]] = {}
    seen = {"META-INF/MANIFEST.MF"}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as merged:
        head = f"Manifest-Version: 1.0\nMain-Class: {main_class}\nMulti-Release: true\n\n"
        merged.writestr("META-INF/MANIFEST.MF", head)
        for jar in ordered:
            with zipfile.ZipFile(jar) as part:
                for name in part.namelist():
                    if name.startswith("META-INF/services/") and not name.endswith("/"):
                        lines = part.read(name).decode().splitlines()
                        services.setdefault(name, {}).update(dict.fromkeys(lines))
                    elif name not in seen and _is_wanted(name):
                        seen.add(name)
                        merged.writestr(name, part.read(name))
        for name, lines in services.items():
            kept = [line for line in lines if line.strip() and not line.startswith("#")]
            merged.writestr(name, "\n".join(kept) + "\n")


def _is_wanted(name: str) -> bool:
    is_descriptor = name.endswith(("/", "module-info.class"))
    return not (is_descriptor or _SIGNATURES.match(name))


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(
            f"{' '.join(map(str, command))} has failed with {done.returncode}. The package index "
            f"and Maven's repository are those of this machine's settings.\n"
            f"{(done.stdout + done.stderr)[-4000:]}"
        )


if __name__ == "__main__":
    for given in sys.argv[1:] or ENGINES:
        print(fetch_engine(given).folder)
