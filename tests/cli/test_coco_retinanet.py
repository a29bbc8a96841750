"""configs/coco_retinanet.yaml: complete,
and carried out on a few made-up images with a smaller network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from config_files import set_words
from job_chain import run_jobs

from pipeline_ops.cli.main import main
from pipeline_ops.config.pipeline import load_config
from pipeline_ops.contract.dataset import DatasetFigures
from pipeline_ops.contract.manifest import read_manifest

COCO = Path(__file__).resolve().parents[2] / "configs" / "coco_retinanet.yaml"


@pytest.fixture(scope="module")
def made_up_coco(tmp_path_factory) -> Path:
    """A folder of TensorFlow Datasets with coco/2017 as its builder would prepare it:
    other pictures, and few of them."""
    import tensorflow_datasets as tfds

    folder = tmp_path_factory.mktemp("tensorflow_datasets")
    builder = tfds.builder("coco/2017", data_dir=folder, try_gcs=False)
    source = yaml.safe_load(COCO.read_text())["preprocess"]["source"]
    builder.info.features["objects"]["label"].names = source["class_names"]
    Path(builder.data_dir).mkdir(parents=True)
    writer = tfds.core.SequentialWriter(builder.info, max_examples_per_shard=16)
    writer.initialize_splits(["train", "validation"])
    numbers = {"train": range(80), "validation": range(100, 108)}
    writer.add_examples({split: list(map(example, each)) for split, each in numbers.items()})
    writer.close_all()
    return folder


def example(number: int) -> dict:
    import tensorflow_datasets as tfds

    random = np.random.default_rng(number)
    height, width = (48, 64) if number % 2 else (64, 48)
    image, objects = random.integers(0, 90, (height, width, 3), np.uint8), []
    for label in range(number % 20, 80, 20):  # every class in several images
        top, left = random.uniform(0, 0.5, 2)
        box = tfds.features.BBox(ymin=top, xmin=left, ymax=top + 0.4, xmax=left + 0.3)
        rows = slice(int(top * height), int((top + 0.4) * height))
        image[rows, int(left * width) : int((left + 0.3) * width)] = 100 + label
        crowd = number % 7 == 3 and label >= 60
        objects.append({"bbox": box, "label": label, "area": 100, "id": label, "is_crowd": crowd})
    return {
        "image": image,
        "image/filename": f"{number:012d}.jpg",
        "image/id": number,
        "objects": objects,
    }


def test_it_is_valid_and_explained(made_up_coco, tmp_path, capsys):
    weights = tmp_path / "resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5"
    weights.touch()
    overrides = set_words(
        f"preprocess.source.path={made_up_coco}",
        f"storage.root={tmp_path}",
        f"train.warm_start={weights}",
    )
    assert main(["validate", str(COCO), *overrides]) == 0
    assert (
        "retinanet; 12 epochs of batch 16 on 2 workers, multi_worker_mirrored"
        in capsys.readouterr().out
    )
    assert main(["explain", str(COCO), *overrides]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        [job, "runs"] for job in ("preprocess", "train", "evaluate", "export")
    ]


def test_its_eight_devices_are_seated_on_two_hosts_and_its_model_can_be_built():
    from pipeline_ops.models import build_model, make_head

    config = load_config(COCO)
    assert config.train.workers * config.train.devices_per_worker == 8
    assert [host.workers for host in config.hosts.hosts] == [1, 1]
    shape, num_classes = (640, 640, 3), len(config.preprocess.source.class_names)
    model = build_model(config.train, shape, num_classes, COCO.parent, for_training=False)
    head = make_head(config.train, shape, 80)
    assert {name: output.shape for name, output in model.output.items()} == {
        "deltas": (None, 76725, 4),
        "logits": (None, 76725, 80),
    }
    assert len(head.anchors) == 76725


@pytest.mark.models
@pytest.mark.timeout(600)
def test_it_is_carried_out_on_made_up_images(made_up_coco, tmp_path):
    made = run_jobs(
        COCO,
        tmp_path,
        "export",
        preprocess__source__path=str(made_up_coco),
        preprocess__shards=2,
        preprocess__split__train=0.9,
        preprocess__split__validation=0.1,
        preprocess__stages=[
            {"decode": {"channels": 3}},
            "clip_boxes",
            {"resize": {"height": 64, "width": 64}},
        ],
        train__model_parameters={
            "backbone": "MobileNetV2",
            "backbone_parameters": {"alpha": 0.35},
            "width": 16,
            "depth": 1,
            "frozen_batch_normalization": True,
            "max_boxes": 8,
        },
        train__warm_start=None,
        train__hosts=None,
        train__workers=1,
        train__devices_per_worker=1,
        train__strategy="one_device",
        train__epochs=1,
        train__precision="float32",
        evaluate__gate=[{"metric": "map", "at_least": 0.0}],
    )
    figures = DatasetFigures.model_validate(read_manifest(made["preprocess"]).figures)
    assert (figures.task, len(figures.class_names)) == ("detection", 80)
    assert figures.num_examples["test"] == 8
    assert figures.num_examples["train"] + figures.num_examples["validation"] == 80
    assert read_manifest(made["export"]).figures["version"] == 1
