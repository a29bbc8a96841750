"""Conversion of a `pipeline.config` of the TensorFlow Object Detection API to a pipeline in YAML.

The YAML also lists the fields that have no counterpart. `text_proto.py` reads the file, and
`training.py` converts model and training. Records, label map and image size are converted here.
"""

from __future__ import annotations

import dataclasses
import glob
import io
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from beam_jobs.sources.tfrecord import LabelMap, parse_label_map
from beam_jobs.stages.resize import Resize
from pipeline_ops.contract.results import MIN_SCORE
from pipeline_ops.errors import ConfigError
from pipeline_ops.od_api.model import compare_num_classes, find_nearest_model
from pipeline_ops.od_api.text_proto import ConfigReader, LeafField, parse_text_proto
from pipeline_ops.od_api.training import convert_training
from pipeline_ops.raw_data.limits import MAX_DESCRIPTION_BYTES, check_limit
from pipeline_ops.storage.tfrecord import list_record_offsets

_WIDTH = 145
_MAX_BYTES = 1 << 20
_MIN_MAP = 0.01
"""The gate of a converted config keeps back a model that has learned nothing."""
_NO_EFFECT = re.compile(
    r"""
    train_config\.(
        sync_replicas|replicas_to_aggregate|startup_delay_steps|keep_checkpoint_\w+|
        fine_tune_checkpoint_\w+|\w*from_detection_checkpoint|load_all_detection_checkpoint_vars|
        run_fine_tune_checkpoint_\w+|\w*queue\w*|max_number_of_boxes|unpad_groundtruth_tensors|
        retain_original_images|summarize_gradients)
    | (train|eval)_input_readers?(\[\d+\])?\.(
        name|\w+_buffer_size|num_readers|num_parallel_\w+|\w*prefetch\w*|queue_capacity|
        min_after_dequeue|read_block_length|drop_remainder|use_display_name|include_source_id)
    | eval_input_readers?(\[\d+\])?\.(shuffle|num_epochs)
    | eval_config\.(
        batch_size|num_examples|num_visualizations|eval_interval_secs|max_evals|save_graph|eval_master|
        export_path|min_score_threshold|skip_(scores|labels)|keypoint_edge.*|\w*visualiz\w*|
        retain_\w+|(include|all)_metrics_per_category|use_dummy_loss_in_eval)
    | model\.(\w+(\[\d+\])?\.)+(
        use_matmul_\w+|use_static_\w+|use_(partitioned|combined|cpu)_nms\w*|return_raw_\w+|
        inplace_batchnorm_update|replace_preprocessor_\w+|output_final_\w+|compute_heatmap_sparse)
    """,
    re.VERBOSE,
)
"""Fields about the way in which the API computes, or that it ignores."""
_NETWORK = re.compile(
    r"^model\.\w+\.(?!.*(anchor|loss|matcher|post_processing|nms|image_resizer|number_of_stages|"
    r"weight\b|hard_example|l1_regularizer|similarity|use_confidences))"
)
"""Details of a network that becomes another one."""
_OURS = {
    r"(min|max)_level": "3 to 7",
    r"(soft_nms_sigma|use_hard_nms)": "no scores are lowered",
    r"use_class_agnostic_nms": "each class by itself",
    r"force_match_for_each_row": "true",
    r"normalize_loss_by_num_matches": "true",
    r"resize_method": "bilinear",
    r"(freeze|update_trainable)_variables": "all weights train, but for train.freeze",
    r"sample_1_of_n_examples": "1",
    r"negative_class_weight": "1.0",
    r"(kernel_size)": "3",
    r"bias_grad_multiplier": "1.0",
    r"score_threshold": f"{MIN_SCORE}",
    r"num_epochs": "as many as the steps need",
    r"shuffle": "the training records are shuffled",
}
"""Our value of a setting that ours does not have as a key, by the name of the field."""
_TRIFLES = re.compile(
    r".*\b(eval_\w+|max_detections_per_class|score_converter|keypoint_flip_permutation|"
    r"(clip|box_encodings|output)_\w+|pad_\w+|per_channel_\w+)\b.*"
)
"""Fields that change the result by little, or of a part that another line names."""
_LOW_SCORES = (0, 1e-8, 9.99999993922529e-09)
"""Those of the API's own configs, which keep every box. The last one is 1e-8 in float32."""
_SHARDED_NAME = re.compile(r"(?P<name>.+)@(?P<count>\d+)(?P<rest>[^/]*)")
_PATH = re.compile(r"(train|eval)_input_readers?\b.*\b(label_map_path|input_path)(\[\d+\])?")
_WRONG_PATHS = {
    "PATH_TO_BE_CONFIGURED": "PATH_TO_BE_CONFIGURED is a placeholder. Set the path.",
    "\0": "a path has no null character. Correct the path.",
    "://": "only records and label maps in local folders are converted. Copy or mount them, and "
    "change the path.",
}
"""What is wrong with a path, by a part of it."""
_MIN_EXAMPLES = 5
"""The number of examples that a split of a small set gets on average, so that it is not empty."""
_DEFAULT_SIZE = 640
_SIZES = vars(Resize)["__pydantic_fields__"]
_MAX_NAME = 63
"""The longest name of a pipeline."""


