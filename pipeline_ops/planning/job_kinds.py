"""The jobs: modules, inputs, and the code and packages that can change their results."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter

from pipeline_ops.config.model_catalogue import CATALOGUE, is_user_function
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.config.sources import BeamSource
from pipeline_ops.contract.gang_protocol import AGENT_MODULE, FORK_SERVER_MODULE
from pipeline_ops.contract.source_code import (
    CODE_ROOT,
    PACKAGES,
    digest_all_sources,
    digest_sources,
)
from pipeline_ops.errors import MachineError
from pipeline_ops.job.local_inputs import open_host_cache
from pipeline_ops.storage.checksums import compute_digest
from pipeline_ops.storage.local_files import write_json

JOBS = ("preprocess", "train", "evaluate", "export")
"""The jobs of every DAG, in the order in which it runs them. A search has one more, `search`."""

_DIGESTS, _MAX_DIGESTS_BYTES = "digests.json", 1 << 16
_DigestsByPath = TypeAdapter(dict[str, str])
_IMAGES = ("numpy", "opencv-python-headless", "simplejpeg", "pillow")
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "keras", "numpy")


@dataclasses.dataclass(frozen=True)
class JobKind:
    """The fixed properties of a job."""

    module: str
    reads: tuple[str, ...]
    """The jobs whose manifests it gets."""
    packages: tuple[str, ...]
    """The packages whose versions can change its result."""
    starts: tuple[str, ...] = ()
    """The modules that it starts as processes."""


KINDS: Mapping[str, JobKind] = {
    "preprocess": JobKind(
        "beam_jobs.__main__", (), (*_IMAGES, "protobuf", "google-crc32c", "jinja2")
    ),
    "search": JobKind("pipeline_ops.job.study", (), ("optuna",)),
    "train": JobKind(
        "pipeline_ops.launch.train",
        ("preprocess",),
        _TENSORFLOW,
        (AGENT_MODULE, FORK_SERVER_MODULE),
    ),
    "evaluate": JobKind(
        "pipeline_ops.evaluation.evaluate",
        ("preprocess", "train"),
        (*_TENSORFLOW, "scikit-learn", "scipy", "jinja2", "pillow"),
    ),
    "export": JobKind(
        "pipeline_ops.export.export", ("train", "evaluate"), (*_TENSORFLOW, "jinja2")
    ),
}


def digest_job_code(job: str, config: PipelineConfig, root: Path = CODE_ROOT) -> dict[str, str]:
    """Returns digests of the source files of this project that a job runs, by path.

    The other stages, sources and models of the catalogues do not count.
    """
    modules, used = _list_modules(job, config)
    return digest_sources(modules, root, used=used)


def find_job_code(job: str, config: PipelineConfig, root: Path = CODE_ROOT) -> dict[str, str]:
    """Caches `digest_job_code` on this host, because parsing all files takes half a second."""
    try:
        sources = digest_all_sources(root, PACKAGES)
        key = compute_digest([sys.version, sources, *_list_modules(job, config)])

        def fill(folder: Path) -> None:
            write_json(folder / _DIGESTS, digest_job_code(job, config, root))
            if digest_all_sources(root, PACKAGES) != sources:
                raise OSError("a source file was changed in the meantime")

        cache = open_host_cache(config.train.input)
        if entry := cache.try_open_entry("code", key, fill, _MAX_DIGESTS_BYTES):
            with contextlib.closing(entry):
                return _DigestsByPath.validate_json((entry.path / _DIGESTS).read_bytes())
    except (MachineError, OSError, ValueError, RuntimeError):  # there may be no home folder
        pass
    return digest_job_code(job, config, root)


def _list_modules(job: str, config: PipelineConfig) -> tuple[list[str], list[str]]:
    """Returns the modules that a job starts from, and the entries of catalogues that it uses."""
    kind, model = KINDS[job], config.train.model
    modules, used = [kind.module, *kind.starts], [model]
    if job == "preprocess":
        source = config.preprocess.source
        read = source.input_source if isinstance(source, BeamSource) else source
        used = [*([read.type] if read else []), *(s.name for s in config.preprocess.stages)]
    if job == "train" and not is_user_function(model):
        modules.append(f"pipeline_ops.models.{CATALOGUE[model].module}")
    return modules, used
