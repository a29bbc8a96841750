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
from pipeline_ops.od_api.data import image_size, read_records
from pipeline_ops.od_api.model import check_num_classes, multiple_of, nearest_model
from pipeline_ops.od_api.reader import ConfigReader, ReadField
from pipeline_ops.od_api.text_proto import parse_text_proto
from pipeline_ops.od_api.training import training

_WIDTH = 145


@dataclasses.dataclass(frozen=True)
class Converted:
    """A converted `pipeline.config`.

    Attributes:
      sections: the sections of our config.
      notes: remarks on settings that became something else.
      left: fields that have no counterpart.
      file: the name of the `pipeline.config`.
    """

    sections: dict[str, Any]
    notes: Sequence[str]
    left: Sequence[ReadField]
    file: str

    def as_yaml(self) -> str:
        """Returns the config as YAML, with notes and left-out fields as comments at its head."""
        return "\n".join(
            [
                f"# Made of {self.file} of the TensorFlow Object Detection API.",
                *self._comments(),
                _dumped(self.sections),
            ]
        )

    def _comments(self) -> list[str]:
        lines = ["#", "# What became something else:", *_as_comments(self.notes)]
        fields = [f"{leaf} (line {leaf.line})" for leaf in self.left]
        return [
            *lines,
            "#",
            "# Fields that have no counterpart:" if fields else "# Every field has a counterpart.",
            *_as_comments(fields),
        ]


def convert(file: Path, num_examples: int | None = None) -> Converted:
    """Reads a `pipeline.config`, its label map and the lengths of its records.

    Args:
      file: the pipeline.config.
      num_examples: the number of training records. None counts them.

    Raises:
      ConfigError: the file is not valid, or has a setting that cannot be converted. The message
          names the place.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: can't be read: {error}") from error
    config = ConfigReader(parse_text_proto(text, str(file)), str(file))
    records = read_records(config)
    model, name, parameters = nearest_model(config)
    check_num_classes(config, model, records.source.get("class_names"))
    (height, width), mode, channels = image_size(config, model, multiple_of(name))
    resize = {"height": height, "width": width} | ({"mode": mode} if mode != "stretch" else {})
    pipeline = _name_of(file)
    counted = num_examples if num_examples is not None else records.count()
    _take_metrics(config)
    sections = {
        "pipeline": pipeline,
        "description": f"Made of {file.name} of the TensorFlow Object Detection API.",
        "tags": ["detection"],
        "schedule": None,
        "storage": {"root": "../.trainyard"},
        "preprocess": {
            "source": records.source,
            "stages": [{"decode": {"channels": channels}}, "clip_boxes", {"resize": resize}],
            "split": records.split,
            "shards": 8,
        },
        "train": {"model": name, "model_parameters": parameters}
        | training(config, counted, records.train_share)
        | {"best_checkpoint": None},
        "evaluate": {
            "gate": [
                {"metric": "map", "at_least": 0.0, "not_worse_than_champion_by_more_than": 0.01}
            ]
        },
        "export": {"model": pipeline},
    }
    return Converted(sections, tuple(config.notes), tuple(config.left()), file.name)


def _take_metrics(config: ConfigReader) -> None:
    """Takes COCO's metrics, which evaluation computes in any case."""
    for evaluation in config.messages("eval_config"):
        evaluation.take_equal("metrics_set", "coco_detection_metrics")


def _name_of(file: Path) -> str:
    """Returns the name of the pipeline.

    `models/my_ssd/pipeline.config` is named after its folder, `ssd_mobilenet.config` after itself.
    """
    stem = file.resolve().parent.name if file.stem == "pipeline" else file.stem
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    return name if name[:1].isalpha() else f"imported_{name}".rstrip("_")


def _as_comments(items: Sequence[str]) -> list[str]:
    return [
        line
        for item in items
        for line in textwrap.wrap(
            item, _WIDTH, initial_indent="#   ", subsequent_indent="#     ", break_on_hyphens=False
        )
        or ["#"]
    ]


def _dumped(sections: dict[str, Any]) -> str:
    return yaml.safe_dump(
        sections, sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=None
    )