@dataclasses.dataclass(frozen=True)
class ConvertedConfig:
    """The sections of our config, and the differences from the `pipeline.config`.

    `stand_in` says what trains in place of what. `losses` are settings that the converted config
    lacks. `notes` are remarks on settings that became something else. `unconverted` fields have no
    counterpart. `is_near` is that of `NearestModel`.
    """

    sections: dict[str, Any]
    stand_in: str
    is_near: bool
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
            if _NO_EFFECT.fullmatch(leaf.path):
                without_effect.append(f"{leaf} (line {leaf.line})")
            else:
                fields = network if _NETWORK.search(leaf.path) else changes
                fields.append(_describe_message([leaf]))
        listed = {
            "Not carried over, so the result changes:": [*self.losses, *changes],
            "Settings that became something else:": list(self.notes),
            "Details of the original network, which ours does not have:": network,
            "Fields without an effect on the result:": without_effect,
        }
        return {title: items for title, items in listed.items() if items}

    def summarize(self) -> list[str]:
        """Lists what is lost and changes the accuracy: the losses, and fields by their message."""
        messages: dict[str, list[LeafField]] = {}
        for leaf in self.unconverted:
            is_low = leaf.path.endswith("score_threshold") and leaf.value in _LOW_SCORES
            patterns = (_NETWORK.search, _TRIFLES.fullmatch, _NO_EFFECT.fullmatch)
            is_hidden = is_low or any(matches(leaf.path) for matches in patterns)
            if not is_hidden and (self.is_near or not leaf.path.startswith("model.")):
                messages.setdefault(leaf.path.rpartition(".")[0], []).append(leaf)
        return [*self.losses, *map(_describe_message, messages.values())]

    def to_yaml(self) -> str:
        """Returns the config as YAML: first what trains, and what is lost, and at the end, in
        comments as well, each difference.
        """
        lines = [f"# {self.stand_in}.", *_format_comments(self.summarize())]
        lines.append(f"# Each field of {self.file} without a counterpart is listed below.")
        end = []
        for title, items in self.list_differences().items():
            end += ["#", f"# {title}", *_format_comments(items)]
        sections = yaml.safe_dump(
            self.sections,
            sort_keys=False,
            allow_unicode=True,
            width=_WIDTH,
            default_flow_style=None,
        )
        return "\n".join([*lines, sections, *end[1:], ""])


