"""Conversion of a `pipeline.config` of the TensorFlow Object Detection API to a pipeline in YAML.

The YAML also lists the fields that have no counterpart.
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
from pipeline_ops.od_api.model import compare_num_classes, find_nearest_model, get_size_multiple
from pipeline_ops.od_api.reader import ConfigReader, LeafField
from pipeline_ops.od_api.text_proto import parse_text_proto
from pipeline_ops.od_api.training import convert_training

_WIDTH = 145


@dataclasses.dataclass(frozen=True)
class ConvertedConfig:
    """A converted `pipeline.config`.

    Attributes:
      sections: the sections of our config.
      notes: remarks on settings that became something else.
      unconverted: fields that have no counterpart.
      file: the name of the `pipeline.config`.
    """

    sections: dict[str, Any]
    notes: Sequence[str]
    unconverted: Sequence[LeafField]
    file: str

    def to_yaml(self) -> str:
        """Returns the config as YAML, with notes and unconverted fields as comments at its head."""
        fields = [f"{leaf} (line {leaf.line})" for leaf in self.unconverted]
        lines = [
            f"# Converted from {self.file} of the TensorFlow Object Detection API.",
            "#",
            "# Settings that became something else:",
            *_format_comments(self.notes),
            "#",
            "# Fields that have no counterpart:" if fields else "# Every field has a counterpart.",
            *_format_comments(fields),
            yaml.safe_dump(
                self.sections,
                sort_keys=False,
                allow_unicode=True,
                width=_WIDTH,
                default_flow_style=None,
            ),
        ]
        return "\n".join(lines)


def convert(file: Path, num_examples: int | None = None) -> ConvertedConfig:
    """Reads a `pipeline.config`, its label map and the lengths of its records.

    Args:
      file: the pipeline.config.
      num_examples: the number of training records. None counts them.

    Raises:
      ConfigError: the file is not valid, or has a setting that cannot be converted. The message
          names the file, line and field.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}. Correct the path.") from error
    config = ConfigReader(parse_text_proto(text, str(file)), str(file))
    records = read_records(config)
    model, name, parameters = find_nearest_model(config)
    compare_num_classes(model, records.source.get("class_names"))
    stages = read_image_stages(model, get_size_multiple(name))
    pipeline = _derive_name(file)
    if num_examples is None:
        num_examples = records.count_train_records()
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
        "train": {"model": name, "model_parameters": parameters}
        | convert_training(config, num_examples, records.split["train"])
        | {"best_checkpoint": None},
        "evaluate": {"gate": [{"metric": "map", "at_least": 0.0, "max_regression": 0.01}]},
        "export": {"model": pipeline},
    }
    return ConvertedConfig(
        sections, tuple(config.notes), tuple(config.list_unconverted()), file.name
    )


def _derive_name(file: Path) -> str:
    """Returns the name of the pipeline.

    `models/my_ssd/pipeline.config` is named after its folder, `ssd_mobilenet.config` after itself.
    """
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
