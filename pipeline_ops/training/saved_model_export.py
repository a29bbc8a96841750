"""The SavedModel of the trained weights, with serving signatures and reference outputs.

A separate process, forked after the gang has finished, builds the model again without a strategy.
So the gang's devices and addresses stay out of the SavedModel.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from pipeline_ops.artifacts.dataset import ENCODED, DatasetFigures, removed_positions, shard_paths
from pipeline_ops.artifacts.manifest import read_manifest
from pipeline_ops.artifacts.results import (
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    SAVED_MODEL,
    WEIGHTS,
)
from pipeline_ops.config.train import Train
from pipeline_ops.input.detections import pack
from pipeline_ops.input.records import read_records
from pipeline_ops.jobs.gang_protocol import TRAINED, CandidateSpec
from pipeline_ops.jobs.local_copy import host_cache, with_local_dataset
from pipeline_ops.jobs.request import Request, read_request
from pipeline_ops.models import build_model, make_head
from pipeline_ops.storage.atomic import names_file
from pipeline_ops.training.checkpointing.state import read_arrays, write_arrays
from pipeline_ops.training.served_classifier import ServedClassifier
from pipeline_ops.training.served_detector import ServedDetector
from pipeline_ops.training.served_images import ServedImages

_NUM_REFERENCES = 64


def write_candidate(spec: CandidateSpec) -> None:
    """Writes SavedModel, weights and reference outputs into the artifact of the train job."""
    request = read_request(spec.request)
    config, folder = Train.model_validate(request.config), Path(spec.folder)
    request = with_local_dataset(request, config.input, host_cache(config.input), print)
    manifest = read_manifest(request.inputs["preprocess"].uri)
    figures = DatasetFigures.model_validate(manifest.figures)
    model = build_model(
        config,
        figures.image_shape,
        len(figures.class_names),
        Path(request.config_file).parent,
        for_training=False,
    )
    weights = read_arrays(Path(spec.work) / TRAINED)
    model.set_weights(weights)
    write_arrays(folder / WEIGHTS, weights)
    served = _served(config, model, figures)
    _write_references(request, served, folder)
    tf.saved_model.save(served, str(folder / SAVED_MODEL), signatures=served.signatures)


def _served(config: Train, model: keras.Model, figures: DatasetFigures) -> ServedImages:
    if figures.task == "detection":
        return ServedDetector(
            model,
            figures.image_shape,
            make_head(config, figures.image_shape, len(figures.class_names)),
        )
    return ServedClassifier(model, figures.image_shape)


def _write_references(request: Request, served: ServedImages, folder: Path) -> None:
    """Writes real test examples, and the outputs of the model in memory for them.

    The published model must give the same outputs.
    """
    uri = request.inputs["preprocess"].uri
    manifest = read_manifest(uri)
    tests = read_records(shard_paths(uri, manifest, "test"), removed_positions(manifest, "test"))
    examples = list(tests.take(_NUM_REFERENCES).as_numpy_iterator())
    with tf.io.TFRecordWriter(str(folder / REFERENCE_EXAMPLES)) as writer:
        for example in examples:
            writer.write(example)
    features = tf.io.parse_example(examples, {ENCODED: tf.io.FixedLenFeature([], tf.string)})
    answer = served.serving_default(features[ENCODED])
    outputs = (
        pack(answer) if isinstance(served, ServedDetector) else answer["probabilities"].numpy()
    )
    with names_file(folder / REFERENCE_OUTPUTS):
        np.save(folder / REFERENCE_OUTPUTS, outputs)