def _describe_message(leaves: Sequence[LeafField]) -> str:
    """Describes fields of one message in a line, each with its value and, where known, ours."""
    place, *others = leaves
    parts = [str(place), *(str(leaf).rpartition(".")[2] for leaf in others)]
    for number, leaf in enumerate(leaves):
        name = leaf.path.rpartition(".")[2].partition("[")[0]
        ours = next((text for key, text in _OURS.items() if re.fullmatch(key, name)), "")
        parts[number] += f" (ours: {ours})" if ours else ""
    return f"{', '.join(parts)} (line {place.line})"


def convert(file: Path, name: str = "") -> ConvertedConfig:
    """Reads a `pipeline.config`, its label map and the lengths of its records.

    Without a name, the pipeline is named after the file or its folder. Raises ConfigError that
    names file, line and field.
    """
    try:
        content = _read_limited(file, _MAX_BYTES).decode("utf-8-sig")
        text = io.StringIO(content, newline=None).read()  # with one kind of line ends
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{file}:{line}: is not UTF-8: {error}. Save it as UTF-8.") from error
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error}. Correct the path.") from error
    config = ConfigReader(parse_text_proto(text, str(file)), str(file))
    source, split = _read_records(config)
    model, own_model, parameters, stand_in, is_near = find_nearest_model(config)
    compare_num_classes(model, source.get("class_names"))
    stages = _read_image_stages(model, multiple=16 if own_model == "center_detector" else 32)
    pipeline = name or _derive_name(file)
    # Evaluation computes COCO's metrics in any case.
    for evaluation in config.messages("eval_config"):
        evaluation.take_equal("metrics_set", "coco_detection_metrics")
    sections = {
        "pipeline": pipeline,
        "description": f"{stand_in}. Converted from {file.name} of the TensorFlow Object "
        "Detection API.",
        "tags": ["detection"],
        "schedule": None,
        "storage": {"root": "../.trainyard"},
        "preprocess": {"source": source, "stages": stages, "split": split, "shards": 8},
        "train": {"model": own_model, "model_parameters": parameters}
        | convert_training(config, model, parameters.get("backbone"))
        | {"best_checkpoint": None},
        "evaluate": {"gate": [{"metric": "map", "at_least": _MIN_MAP, "max_regression": 0.01}]},
        "export": {"model": pipeline},
    }
    return ConvertedConfig(
        sections,
        stand_in,
        is_near,
        tuple(config.losses),
        tuple(config.notes),
        tuple(config.list_unconverted()),
        file.name,
    )


def _read_limited(file: Path, max_bytes: int) -> bytes:
    """Raises OSError, and TooLarge also for a device, which has no size and no end."""
    with open(file, "rb") as stream:
        content = stream.read(max_bytes + 1)
        num_bytes = max(len(content), os.fstat(stream.fileno()).st_size)
    check_limit(file, "has", num_bytes, max_bytes, "bytes", "Correct the path.")
    return content


def _derive_name(file: Path) -> str:
    """Names `my_ssd/pipeline.config` after its folder, `ssd_mobilenet.config` after itself."""
    stem = file.resolve().parent.name if file.stem == "pipeline" else file.stem
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    name = name if name[:1].isalpha() else f"imported_{name}"
    return name[:_MAX_NAME].rstrip("_")


def _format_comments(items: Sequence[str]) -> list[str]:
    return [
        line
        for item in items
        for line in textwrap.wrap(
            item, _WIDTH, initial_indent="#   ", subsequent_indent="#     ", break_on_hyphens=False
        )
        or ["#"]
    ]


# Records, label map and images


