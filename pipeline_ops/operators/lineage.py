"""The inputs, version and size of an artifact, for OpenLineage.

This module is imported only when Airflow's OpenLineage provider calls an operator.

    s3://bucket  data/digits                          the raw files; their version is the digest
                                                      of the listing
    file         <root>/artifacts/<pipeline>/<task>   all artifacts of a task are one data set;
                                                      an artifact is a version, its digest
    file         <registry>/<model>                   published models; the version is their number

A data set keeps its name over the runs, and the graph shows the version of it that a model came
from.
"""

from __future__ import annotations

from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import dataset_version_dataset, output_statistics_output_dataset

from pipeline_ops.artifacts.input_names import RAW_FILES
from pipeline_ops.artifacts.manifest import Input, Manifest, read_manifest
from pipeline_ops.artifacts.results import LAST_EVALUATION, ModelFigures
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.raw_data.folder import find_raw_folder


def lineage_of(config: PipelineConfig, uri: str) -> OperatorLineage:
    """The lineage of the artifact that a task has made or found, given by its manifest's URI."""
    manifest = read_manifest(uri)
    inputs = [
        _input(config, entry) for name, entry in manifest.inputs.items() if name != LAST_EVALUATION
    ]  # that one is only reported
    if digest := manifest.fingerprint.inputs.get(RAW_FILES):
        inputs.append(InputDataset(*_place(str(find_raw_folder(config))), facets=_version(digest)))
    return OperatorLineage(inputs=inputs, outputs=[_output(config, uri, manifest)])


def _input(config: PipelineConfig, entry: Input) -> InputDataset:
    folder, version, _ = entry.uri.rsplit("/", 2)
    return InputDataset(
        *_place(folder), facets=_version(version if folder == config.registry else entry.digest)
    )


def _output(config: PipelineConfig, uri: str, manifest: Manifest) -> OutputDataset:
    if manifest.job == "export":
        place, version = config.registry, str(ModelFigures.model_validate(manifest.figures).version)
    else:
        place, version = uri.rsplit("/", 2)[0], manifest.digest
    counts = [file.num_examples for file in manifest.files if file.num_examples is not None]
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=sum(counts) if counts else None,
        size=sum(file.num_bytes for file in manifest.files),
        fileCount=len(manifest.files),
    )
    return OutputDataset(
        *_place(place), facets=_version(version), outputFacets={"outputStatistics": statistics}
    )


def _version(version: str) -> dict[str, dataset_version_dataset.DatasetVersionDatasetFacet]:
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=version)}


def _place(place: str) -> tuple[str, str]:
    """Namespace and name, as OpenLineage names files and objects."""
    scheme, separator, rest = place.partition("://")
    if not separator:
        return "file", place
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}", path
