"""The inputs, version and size of an artifact, for OpenLineage.

This module is imported only when Airflow's OpenLineage provider calls an operator.

    s3://bucket  data/digits                          the raw files; their version is the digest
                                                      of the listing
    file         <root>/artifacts/<pipeline>/<task>   all artifacts of a task are one data set;
                                                      the version is the digest of one of them
    file         <registry>/<model>                   published models; the version is their number
"""

from __future__ import annotations

from typing import Any

from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    dataset_version_dataset,
    output_statistics_output_dataset,
)

from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.contract.manifest import RAW_FILES, Input, Manifest, read_manifest
from pipeline_ops.contract.results import LAST_EVALUATION, ModelFigures
from pipeline_ops.raw_data.folder import find_raw_folder
from pipeline_ops.storage.store_path import StorePath


def build_lineage(config: PipelineConfig, path: StorePath) -> OperatorLineage[Any, Any]:
    """Builds the lineage of the artifact that a task has made or found, by its manifest."""
    manifest = read_manifest(path)
    inputs = [
        _to_input_dataset(config, entry)
        for name, entry in manifest.inputs.items()
        if name != LAST_EVALUATION  # that one is only reported
    ]
    if digest := manifest.fingerprint.inputs.get(RAW_FILES):
        raw_files = _to_namespace_and_name(str(find_raw_folder(config)))
        inputs.append(InputDataset(*raw_files, facets=_to_version_facet(digest)))
    return OperatorLineage(inputs=inputs, outputs=[_to_output_dataset(config, str(path), manifest)])


def _to_input_dataset(config: PipelineConfig, entry: Input) -> InputDataset:
    folder, version, _ = entry.uri.rsplit("/", 2)
    return InputDataset(
        *_to_namespace_and_name(folder),
        facets=_to_version_facet(version if folder == str(config.registry) else entry.digest),
    )


def _to_output_dataset(config: PipelineConfig, uri: str, manifest: Manifest) -> OutputDataset:
    if manifest.job == "export":
        figures = ModelFigures.model_validate(manifest.figures)
        uri_or_path, version = str(config.registry), str(figures.version)
    else:
        uri_or_path, version = uri.rsplit("/", 2)[0], manifest.digest
    counts = [file.num_examples for file in manifest.files if file.num_examples is not None]
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=sum(counts) if counts else None,
        size=sum(file.num_bytes for file in manifest.files),
        fileCount=len(manifest.files),
    )
    return OutputDataset(
        *_to_namespace_and_name(uri_or_path),
        facets=_to_version_facet(version),
        outputFacets={"outputStatistics": statistics},
    )


def _to_version_facet(version: str) -> dict[str, DatasetFacet]:
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=version)}


def _to_namespace_and_name(uri_or_path: str) -> tuple[str, str]:
    """Splits a URI or path into namespace and name, as OpenLineage names files and objects."""
    scheme, separator, rest = uri_or_path.partition("://")
    if not separator:
        return "file", uri_or_path
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}", path