def _read_records(config: ConfigReader) -> tuple[dict[str, Any], dict[str, float]]:
    """Converts the readers to the sections `source` and `split`."""
    place = config.format_location("train_input_reader")
    train_reader = config.message("train_input_reader")
    test_readers = [*config.messages("eval_input_reader"), *config.messages("eval_input_readers")]
    _check_paths(config)
    train = _read_paths(train_reader)
    if not train:
        raise ConfigError(
            f"{place}: there is no tf_record_input_reader.input_path. Set it. Other readers have "
            "no counterpart."
        )
    test = [path for reader in test_readers for path in _read_paths(reader)]
    if both := sorted(_find_files(train) & _find_files(test)) or sorted({*train} & {*test}):
        raise ConfigError(
            f"{place} and eval_input_reader both read {both[0]}, so the model would be evaluated "
            "on its training examples. Give eval_input_reader other records."
        )
    if missing := [path for path in (*train, *test) if not glob.glob(path)]:
        config.note(f"There is no {' and no '.join(missing)} yet. The run needs these records.")
    train_reader.take_equal("shuffle", True)
    for reader in test_readers:
        reader.take_equal("shuffle", False)
    label_maps = _read_label_maps([train_reader, *test_readers])
    folder = _find_common_folder([*train, *test, *label_maps], place)
    parts = [{"files": os.path.relpath(path, folder)} for path in train]
    parts += [{"files": os.path.relpath(path, folder), "split": "test"} for path in test]
    source = {"type": "tfrecord", "path": folder, "task": "detection", "parts": parts}
    for path in label_maps:
        source["label_map"] = os.path.relpath(path, folder)
        label_map = _read_label_map(path, train_reader)
        names = label_map.without_background().names
        source["class_names"] = list(dict.fromkeys(names[number] for number in sorted(names)))
        if len(names) < len(label_map.names):
            train_reader.note(
                f"{train_reader.path('label_map_path')}: the item with the id 0 is the background, "
                "and no class of our model"
            )
    files = sorted(_find_files(train))
    num_examples = sum(map(_count_records, files))
    if files and not num_examples:
        raise ConfigError(f"{files[0]} has no record. Correct the paths of train_input_reader.")
    return source, _choose_split(config, bool(test), num_examples)


def _check_paths(config: ConfigReader) -> None:
    """Raises ConfigError with all paths that are not those of files in local folders."""
    paths = [leaf for leaf in config.iterate_leaves() if _PATH.fullmatch(leaf.path)]
    for mark, problem in _WRONG_PATHS.items():
        if found := [leaf for leaf in paths if mark in str(leaf.value)]:
            places = ", ".join(f"{leaf} (line {leaf.line})" for leaf in found)
            raise ConfigError(f"{config.file}:{found[0].line}: {places}: {problem}")


def _find_files(patterns: Iterable[str]) -> set[str]:
    return {os.path.realpath(file) for pattern in patterns for file in glob.glob(pattern)}


def _read_label_maps(readers: Sequence[ConfigReader]) -> list[str]:
    """Returns the absolute path of the readers' label map, or nothing if they have none."""
    paths = [reader.take("label_map_path", str, "") for reader in readers]
    label_maps = [path for path in dict.fromkeys(paths) if path]
    if len(label_maps) > 1:
        try:
            are_equal = len({*map(_read_label_map_file, map(_to_absolute, label_maps))}) == 1
        except OSError:
            are_equal = False
        if not are_equal:
            raise ConfigError(
                f"{readers[0].format_location('label_map_path')}: the readers have different label "
                f"maps ({', '.join(label_maps)}), and a data set has only one. Merge them."
            )
    return [_to_absolute(path) for path in label_maps[:1]]


def _choose_split(config: ConfigReader, has_test: bool, num_examples: int) -> dict[str, float]:
    """Chooses the shares of the splits. `num_examples` is 0 if no file of records is here."""
    if has_test:
        config.note(
            "The evaluation set becomes the test split. All training records train, because "
            "nothing uses a validation split (train.best_checkpoint: null)."
        )
        return {"train": 1, "validation": 0, "test": 0}
    least = _MIN_EXAMPLES / num_examples if num_examples else 0.0
    share = round(min(0.3, max(0.1, least)), 2)
    config.note(
        f"There is no evaluation set. {share:.0%} of the training records become the validation "
        f"split, and {share:.0%} the test split."
    )
    return {"train": round(1 - 2 * share, 2), "validation": share, "test": share}


