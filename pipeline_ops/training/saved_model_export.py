"""The candidate: the SavedModel of the trained weights, with reference examples.

A separate process, forked after the gang has finished, builds the model again without a strategy.
So the gang's devices and addresses stay out of the SavedModel. Each stage of the preprocessing that
changes pixels is a part of it, unless the config leaves one to the client (`served/`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline_ops.config.train import Train
from pipeline_ops.contract.dataset import (
    ENCODED,
    KEY,
    is_raw_test_file,
    list_raw_test_paths,
)
from pipeline_ops.contract.gang_protocol import TRAINED, CandidateSpec
from pipeline_ops.contract.manifest import Input, read_manifest
from pipeline_ops.contract.progress import ProgressWriter
from pipeline_ops.contract.request import Request, read_request
from pipeline_ops.contract.results import (
    REFERENCE_EXAMPLES,
    REFERENCE_OUTPUTS,
    SAVED_MODEL,
    WEIGHTS,
)
from pipeline_ops.input.reading import open_split, read_batches, read_records
from pipeline_ops.input.streaming import raise_read_errors
from pipeline_ops.job.job_code import use_user_code
from pipeline_ops.job.local_inputs import (
    HostDataset,
    fetch_files,
    fetch_input,
    open_host_cache,
    open_host_dataset,
    store_files,
)
from pipeline_ops.models import build_model, make_head
from pipeline_ops.models.user_errors import convert_training_errors
from pipeline_ops.served.client import (
    RawRecord,
    decode_pixels,
    pack_detections,
    pack_raw_record,
    parse_raw_record,
    skip_graph_optimizer,
)
from pipeline_ops.served.model import ServedClassifier, ServedDetector, ServedImages, add_assets
from pipeline_ops.served.preprocessing import Preprocessing
from pipeline_ops.storage.local_files import remove_own_folder, translate_write_errors
from pipeline_ops.storage.open_store import open_path, open_root
from pipeline_ops.training.self_consistency import (
    NUM_ANSWERS,
    REDUCED_TOLERANCE,
    TRAINED_TOLERANCE,
    check_answers,
    list_images,
)
from pipeline_ops.training.weight_files import number_paths, read_answers, read_arrays, write_arrays

_NUM_REFERENCE_EXAMPLES, _MAX_REFERENCE_IMAGES = 64, 96
"""Without raw records, and with them: the data set has 64 and a few of each rare kind of file."""


def export_saved_model(spec: CandidateSpec) -> None:
    """Writes SavedModel, weights and reference outputs into the artifact of the train job."""
    request = read_request(open_path(spec.request))
    dataset = read_manifest(open_path(request.inputs["preprocess"].uri))
    # The stages are served with the code that has made the data set.
    config = Train.model_validate(request.config)
    with (
        use_user_code(request, Path(spec.request).parent, dataset.fingerprint.code) as code_folder,
        convert_training_errors(config),
    ):
        _export(spec, request, config, code_folder)


def _export(spec: CandidateSpec, request: Request, config: Train, code_folder: Path) -> None:
    report = ProgressWriter(Path(spec.progress or os.devnull)).report
    report("candidate", message="builds the model")
    folder, work = Path(spec.folder), Path(spec.work)
    if spec.source:
        remove_own_folder(folder)
        for each in (folder, work):
            each.mkdir(parents=True, exist_ok=True)
        fetch_files(open_root(spec.source), work, only=[TRAINED])
    uri, cache = request.inputs["preprocess"].uri, open_host_cache(config.input)
    dataset = open_host_dataset(uri, config.input, cache, print)
    image_shape, num_classes = dataset.figures.image_shape, len(dataset.figures.class_names)
    model = build_model(config, image_shape, num_classes, code_folder, for_training=False)
    paths = number_paths(variable.path for variable in model.weights)
    weights = read_arrays(work / TRAINED, paths)
    model.set_weights(weights)
    answers = read_answers(work / TRAINED)
    # Random pixels may be beyond float16, which only the trained model computes in.
    if answers and all(np.isfinite(each).all() for each in answers):
        images = list_images((NUM_ANSWERS, *image_shape))
        check_answers(
            f"train.model: {config.model}",
            answers,
            tf.nest.flatten(model(images, training=False)),
            "the model that was built again for the SavedModel answers otherwise than the trained "
            "one. It depends on something besides its weights: numbers that it draws for itself, "
            "variables that are no weights, the order of a set, a file. trainyard validate --deep "
            "looks for it. The answers differ",
            TRAINED_TOLERANCE if config.precision == "float32" else REDUCED_TOLERANCE,
        )
    write_arrays(folder / WEIGHTS, weights, paths)
    served: ServedImages
    class_numbers: Sequence[int] = ()
    preprocessing = Preprocessing.of_dataset(dataset.figures)
    if dataset.figures.task == "detection":
        class_numbers = dataset.figures.class_numbers or range(1, num_classes + 1)
        head = make_head(config, image_shape, num_classes, dataset.figures.most_boxes_to_answer)
        served = ServedDetector(model, image_shape, head, class_numbers, preprocessing)
    else:
        served = ServedClassifier(model, image_shape, preprocessing)
    # On a GPU, TF32 would round the references to ten bits, and exported formats would differ.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    report("candidate", message="computes the reference outputs")
    _write_references(request.inputs["preprocess"], dataset, served, folder)
    report("candidate", message="writes the SavedModel")
    add_assets(served, dataset.figures.class_names, preprocessing, work, class_numbers)
    tf.saved_model.save(served, str(folder / SAVED_MODEL), signatures=served.signatures)
    if spec.target:
        report("candidate", message="stores the candidate")
        files = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
        store_files(folder, map(str, files), open_root(spec.target))


def _write_references(
    entry: Input, dataset: HostDataset, served: ServedImages, folder: Path
) -> None:
    """Writes raw records of the test split, and what the published model must answer to them."""
    local = fetch_input(entry, is_raw_test_file)
    paths = list_raw_test_paths(local.uri, read_manifest(open_path(local.uri)))
    pixels: list[bytes] = []
    with tf.io.TFRecordWriter(str(folder / REFERENCE_EXAMPLES)) as writer:
        for record in _read_references(paths, dataset):
            writer.write(record)
            pixels += parse_raw_record(record).pixels
    with skip_graph_optimizer():
        outputs = served.images(decode_pixels(pixels, served.image_shape))
    is_detector = isinstance(served, ServedDetector)
    packed = pack_detections(outputs) if is_detector else outputs["probabilities"].numpy()
    with translate_write_errors(folder / REFERENCE_OUTPUTS):
        np.save(folder / REFERENCE_OUTPUTS, packed)


def _read_references(paths: Sequence[str], dataset: HostDataset) -> Iterator[bytes]:
    """Yields raw records with pixels. If the data set has none, they are made of test examples."""
    num_images = 0
    with raise_read_errors():
        for record in read_records(paths).as_numpy_iterator() if paths else ():
            num_made = len(parse_raw_record(record).pixels)
            if num_made and (not num_images or num_images + num_made <= _MAX_REFERENCE_IMAGES):
                num_images += num_made
                yield record
        if num_images:
            return
        tests = read_batches(open_split(dataset, "test"), _NUM_REFERENCE_EXAMPLES)
        for example in next(tests.take(1).as_numpy_iterator(), ()):
            features = tf.train.Example.FromString(example).features.feature
            key, image = (features[name].bytes_list.value[0] for name in (KEY, ENCODED))
            yield pack_raw_record(RawRecord(key.decode(), b"", "", [key.decode()], [image]))
