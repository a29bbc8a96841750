"""The SavedModel of the trained weights, with serving signatures and reference outputs.

A separate process, forked after the gang has finished, builds the model again without a strategy.
So the gang's devices and addresses stay out of the SavedModel.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline_ops.artifacts.dataset import ENCODED
from pipeline_ops.artifacts.results import (
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    SAVED_MODEL,
    WEIGHTS,
)
from pipeline_ops.config.train import Train
from pipeline_ops.input.detections import pack_detections
from pipeline_ops.input.reading import open_split, read_batches
from pipeline_ops.input.streaming import raise_read_errors
from pipeline_ops.jobs.file_exchange import fetch_files, store_files
from pipeline_ops.jobs.gang_protocol import TRAINED, CandidateSpec
from pipeline_ops.jobs.host_dataset import HostDataset, open_host_cache, open_host_dataset
from pipeline_ops.jobs.request import read_request
from pipeline_ops.models import build_model, make_head
from pipeline_ops.storage.atomic import translate_write_errors
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.storage.staging import remove_own_folder
from pipeline_ops.training.checkpointing.state import read_arrays, write_arrays
from pipeline_ops.training.served import ServedClassifier, ServedDetector, ServedImages

_NUM_REFERENCE_EXAMPLES = 64


def export_saved_model(spec: CandidateSpec) -> None:
    """Writes SavedModel, weights and reference outputs into the artifact of the train job."""
    request = read_request(open_path(spec.request))
    config, folder, work = Train.model_validate(request.config), Path(spec.folder), Path(spec.work)
    if spec.source:
        remove_own_folder(folder)
        for each in (folder, work):
            each.mkdir(parents=True, exist_ok=True)
        fetch_files(open_root(spec.source), work, only=[TRAINED])
    uri, cache = request.inputs["preprocess"].uri, open_host_cache(config.input)
    dataset = open_host_dataset(uri, config.input, cache, print)
    image_shape, num_classes = dataset.figures.image_shape, len(dataset.figures.class_names)
    config_folder, geometry = Path(request.config_file).parent, dataset.figures.geometry
    model = build_model(config, image_shape, num_classes, config_folder, for_training=False)
    weights = read_arrays(work / TRAINED)
    model.set_weights(weights)
    write_arrays(folder / WEIGHTS, weights)
    served: ServedImages
    if dataset.figures.task == "detection":
        head = make_head(config, image_shape, num_classes)
        served = ServedDetector(model, image_shape, head, geometry)
    else:
        served = ServedClassifier(model, image_shape, geometry)
    _write_references(dataset, served, folder)
    tf.saved_model.save(served, str(folder / SAVED_MODEL), signatures=served.signatures)
    if spec.target:
        files = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
        store_files(folder, map(str, files), open_root(spec.target))


def _write_references(dataset: HostDataset, served: ServedImages, folder: Path) -> None:
    """Writes real test examples, and the outputs that the published model must give for them."""
    tests = read_batches(open_split(dataset, "test"), _NUM_REFERENCE_EXAMPLES)
    with raise_read_errors():
        examples: Sequence[bytes] = next(tests.take(1).as_numpy_iterator(), [])
    with tf.io.TFRecordWriter(str(folder / REFERENCE_EXAMPLES)) as writer:
        for example in examples:
            writer.write(example)
    features = tf.io.parse_example(examples, {ENCODED: tf.io.FixedLenFeature([], tf.string)})
    predictions = served.serving_default(features[ENCODED])
    outputs = (
        pack_detections(predictions)
        if isinstance(served, ServedDetector)
        else predictions["probabilities"].numpy()
    )
    with translate_write_errors(folder / REFERENCE_OUTPUTS):
        np.save(folder / REFERENCE_OUTPUTS, outputs)
