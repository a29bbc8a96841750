"""The four jobs: modules, inputs, and the code and packages that can change their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from pipeline_ops.artifacts.source_code import CODE_ROOT, digest_sources
from pipeline_ops.config.model_catalogue import CATALOGUE, is_user_function
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.jobs.gang_protocol import AGENT_MODULE, FORK_SERVER_MODULE

JOBS = ("preprocess", "train", "evaluate", "export")
"""All jobs, in the order in which a DAG runs them."""

_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "keras", "numpy")


@dataclasses.dataclass(frozen=True)
class JobKind:
    """The fixed properties of a job.

    `module` is started with `python -m`. `starts` are the modules that it starts as processes.
    `reads` names the jobs whose manifests it gets. `packages` are those whose versions can change
    its result.
    """

    module: str
    reads: tuple[str, ...]
    packages: tuple[str, ...]
    starts: tuple[str, ...] = ()


KINDS: Mapping[str, JobKind] = {
    "preprocess": JobKind(
        "beam_jobs.preprocess",
        (),
        (
            "numpy",
            "opencv-python-headless",
            "simplejpeg",
            "pillow",
            "protobuf",
            "google-crc32c",
            "jinja2",
        ),
        ("beam_jobs.workers.worker",),
    ),
    "train": JobKind(
        "pipeline_ops.launch.train",
        ("preprocess",),
        _TENSORFLOW,
        (AGENT_MODULE, FORK_SERVER_MODULE),
    ),
    "evaluate": JobKind(
        "pipeline_ops.evaluation.evaluate",
        ("preprocess", "train"),
        (*_TENSORFLOW, "jinja2", "pillow"),
    ),
    "export": JobKind(
        "pipeline_ops.export.export",
        ("train", "evaluate"),
        (*_TENSORFLOW, "jinja2"),
        ("pipeline_ops.export.convert",),
    ),
}


def digest_job_code(job: str, config: PipelineConfig, root: Path = CODE_ROOT) -> dict[str, str]:
    """Returns digests of the source files of this project that a job runs, by path.

    The other stages, sources and models of the catalogues do not count.
    """
    kind, model = KINDS[job], config.train.model
    modules, used = [kind.module, *kind.starts], [model]
    if job == "preprocess":
        used = [config.preprocess.source.type, *(s.name for s in config.preprocess.stages)]
    if job == "train" and not is_user_function(model):
        modules.append(f"pipeline_ops.models.{CATALOGUE[model].module}")
    return digest_sources(modules, root, used=used)
