"""The four jobs: modules, inputs, and the source files that can change their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from pipeline_ops.artifacts.fingerprint import CODE_ROOT
from pipeline_ops.config.model_catalogue import CATALOGUE, is_own
from pipeline_ops.config.pipeline import PipelineConfig

JOBS = ("preprocess", "train", "evaluate", "export")
"""All jobs, in the order in which a DAG runs them."""

_PAGE = (
    "pipeline_ops/pages/page.py",
    "pipeline_ops/pages/page.css",
    "pipeline_ops/pages/page_head.html",
    "pipeline_ops/pages/svg.py",
)
"""The files that the pages of two jobs share."""
_INPUT = (
    "augment",
    "augment_scenes",
    "augmentation",
    "dataset",
    "detections",
    "image_transforms",
    "mosaic",
    "records",
    "sources",
    "split",
    "stateless_random",
)
_PLANNING = (
    "balance",
    "delta",
    "duplicates",
    "generations",
    "index",
    "perceptual_hash",
    "plan",
    "plan_file",
    "splits",
)
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "keras", "numpy")


@dataclasses.dataclass(frozen=True)
class JobKind:
    """The fixed properties of a job.

    `module` is started with `python -m`. `reads` names the jobs whose manifests it gets. `code`
    lists the source files that can change the result, for a config. `packages` are those whose
    versions can change it.
    """

    module: str
    reads: tuple[str, ...]
    packages: tuple[str, ...]
    code: Callable[[PipelineConfig], list[str]]


_SHARED_BY_SOURCES = {
    "csv": ("manifest",),
    "jsonl": ("manifest",),
    "tfds": ("packed",),
    "tfrecord": ("packed", "label_map"),
}


def _code_of_source(kind: str) -> list[str]:
    names = ("collect", kind, *_SHARED_BY_SOURCES.get(kind, ()))
    return ["beam_jobs/stages/given_boxes.py", *(f"beam_jobs/sources/{name}.py" for name in names)]


def _code_of_stages(names: Iterable[str]) -> list[str]:
    """The files of this project's stages. `_foreign` covers those of other packages."""
    paths = [f"beam_jobs/stages/{name}.py" for name in names]
    return [path for path in paths if (CODE_ROOT / path).is_file()]


def _code_of_model(model: str) -> list[str]:
    return [] if is_own(model) else CATALOGUE[model].code


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
        lambda config: [
            "beam_jobs/preprocess.py",
            "beam_jobs/pipeline.py",
            "beam_jobs/work.py",
            "beam_jobs/io",
            "beam_jobs/output",
            "beam_jobs/statistics",
            *(f"beam_jobs/planning/{name}.py" for name in _PLANNING),
            *_PAGE,
            *_code_of_source(config.preprocess.source.type),
            "beam_jobs/stages/stage.py",
            "beam_jobs/stages/boxes.py",
            *(_code_of_stages(stage.name for stage in config.preprocess.stages)),
        ],
    ),
    "train": JobKind(
        "pipeline_ops.launch.train",
        ("preprocess",),
        _TENSORFLOW,
        lambda config: [
            "pipeline_ops/training",
            *(f"pipeline_ops/input/{name}.py" for name in _INPUT),
            "pipeline_ops/config/model_catalogue.py",
            "pipeline_ops/models/__init__.py",
            "pipeline_ops/models/own.py",
            "pipeline_ops/models/task.py",
            "pipeline_ops/models/classification.py",
            *_code_of_model(config.train.model),
        ],
    ),
    "evaluate": JobKind(
        "pipeline_ops.evaluation.evaluate",
        ("preprocess", "train"),
        (*_TENSORFLOW, "jinja2", "pillow"),
        lambda config: [
            "pipeline_ops/evaluation",
            "pipeline_ops/artifacts/dataset_index.py",
            "pipeline_ops/input/saved_model_client.py",
            "pipeline_ops/input/detections.py",
            "pipeline_ops/input/records.py",
            *_PAGE,
        ],
    ),
    "export": JobKind(
        "pipeline_ops.export.export",
        ("train", "evaluate"),
        (*_TENSORFLOW, "jinja2"),
        lambda config: [
            *(
                f"pipeline_ops/export/{name}.py"
                for name in (
                    "export",
                    "check",
                    "card",
                    "conversion",
                    "convert",
                    "formats",
                    "publication",
                    "warmup",
                )
            ),
            "pipeline_ops/export/publication.html",
            "pipeline_ops/pages/page.py",
            "pipeline_ops/input/saved_model_client.py",
            "pipeline_ops/input/detections.py",
        ],
    ),
}
