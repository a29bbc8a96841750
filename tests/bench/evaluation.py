"""The speed of an evaluation, next to code that a person would write by hand.

Prediction: the evaluate job's own work on a SavedModel (reading, predicting, all figures, slices,
intervals), next to a plain `model.predict` of the same Keras model over a tf.data pipeline, with
scikit-learn for the figures that it has. Answers: the same work with the files of answers for the
pages, next to the work without them. Boxes: COCO's figures from arrays, next to pycocotools. The
programs run in turn in one process, so that other load of the machine affects both alike, and
medians of ratios are compared.

    python tests/bench/evaluation.py [--images 18000] [--rounds 5] [--scenes 2400]
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measuring import format_spread, make_parser

from beam_jobs.io.example import pack
from pipeline_ops.config.evaluate import Slice
from pipeline_ops.contract.dataset import ENCODED, KEY, LABEL
from pipeline_ops.evaluation.answers import count_by_threshold, write_answers
from pipeline_ops.evaluation.classifier import Answers, compute_findings
from pipeline_ops.evaluation.detector import evaluate_boxes
from pipeline_ops.served.client import (
    ImageDetections,
    SavedModelClient,
    TrueBoxes,
    read_encoded_batches,
)

BATCH, SHAPE, CLASSES, TOP_K = 256, (28, 28, 1), 10, 5


def in_turn(
    name: str,
    unit: str,
    count: int,
    rounds: int,
    ours: Callable[[], float],
    other: Callable[[], float],
) -> None:
    """Runs both once to warm up and then in turn, and prints the ratios.

    Both must give the same figure.
    """
    assert abs(ours() - other()) < 1e-9, "the two programs don't agree"
    ratios = []
    for number in range(rounds):
        seconds = []
        for program in (other, ours):
            begin = time.perf_counter()
            program()
            seconds.append(time.perf_counter() - begin)
        ratios.append(seconds[0] / seconds[1])
        print(
            f"{name} {number + 1}/{rounds}: other {count / seconds[0]:8.0f} {unit}/s, "
            f"ours {count / seconds[1]:8.0f} {unit}/s",
            flush=True,
        )
    print(f"=> {name}: {format_spread(ratios)} times as fast\n", flush=True)


def write_examples(path: Path, count: int) -> None:
    """Digits of scikit-learn, 28 x 28, again and again with a little noise, so that no two are
    equal."""
    from sklearn.datasets import load_digits

    from pipeline_ops.input.tensorflow_start import tf

    digits, generator = load_digits(), np.random.default_rng(1)

    with tf.io.TFRecordWriter(str(path)) as writer:
        for i in range(count):
            image = np.kron(digits.images[i % len(digits.images)] * 15, np.ones((4, 4)))[2:30, 2:30]
            png = tf.io.encode_png(
                np.clip(image + generator.integers(0, 16, image.shape), 0, 255).astype(np.uint8)[
                    ..., None
                ]
            ).numpy()
            features = {
                ENCODED: png,
                KEY: f"{i % 7}/{i:06d}.png".encode(),
                LABEL: int(digits.target[i % len(digits.target)]),
            }
            writer.write(pack(features))


def make_model():
    """The network of configs/digits.yaml, not trained: what its answers are takes no part in how
    long they take."""
    import keras

    from pipeline_ops.models.digits_cnn import build

    keras.utils.set_random_seed(1)
    return build(SHAPE, CLASSES)


def save_as_served(model, folder: Path) -> Path:
    from pipeline_ops.input.tensorflow_start import tf
    from pipeline_ops.served.model import ServedClassifier

    served = ServedClassifier(model, SHAPE)
    tf.saved_model.save(
        served,
        str(folder),
        signatures={"serving_default": served.serving_default, "images": served.images},
    )
    return folder


def by_us(
    model: SavedModelClient, shard: str, count: int, scratch: Path, writes_answers: bool = True
) -> float:
    """Computes all figures of one model, as the job does. Returns its accuracy."""
    names = [str(c) for c in range(CLASSES)]
    answers = Answers(1, count, names, TOP_K, scratch, [Slice(by="folder")])
    for batch in read_encoded_batches([shard], BATCH):
        answers.add(batch, [model.classify(batch)])
    found = compute_findings(answers.join(), names, TOP_K, [{}])
    if writes_answers:
        write_answers(scratch, found, count_by_threshold(found, names, None))
    return found.whole.challenger.metrics["accuracy"]


def by_hand(model, shard: str) -> float:
    """The same figures, but for slices, intervals and worst mistakes, as one writes them down in a
    notebook. Returns the accuracy."""
    from sklearn.metrics import (
        accuracy_score,
        average_precision_score,
        confusion_matrix,
        precision_recall_fscore_support,
        roc_auc_score,
        top_k_accuracy_score,
    )

    from pipeline_ops.input.tensorflow_start import tf

    feature_spec = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record):
        example = tf.io.parse_single_example(record, feature_spec)
        return tf.cast(
            tf.ensure_shape(tf.io.decode_png(example["image/encoded"], 1), SHAPE), tf.float32
        ), example["image/class/label"]

    batches = (
        tf.data.TFRecordDataset(shard)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
    )
    logits, labels = [], []
    for images_BHWC, labels_B in batches:
        logits.append(model.predict(images_BHWC, verbose=0))
        labels.append(labels_B.numpy())
    labels, probabilities = np.concatenate(labels), tf.nn.softmax(np.concatenate(logits)).numpy()
    classes = probabilities.argmax(axis=1)
    confusion_matrix(labels, classes)
    precision_recall_fscore_support(labels, classes, zero_division=0.0)
    top_k_accuracy_score(labels, probabilities, k=TOP_K)
    for index in range(CLASSES):
        roc_auc_score(labels == index, probabilities[:, index])
        average_precision_score(labels == index, probabilities[:, index])
    return accuracy_score(labels, classes)


def make_scenes(count: int) -> tuple[list[TrueBoxes], list[ImageDetections]]:
    """Four boxes and thirty detections to a scene, of ten classes. Four in ten detections have any
    class, as those of low scores do. Corners are pixels of images of the size 1 x 1."""
    generator, scenes, answers = np.random.default_rng(1), [], []
    for _ in range(count):
        corner, extent = generator.uniform(0, 100, (4, 2)), generator.uniform(8, 40, (4, 2))
        boxes = np.concatenate([corner, corner + extent], axis=1)
        labels, near = generator.integers(0, CLASSES, 4), generator.integers(0, 4, 30)
        moved = boxes[near] + generator.normal(0, 6, (30, 4))
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1.0)
        is_random = generator.random(30) < 0.4
        classes = np.where(is_random, generator.integers(0, CLASSES, 30), labels[near])
        scenes.append(TrueBoxes("", b"", boxes, labels, np.zeros(4, bool)))
        answers.append(ImageDetections(moved, classes, generator.random(30)))
    return scenes, answers


def by_pycocotools(scenes: list[TrueBoxes], answers: list[ImageDetections]) -> float:
    """Computes COCO's figures from the same arrays. Returns the average precision."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def to_records(images: list) -> list[dict]:
        return [
            {
                "image_id": image,
                "category_id": category,
                "bbox": [xmin, ymin, xmax - xmin, ymax - ymin],
            }
            for image, each in enumerate(images)
            for category, (ymin, xmin, ymax, xmax) in zip(
                each.classes.tolist(), each.boxes.tolist(), strict=True
            )
        ]

    gt = COCO()
    gt.dataset = {
        "images": [{"id": i} for i in range(len(scenes))],
        "categories": [{"id": i, "name": str(i)} for i in range(CLASSES)],
        "annotations": [
            {**record, "id": i, "area": record["bbox"][2] * record["bbox"][3], "iscrowd": 0}
            for i, record in enumerate(to_records(scenes), 1)
        ],
    }
    scores = np.concatenate([each.scores for each in answers]).tolist()
    found = [
        {**record, "score": score}
        for record, score in zip(to_records(answers), scores, strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        gt.createIndex()
        evaluation = COCOeval(gt, gt.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def main() -> None:
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--images", type=int, default=18_000)
    parser.add_argument("--scenes", type=int, default=2400)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shard = str(Path(folder) / "test.tfrecord")
        write_examples(Path(shard), arguments.images)
        model = make_model()
        served = SavedModelClient(
            save_as_served(model, Path(folder) / "saved_model"), "the model", CLASSES
        )
        in_turn(
            "prediction",
            "images",
            arguments.images,
            arguments.rounds,
            lambda: by_us(served, shard, arguments.images, Path(folder)),
            lambda: by_hand(model, shard),
        )
        in_turn(
            "files of the answers, next to none",
            "images",
            arguments.images,
            arguments.rounds,
            lambda: by_us(served, shard, arguments.images, Path(folder)),
            lambda: by_us(served, shard, arguments.images, Path(folder), writes_answers=False),
        )
    scenes, answers = make_scenes(arguments.scenes)
    in_turn(
        "COCO figures",
        "scenes",
        arguments.scenes,
        arguments.rounds,
        lambda: evaluate_boxes(scenes, answers, (1, 1), list(map(str, range(CLASSES)))).metrics[
            "map"
        ],
        lambda: by_pycocotools(scenes, answers),
    )


if __name__ == "__main__":
    main()
