"""Reads the raw data of a pipeline as its preprocess job would, and checks them with its model.

`trainyard validate --deep` and `trainyard preview` use it. It writes only the indexes of listings,
and the verdict about the model.
"""

from __future__ import annotations

from beam_jobs.planning.duplicates import decide_collection
from beam_jobs.sources import SourceData, read_source_data
from beam_jobs.validation import validate_model, validate_plan
from pipeline_ops.artifacts.layout import Layout
from pipeline_ops.config.pipeline import PipelineConfig
from pipeline_ops.jobs.model_check import PlannedTraining
from pipeline_ops.planning.inputs import check_warm_start
from pipeline_ops.raw_data.folder import find_raw_folder, list_folder, validate_interval


def validate_deeply(config: PipelineConfig, python: str) -> dict[str, int]:
    """Checks data and model of a pipeline. Returns the number of images in each split.

    `python` is the interpreter if the config names none. Raises the errors that the preprocess job
    would raise before its work.
    """
    validate_interval(config)
    check_warm_start(config)
    preprocess, source = config.preprocess, read_source(config)
    decision = decide_collection(preprocess, source.found.records, {})
    validate_plan(preprocess, source, decision)
    training = PlannedTraining.from_config(config, python)
    validate_model(training, preprocess, source, Layout(config.root, config.pipeline))
    return {name: len(members) for name, members in decision.by_split.items()}


def read_source(config: PipelineConfig) -> SourceData:
    preprocess, listings = config.preprocess, Layout(config.root, config.pipeline).listings
    listing = list_folder(find_raw_folder(config), listings, preprocess.source.file_patterns)
    return read_source_data(preprocess, listing, config.file)
