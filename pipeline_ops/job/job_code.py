"""The author's code of a job: the modules and files in its request, and the check of the rest.

What lies beside the config file travels with the request, wherever the job runs, and the job uses
that copy. So an edit changes nothing in a job that is planned. Packages must be installed on the
job's host. An artifact must not have the fingerprint of code that has not made it, so the modules
of these are compared with the fingerprint when they are imported, and on another host also before
any work, together with the packages.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline_ops.config.evaluate import Evaluate
from pipeline_ops.config.preprocess import Preprocess
from pipeline_ops.config.train import Train
from pipeline_ops.contract.fingerprint import find_versions
from pipeline_ops.contract.request import Request
from pipeline_ops.contract.source_code import PACKAGES, digest_all_sources
from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.local_files import translate_write_errors, write_atomically
from pipeline_ops.user_code.models import digest_user_code
from pipeline_ops.user_code.planned_imports import FOLDER, PlannedCode, import_as_planned
from pipeline_ops.user_code.sources import digest_source_code
from pipeline_ops.user_code.stages import digest_stage_code


def write_user_files(files: Mapping[str, bytes], folder: Path) -> Path:
    """Writes an author's files below a folder, unless they are there. Returns their folder."""
    target = folder / FOLDER
    for path, content in files.items():
        file = target / path
        if not file.is_file() or file.read_bytes() != content:
            with translate_write_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, content)
    return target


@contextlib.contextmanager
def use_user_code(
    request: Request, folder: Path, more_code: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Has the author's modules imported as a request has planned them, while the block runs.

    Yields the folder of those that travelled, which is below that of the request.

    Args:
      folder: that of the request.
      more_code: digests of other modules that this process imports, such as stages.
    """
    target = write_user_files(request.user_files, folder)
    digests = {**(more_code or {}), **request.fingerprint.code}
    with import_as_planned(PlannedCode(target, Path(request.config_file).parent, digests)):
        yield target


IMAGE = "image"
"""The fingerprint key of an image id. It replaces the versions of all packages in the image."""


def digest_code() -> str:
    """The digest of this project's code here."""
    return digest_all_sources(packages=PACKAGES)


def _digest_own_code(request: Request, folder: Path) -> dict[str, str]:
    """The digests of the author's own modules here. Raises ConfigError if one is missing."""
    match request.job:
        case "train":
            return digest_user_code(Train.model_validate(request.config), folder)
        case "evaluate":
            return digest_user_code(Evaluate.model_validate(request.config), folder)
        case "preprocess":
            config = Preprocess.model_validate(request.config)
            stages = digest_stage_code([stage.name for stage in config.stages])
            return stages | digest_source_code(config.source, folder)
        case _:
            return {}


def check_environment(
    request: Request, folder: Path, own_code: Mapping[str, str] | None = None
) -> None:
    """Raises ConfigError if this host has other code or packages than those of the plan.

    `folder` has the author's modules that travelled. `own_code` are the digests of those that are
    needed here, by default of all.
    """
    if request.code_digest and request.code_digest != (found := digest_code()):
        raise ConfigError(
            f"the copy of Trainyard on {platform.node()} (digest {found}) is not the one that "
            f"Airflow has ({request.code_digest}). Install the same version there, or build the "
            "image again"
        )
    for path, digest in (
        _digest_own_code(request, folder) if own_code is None else own_code
    ).items():
        if request.fingerprint.code.get(path) != digest:
            raise ConfigError(
                f"{path} on {platform.node()} is not the one that Airflow has. Install the same "
                "version of its package there, or build the image again"
            )
    expected = request.fingerprint.versions
    if IMAGE in expected:
        return
    installed = find_versions(expected) | {"python": platform.python_version()}
    differing = [
        f"{name} {installed.get(name, 'missing')} and not {version}"
        for name, version in sorted(expected.items())
        if installed.get(name) != version
    ]
    if differing:
        raise ConfigError(
            f"{platform.node()} has {', '.join(differing)}. All hosts that a job runs on need the "
            "same packages"
        )