def _read_image_stages(model: ConfigReader, multiple: int) -> list[str | dict[str, Any]]:
    """Returns the stages that decode and resize images, to multiples of a number of pixels."""
    resizers = model.message("image_resizer")
    kind = resizers.find_present("fixed_shape_resizer", "keep_aspect_ratio_resizer")
    resizer = resizers.message(kind) if kind else resizers
    mode: dict[str, str] = {}
    if kind == "fixed_shape_resizer":
        height = resizer.take("height", int, 300, _SIZES["height"])
        width = resizer.take("width", int, 300, _SIZES["width"])
    elif kind:
        height = width = resizer.take("max_dimension", int, 1024, _SIZES["height"])
        resizer.take_equal("min_dimension", height)
        resizer.take_equal("pad_to_max_dimension", True)
        mode = {"mode": "letterbox"}
        model.note(
            f"{resizer.path('max_dimension')}: images keep their proportions inside of a "
            f"square of {height} pixels, with bars on both sides. The API pads at the bottom "
            "and the right, or not at all. The served model does the same."
        )
    else:
        height = width = _DEFAULT_SIZE
        model.note(
            f"{model.path('image_resizer')}: no resizer that has a counterpart. "
            f"Images are stretched to {height}x{width}."
        )
    sides = {"height": height, "width": width}
    size = {name: -(-side // multiple) * multiple for name, side in sides.items()}
    if size != sides:
        model.note(
            f"{model.path('image_resizer')}: {height}x{width} becomes "
            f"{size['height']}x{size['width']}, because our model needs multiples of {multiple}"
        )
    channels = 1 if resizer.take("convert_to_grayscale", bool, False) else 3
    return [{"decode": {"channels": channels}}, "clip_boxes", {"resize": size | mode}]


def _count_records(file: str) -> int:
    """Counts the records of a TFRecord file by their lengths alone. Raises ConfigError."""
    try:
        return len(list_record_offsets(Path(file)))
    except ValueError as error:
        raise ConfigError(f"{error} Replace it with a whole one.") from None
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}. Correct the paths of train_input_reader."
        ) from error


def _read_paths(reader: ConfigReader) -> list[str]:
    """Returns absolute paths, with sharded names written out as patterns.

    `train@10` and `train-?????-of-00010` are the same.
    """
    paths = reader.message("tf_record_input_reader").take_all("input_path", str)
    return [
        _to_absolute(
            f"{sharded['name']}-?????-of-{int(sharded['count']):05d}{sharded['rest']}"
            if (sharded := _SHARDED_NAME.fullmatch(path))
            else path
        )
        for path in paths
    ]


def _to_absolute(path: str) -> str:
    """Returns an absolute path. Relative paths start in the working directory, as with the API."""
    return os.path.abspath(os.path.expanduser(path))


def _find_common_folder(paths: Sequence[str], place: str) -> str:
    """Returns the common folder of the paths. `place` begins the message of an error.

    Everything below it is in the fingerprint, so the root and the home folder are rejected.
    """
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)
    if folder in (os.path.abspath(os.sep), os.path.expanduser("~")):
        missing = next((f"There is no {path}. " for path in paths if not glob.glob(path)), "")
        raise ConfigError(
            f"{place}: {missing}Records and label map have no folder in common but "
            f"{folder}. Correct the paths, or link the files into one folder: {', '.join(paths)}"
        )
    return folder


def _read_label_map_file(path: str) -> bytes:
    return _read_limited(Path(path), MAX_DESCRIPTION_BYTES)


def _read_label_map(path: str, reader: ConfigReader) -> LabelMap:
    try:
        return parse_label_map(_read_label_map_file(path), path)
    except OSError as error:
        raise ConfigError(
            f"{reader.format_location('label_map_path')}: cannot read {path}: {error.strerror}. "
            "Correct the path."
        ) from error
