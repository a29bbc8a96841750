"""A version before it has a number: makes and checks its contents, and writes them.

The contents are staged next to the artifact of the export, so a kill harms nothing.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from pipeline_ops.artifacts.manifest import (
    NAME,
    SIGNATURE,
    Manifest,
    ManifestFile,
    list_files,
    write_manifest,
)
from pipeline_ops.artifacts.results import (
    SAVED_MODEL,
    FormatFigures,
    ModelFigures,
    list_saved_model_files,
)
from pipeline_ops.config.export import Export
from pipeline_ops.errors import DataError
from pipeline_ops.export.card import build_card, write_card
from pipeline_ops.export.check import References, check_format, check_saved_model
from pipeline_ops.export.conversion import run_converter
from pipeline_ops.export.formats import FORMAT_PATHS
from pipeline_ops.export.serving_check import check_serving
from pipeline_ops.export.trained_model import TrainedModel
from pipeline_ops.export.warmup import write_warmup
from pipeline_ops.jobs.local_inputs import fetch_input
from pipeline_ops.jobs.request import Request
from pipeline_ops.jobs.runner import Job
from pipeline_ops.registry.minisign import read_secret_key
from pipeline_ops.storage.digest import compute_digest
from pipeline_ops.storage.local_files import (
    copy_file,
    link_file,
    remove_own_folder,
    write_atomically,
)

_WARMUP_BATCHES = (1, 8)
"""The numbers of images in the requests that TensorFlow Serving warms a version up with."""


@dataclasses.dataclass(frozen=True)
class StagedVersion:
    """A version that is complete except for its number, and the results of its checks."""

    request: Request
    config: Export
    model: TrainedModel
    folder: Path
    formats: list[FormatFigures]

    @property
    def contents_digest(self) -> str:
        """The digest of the settings that make another version of the same model.

        They are the formats and the texts of the card.
        """
        return compute_digest(
            self.config.model_dump(mode="json", include={"formats", "int8", "card"})
        )

    def build_figures(self, number: int) -> ModelFigures:
        saved_model, evaluation = self.formats[0], self.model.evaluation
        return ModelFigures(
            name=self.config.model,
            version=number,
            compared_with=evaluation.champion_version,
            metrics=evaluation.challenger.metrics,
            num_checked=saved_model.num_checked,
            max_difference=saved_model.max_difference,
            top1_agreement=saved_model.top1_agreement,
            class_names=self.model.figures.class_names,
            formats=self.formats,
            contents=self.contents_digest,
        )

    def write(self, folder: Path, number: int) -> None:
        """Writes the version.

        The SavedModel is as TensorFlow Serving expects it, with `saved_model.pb` at the top. The
        other files are next to it, and the manifest is written after them.
        """
        for file in sorted(file for file in self.folder.rglob("*") if file.is_file()):
            copy_file(file, folder / file.relative_to(self.folder))
        config, model, request = self.config, self.model, self.request
        card = build_card(config, number, request, model.training, model.evaluation, self.formats)
        write_card(folder, card)
        files = list_files(folder)
        self._validate_saved_model(files)
        write_manifest(
            folder,
            Manifest(
                job=request.job,
                pipeline=request.pipeline,
                fingerprint=request.fingerprint,
                fingerprint_digest=request.fingerprint.digest,
                inputs=request.inputs,
                files=files,
                figures=self.build_figures(number).model_dump(mode="json"),
            ),
        )
        if config.signing_key:
            key = read_secret_key(Path(config.signing_key))
            signature = key.sign((folder / NAME).read_bytes(), f"{config.model}/{number}/{NAME}")
            write_atomically(folder / SIGNATURE, signature)

    def _validate_saved_model(self, files: list[ManifestFile]) -> None:
        found = {file.path: (file.crc32c, file.sha256) for file in files}
        for file in list_saved_model_files(self.model.training):
            path = file.path.removeprefix(f"{SAVED_MODEL}/")
            if found.get(path) != (file.crc32c, file.sha256):
                raise DataError(
                    f"{self.model.folder}: {file.path} was changed during its publication, so "
                    "nothing was published. Train again."
                )


def stage_version(job: Job, config: Export, model: TrainedModel) -> StagedVersion:
    """Makes and checks all contents of a version.

    The converter starts first, because most of its time is an import.
    """
    folder, progress = job.work / "staged", job.progress
    job.make_work()
    remove_own_folder(folder)
    for file in list_saved_model_files(model.training):
        path = folder / Path(file.path).relative_to(SAVED_MODEL)
        path.parent.mkdir(parents=True, exist_ok=True)
        link_file(model.folder / file.path, path)
    converted = [name for name in config.formats if name in FORMAT_PATHS]
    num_classes = len(model.figures.class_names)
    dataset = model.dataset
    if "tflite_int8" in config.formats:
        dataset = fetch_input(dataset, lambda path: path.startswith("train-"))
    with run_converter(folder, dataset.uri, config, converted, num_classes) as wait:
        progress.report("check", message="comparing the SavedModel with the trained model")
        references = References(model.folder, folder, num_classes, model.figures.task)
        formats = [check_saved_model(references, folder, config)]
        seconds = wait()
        for name in converted:
            progress.report("check", message=f"comparing {name} with the trained model")
            formats.append(check_format(name, references, folder, config, seconds[name]))
    progress.report("serve", message="requesting predictions from a server")
    check_serving(folder, references, config)
    write_warmup(folder, config.model, _build_warmup_requests(references))
    return StagedVersion(job.request, config, model, folder, formats)


def _build_warmup_requests(references: References) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Returns requests for each signature that answers, with one image and with several."""
    images, found = references.decode_images(), []
    for count in (count for count in _WARMUP_BATCHES if count <= len(images)):
        found += [
            ("serving_default", {"image_bytes": np.array(references.encoded[:count], object)}),
            ("images", {"images": images[:count]}),
            ("examples", {"examples": np.array(references.serialized[:count], object)}),
        ]
    return found
