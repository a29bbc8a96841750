"""Artifacts of a run, made by hand in a moment.

The files hold no data. Manifests, fingerprints and the registry are real.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manifests import make_manifest

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.contract.dataset import build_shard_name
from pipeline_ops.contract.manifest import list_files, read_manifest, write_manifest
from pipeline_ops.contract.results import PREDICTIONS, REPORT
from pipeline_ops.planning.job_kinds import JOBS, KINDS
from pipeline_ops.planning.plan import plan_job
from pipeline_ops.registry.registry import Registry

_METRICS = {
    "accuracy": 0.98,
    "macro_precision": 0.97,
    "macro_recall": 0.96,
    "worst_class_recall": 0.9,
}
_EVALUATION = {"metrics": _METRICS, "classes": [], "confusion": []}
FIGURES = {
    "preprocess": {
        "class_names": ["0", "1"],
        "image_shape": [28, 28, 1],
        "num_examples": {"train": 8, "validation": 1, "test": 2},
        "labels": {},
        "num_rejected": 0,
        "rejected_by_reason": {},
    },
    "train": {
        "strategy": "multi_worker_mirrored",
        "workers": 2,
        "steps": 30,
        "restarts": 1,
        "weights_digest": "abc",
        "worker_weights_digests": ["abc", "abc"],
        "num_parameters": 10,
        "best_epoch": 1,
        "stopped_early": False,
        "history": [],
        "seconds": 1.0,
        "class_names": ["0", "1"],
        "image_shape": [28, 28, 1],
    },
    "evaluate": {
        "num_examples": 2,
        "challenger": _EVALUATION,
        "champion": None,
        "champion_version": None,
        "gate_passed": True,
        "rules": [
            {"metric": "accuracy", "passed": True, "text": "accuracy 0.9800 is at least 0.9750"}
        ],
    },
    "export": {
        "name": "digits",
        "version": 3,
        "compared_with": None,
        "metrics": _METRICS,
        "num_checked": 2,
        "max_difference": 0.0,
        "top1_agreement": 1.0,
        "class_names": ["0", "1"],
    },
}


def make_artifact(
    config: PipelineConfig,
    job: str,
    manifests: Mapping[str, str],
    contents: bytes = b"bytes",
    **figures: Any,
) -> str:
    """Makes the artifact of a job with the fingerprint of its plan. Returns its manifest's URI.

    `manifests` are the URIs of the manifests of the earlier jobs, by job. Each file has the same
    `contents`. `figures` are changes of FIGURES.
    """
    plan = plan_job(job, config, "run", manifests)
    folder = plan.manifest.parent.local
    folder.mkdir(parents=True)
    names = [REPORT, PREDICTIONS] if job == "evaluate" else [REPORT]
    if job == "preprocess":
        names = [build_shard_name(split, 0, 1) for split in ("train", "validation", "test")]
    for name in names:
        (folder / name).write_bytes(contents)
    fields = {"pipeline": config.pipeline, "inputs": plan.request.inputs}
    fields["files"] = list_files(folder)
    made = make_manifest(job, plan.request.fingerprint, FIGURES[job] | figures, **fields)
    write_manifest(folder, made)
    return str(plan.manifest)


def publish(config: PipelineConfig, number: int, inputs: Mapping[str, str] | None = None) -> None:
    """Publishes a version of the model. `inputs` are URIs of manifests, by job."""
    folder = config.registry.local / str(number)
    folder.mkdir(parents=True)
    fields = {"pipeline": config.pipeline, "fingerprint_digest": str(number)}
    fields["inputs"] = {
        job: {"uri": uri, "digest": read_manifest(uri).digest}
        for job, uri in (inputs or {}).items()
    }
    figures = FIGURES["export"] | {"version": number}
    write_manifest(folder, make_manifest("export", figures=figures, **fields))
    Registry(config.registry).promote(number, "passed the gate")


def finish(config: PipelineConfig, contents: bytes = b"bytes", **figures: Any) -> dict[str, str]:
    """Makes everything that a whole run leaves, and publishes version 1.

    The next run is cached. Returns the URIs of the manifests, by job.
    """
    manifests: dict[str, str] = {}
    for job in JOBS:
        own = {name: value for name, value in figures.items() if name in FIGURES[job]}
        if job == "export":
            own["version"] = 1
            publish(config, 1, {name: manifests[name] for name in ("train", "evaluate")})
        manifests[job] = make_artifact(
            config, job, {name: manifests[name] for name in KINDS[job].reads}, contents, **own
        )
    return manifests
