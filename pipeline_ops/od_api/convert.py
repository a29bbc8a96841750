"""Conversion of a `pipeline.config` of the TensorFlow Object Detection API to a pipeline in YAML.

The YAML also lists the fields that have no counterpart. `text_proto.py` reads the file, `data.py`
converts records, label map and image size, `training.py` model and training.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline_ops.errors import ConfigError
from pipeline_ops.od_api.data import read_image_stages, read_records
from pipeline_ops.od_api.text_proto import ConfigReader, LeafField, parse_text_proto
from pipeline_ops.od_api.training import (
    compare_num_classes,
    convert_training,
    find_nearest_model,
)

_WIDTH = 145
_MIN_MAP = 0.01
"""The gate of a converted config keeps back a model that has learned nothing."""
_NO_EFFECT = re.compile(
    r"use_matmul|static_shape|replicas_to_aggregate|startup_delay|sync_replicas|checkpoint_type|"
    r"checkpoint_version|checkpoint_vars|from_detection_checkpoint|max_number_of_boxes|"
    r"unpad_groundtruth|queue|num_readers|num_parallel|prefetch|min_after_dequeue|num_epochs|"
    r"eval_config\.(?!metrics_set)|eval_input_readers?\b|visualiz|inplace_batchnorm|"
    r"batch_norm_trainable|add_summaries|shuffle|use_bfloat16"
)
"""Fields about the way in which the API computes, and not about the result."""
_NETWORK = re.compile(
    r"^model\.\w+\.(?!.*(anchor_generator|loss|matcher|post_processing|number_of_stages))"
)
"""Details of a network that becomes another one."""


@dataclasses.dataclass(frozen=True)
class ConvertedConfig:
    """The sections of our config, and the differences from the `pipeline.config`.

    The converted config does not do the `losses` at all. `notes` are remarks on settings that
    became something else. `unconverted` fields have no counterpart.
    """

    sections: dict[str, Any]
    losses: Sequence[str]
    notes: Sequence[str]
    unconverted: Sequence[LeafField]
    file: str

    def list_differences(self) -> dict[str, list[str]]:
        """Lists what is not as in the original, by a title. What changes the result comes first."""
        changes: list[str] = []
        network: list[str] = []
        without_effect: list[str] = []
        for leaf in self.unconverted:
            if _NO_EFFECT.search(leaf.path):
                fields = without_effect
            else:
                fields = network if _NETWORK.search(leaf.path) else changes
            fields.append(f"{leaf} (line {leaf.line})")
        listed = {
            "Not carried over, so the result changes:": [*self.losses, *changes],
            "Settings that became something else:": list(self.notes),
            "Details of the original network, which ours does not have:": network,
            "Fields without an effect on the result:": without_effect,
        }
        return {title: items for title, items in listed.items() if items}

    def to_yaml(self) -> str:
        """Returns the config as YAML, with the differences as comments at its head."""
        lines = [
            f"# Converted from {self.file} of the TensorFlow Object Detection API.",
            *(
                line
                for title, items in self.list_differences().items()
                for line in ("#", f"# {title}", *_format_comments(items))
            ),
        ]
        sections = yaml.safe_dump(
            self.sections,
            sort_keys=False,
            allow_unicode=True,
            width=_WIDTH,
            default_flow_style=None,
        )
        return "\n".join([*lines, sections])


def convert(file: Path, num_examples: int | None = None, name: str = "") -> ConvertedConfig:
    """Reads a `pipeline.config`, its label map and the lengths of its records.

    Without `num_examples`, the training records are counted. Without a name, the pipeline is named
    after the file or its folder. Raises ConfigError that names file, line and field.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}. Correct the path.") from error
    config = ConfigReader(parse_text_proto(text, str(file)), str(file))
    records = read_records(config, num_examples)
    model, own_model, parameters = find_nearest_model(config)
    compare_num_classes(model, records.source.get("class_names"))
    stages = read_image_stages(model, multiple=16 if own_model == "center_detector" else 32)
    pipeline = name or _derive_name(file)
    # Evaluation computes COCO's metrics in any case.
    for evaluation in config.messages("eval_config"):
        evaluation.take_equal("metrics_set", "coco_detection_metrics")
    sections = {
        "pipeline": pipeline,
        "description": f"Converted from {file.name} of the TensorFlow Object Detection API.",
        "tags": ["detection"],
        "schedule": None,
        "storage": {"root": "../.trainyard"},
        "preprocess": {
            "source": records.source,
            "stages": stages,
            "split": records.split,
            "shards": 8,
        },
        "train": {"model": own_model, "model_parameters": parameters}
        | convert_training(config, records.num_examples, records.split["train"])
        | {"best_checkpoint": None},
        "evaluate": {"gate": [{"metric": "map", "at_least": _MIN_MAP, "max_regression": 0.01}]},
        "export": {"model": pipeline},
    }
    return ConvertedConfig(
        sections,
        tuple(config.losses),
        tuple(config.notes),
        tuple(config.list_unconverted()),
        file.name,
    )


def _derive_name(file: Path) -> str:
    """Names `my_ssd/pipeline.config` after its folder, `ssd_mobilenet.config` after itself."""
    stem = file.resolve().parent.name if file.stem == "pipeline" else file.stem
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    return name if name[:1].isalpha() else f"imported_{name}".rstrip("_")


def _format_comments(items: Sequence[str]) -> list[str]:
    return [
        line
        for item in items
        for line in textwrap.wrap(
            item, _WIDTH, initial_indent="#   ", subsequent_indent="#     ", break_on_hyphens=False
        )
        or ["#"]
    ]
