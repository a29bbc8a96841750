"""Finds out what the columns of a table mean.

The `recognise` functions of `csv`, `jsonl`, `parquet` and `webdataset` call this module.

A name alone is no proof. An exact name comes before others that tools have for the same, a column
of coordinates is never a class, the format of boxes is tried on all of them, and a choice between
two columns that could both be meant is a question.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from beam_jobs.sources.box_formats import USUAL_FORMATS, judge_formats
from beam_jobs.sources.folder_view import Question, join_names
from beam_jobs.sources.parsing import CORNERS, find_split, parse_flag, parse_number
from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import BoxFormat

Row = Mapping[str, Any]
_LABELS = (
    *("label", "labels", "class", "classes", "class_name", "classname", "category", "categories"),
    *("label_name", "labelname", "category_name", "class_label", "target", "species", "class_id"),
    *("classid", "category_id", "label_id", "cls", "y"),
)
"""Names of the column with the classes, the usual ones first."""
_BOXES = ("boxes", "bbox", "bboxes", "box", "bounding_box", "bounding_boxes", "objects")
_CORNER_SETS: Mapping[tuple[str, str, str, str], tuple[BoxFormat, ...]] = {
    ("xmin", "ymin", "xmax", "ymax"): ("xyxy",),
    ("x_min", "y_min", "x_max", "y_max"): ("xyxy",),
    ("x1", "y1", "x2", "y2"): ("xyxy",),
    ("x", "y", "x2", "y2"): ("xyxy",),
    ("min_x", "min_y", "max_x", "max_y"): ("xyxy",),
    ("x0", "y0", "x1", "y1"): ("xyxy",),
    ("left", "top", "right", "bottom"): ("xyxy",),
    ("x_center", "y_center", "width", "height"): ("center_xywh",),
    ("xcenter", "ycenter", "width", "height"): ("center_xywh",),
    ("center_x", "center_y", "width", "height"): ("center_xywh",),
    ("x_center", "y_center", "w", "h"): ("center_xywh",),
    ("cx", "cy", "width", "height"): ("center_xywh",),
    ("cx", "cy", "w", "h"): ("center_xywh",),
    ("xc", "yc", "w", "h"): ("center_xywh",),
    ("left", "top", "width", "height"): ("xywh",),
    ("xmin", "ymin", "width", "height"): ("xywh",),
    ("x_min", "y_min", "width", "height"): ("xywh",),
    ("x", "y", "width", "height"): ("xywh", "center_xywh"),
    ("x", "y", "w", "h"): ("xywh", "center_xywh"),
}
"""Columns that are a box, with the formats that their names allow."""
_COORDINATES = frozenset(name for names in _CORNER_SETS for name in names) - {"width", "height"}
_PREFIX = re.compile("^(bbox|box|bndbox|bb|roi|rect|region|annotation)_")
_SPLITS = ("split", "subset", "set", "partition", "fold", "dataset", "phase")
_SIZES = (
    ("width", "height"),
    ("image_width", "image_height"),
    ("img_width", "img_height"),
    ("img_w", "img_h"),
)
_NUMBER = re.compile(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?")
_SEPARATORS = "|;,"
_SHAPE = re.compile(r"\s*([\[({].*\d.*[\])}]|(MULTI)?POLYGON|\d+ \d+ \d+ \d+)", re.DOTALL)
"""The start of a text that is a list of numbers, an object, an outline, or a mask."""


class Meaning(NamedTuple):
    """The meaning of the columns of a table. `notes` say, a line each, how it was found out.

    For detection, either `boxes` or `corners` is set, or both are empty if the boxes are objects
    with our own names.
    """

    task: str
    label: str = ""
    boxes: str = ""
    corners: Sequence[str] = ()
    box_format: str = "xyxy"
    units: str = "pixels"
    one_hot: Sequence[str] = ()
    single_class: str = ""
    others: Mapping[str, str] = {}
    notes: Sequence[str] = ()


def find_field(fields: Any, name: str) -> Any:
    """The value of `label`, or of `objects.bbox` in one object or in a list of objects, or None."""
    if isinstance(fields, Mapping) and name in fields:
        return fields[name]
    first, _, rest = name.partition(".")
    if isinstance(fields, list):
        return [find_field(item, name) for item in fields]
    value = fields.get(first) if isinstance(fields, Mapping) else None
    return find_field(value, rest) if rest else value


def list_names(rows: Iterable[Row]) -> list[str]:
    """The keys of rows in their order, `objects.bbox` for those inside of others."""
    found: dict[str, None] = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name)
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, Mapping):
                    found.update((f"{name}.{inner}", None) for inner in each)
    return list(found)


def parse_numbers(value: Any) -> list[list[float]] | None:
    """The boxes in a value, four numbers each, or None if these are no boxes.

    A value is a list of four numbers, a list of such lists, or the text of either.
    """
    if isinstance(value, str):
        text = value.strip().replace("(", "[").replace(")", "]")
        if not text:
            return []
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            rest = _NUMBER.sub("", text).strip("[] ,;\t")
            value = list(map(float, _NUMBER.findall(text))) if not rest.strip(" ,;") else None
    if not isinstance(value, list):
        return None
    boxes = value if value and isinstance(value[0], list) else [value] if value else []
    is_box = all(isinstance(box, list) and len(box) == 4 for box in boxes)
    numbers = (number for box in boxes if is_box for number in box)
    return boxes if is_box and all(type(each) in (int, float) for each in numbers) else None


def find_meaning(
    rows: Sequence[Row],
    names: Sequence[str],
    sizes: Sequence[Size | None],
    chosen: Mapping[str, Any],
    label_key: str,
) -> Meaning | Question | str:
    """Finds the meaning of the columns `names`, all but that of the image, or the reason for none.

    `sizes` are the sizes of the rows' images, as far as they are known. `chosen` are keys of the
    source that the user has given, and `label_key` is the key that names the column of the classes.
    """
    others, notes = _find_others(rows, names)
    names = [name for name in names if name not in others.values()]
    found = _find_boxes(rows, names, sizes, chosen, label_key)
    if isinstance(found, Question | str):
        return found
    if found is None:
        coordinates = [name for name in names if _normalise(name) in _COORDINATES]
        if len([name for name in coordinates if _are_numbers(rows, name)]) > 1:
            return (
                f"the columns {join_names(coordinates)} are coordinates, but no four of its "
                "columns are a known box. Name them: --source corners=[...]"
            )
        meaning = _find_classes(rows, names, chosen, label_key, others, notes)
        return _tell_unused(rows, names, meaning, chosen, label_key)
    outer = found.boxes.rpartition(".")[0]
    rest = [name for name in names if name not in (found.boxes, *found.corners, outer)]
    inner = [name for name in rest if outer and name.startswith(f"{outer}.")]
    notes = [*notes, *found.notes]
    taken = {"width", "height"}.intersection(found.corners)  # by the source itself
    others = others | ({} if taken else _find_sizes(rest))
    if found.label == "own":
        return found._replace(label="", others=others, notes=notes)
    usable = [name for name in rest if name not in others.values()]
    label = _choose_label(rows, inner, chosen, label_key) if inner else None
    label = label or _choose_label(rows, usable, chosen, label_key)
    if isinstance(label, Question):
        return label
    if label is None:
        single = chosen.get("single_class") or ("" if usable else "object")
        if not single:
            choices = [{label_key: name} for name in usable[:3]] + [{"single_class": "object"}]
            text = f"no column is named as one of classes, of {join_names(usable)}"
            return Question(text, choices)
        notes.append(f"class {single} for all boxes, because no column names one")
        return found._replace(single_class=single, others=others, notes=notes)
    notes.append(f"label from the column {label}")
    return found._replace(label=label, others=others, notes=notes)


def _get_boxes_key(label_key: str) -> str:
    """The key that names the column of the boxes, beside the one for the classes."""
    return "columns.boxes" if label_key.startswith("columns.") else "boxes"


def _tell_unused(
    rows: Sequence[Row],
    names: Sequence[str],
    meaning: Any,
    chosen: Mapping[str, Any],
    label_key: str,
) -> Meaning | Question | str:
    """The meaning with a note on the other columns. A question if they may be boxes."""
    if not isinstance(meaning, Meaning):
        return meaning
    used = {meaning.label, *meaning.one_hot, *meaning.others.values()}
    unused = [name for name in names if name and name not in used]
    numbers = [n for n in unused if _are_numbers(rows, n) and not _are_flags(rows, n)]
    shapes = [n for n in unused if any(_SHAPE.match(str(find_field(row, n))) for row in rows)]
    if "task" not in chosen and (len(numbers) > 3 or shapes):
        text = f"the columns {join_names([*numbers, *shapes])} may be boxes, which are not known"
        choices: list[dict[str, Any]] = [{"task": "classification"}]
        if len(numbers) > 3:
            choices.append({"task": "detection", "corners": f"[{','.join(numbers[:4])}]"})
        elif all(parse_numbers(find_field(row, shapes[0])) is not None for row in rows):
            choices.append({"task": "detection", _get_boxes_key(label_key): shapes[0]})
        return Question(text, choices)
    notes = [*meaning.notes, f"columns that are not used: {join_names(unused)}"]
    return meaning._replace(notes=notes) if unused else meaning


def _find_others(rows: Sequence[Row], names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Our columns `split` and `group` among the names, where all values are what they must be."""
    found, notes = {}, []
    for name in names:
        values = {value for row in rows if isinstance(value := row.get(name), str) and value}
        if _normalise(name) in _SPLITS and values:
            splits = {find_split(value) for value in values}
            if None not in splits and "split" not in found:
                found["split"] = name
                notes.append(f"split from the column {name}: {join_names(sorted(values))}")
        if _normalise(name) == "group":
            found["group"] = name
    return found, notes


def _find_sizes(names: Sequence[str]) -> dict[str, str]:
    by_name = {_normalise(name): name for name in names}
    for width, height in _SIZES:
        if width in by_name and height in by_name:
            return {"width": by_name[width], "height": by_name[height]}
    return {}


def _find_boxes(
    rows: Sequence[Row],
    names: Sequence[str],
    sizes: Sequence[Size | None],
    chosen: Mapping[str, Any],
    label_key: str,
) -> Meaning | Question | str | None:
    """The columns of the boxes with their format, tried on all boxes. None without such columns."""
    for name in names:
        is_given = name == chosen.get(_get_boxes_key(label_key))
        if _normalise(name.rpartition(".")[2]) not in _BOXES and not is_given:
            continue
        values = [value for row in rows if (value := find_field(row, name)) not in (None, "")]
        items = [each for value in values for each in (value if isinstance(value, list) else [])]
        if items and all(isinstance(b, dict) and {*CORNERS} & {*b} for b in items):
            numbers = [parse_number(box[corner]) for box in items for corner in {*CORNERS} & {*box}]
            units = "fractions" if all(0 <= number <= 1 for number in numbers) else "pixels"
            note = f"boxes from {name}, objects with corners as {units}"
            return Meaning("detection", "own", name, units=units, notes=[note])
        boxes = [parse_numbers(value) for value in values]
        if values and None not in boxes:
            sized = _pair(rows, [parse_numbers(find_field(row, name)) or [] for row in rows], sizes)
            return _judge(Meaning("detection", boxes=name), sized, (), chosen, f"column {name}")
    by_name: dict[str, str] = {}
    for name in names:
        by_name.setdefault(_PREFIX.sub("", _normalise(name)), name)
    given = tuple(chosen.get("corners") or ())
    for usual, formats in (
        {given: USUAL_FORMATS, **_CORNER_SETS}.items() if given else (_CORNER_SETS.items())
    ):
        if not all(each in by_name for each in usual) and usual != given:
            continue
        columns = list(usual) if usual == given else [by_name[each] for each in usual]
        found = [_read_columns(row, columns) for row in rows]
        if any(found):
            meaning = Meaning("detection", corners=columns)
            place = f"columns {', '.join(columns)}"
            return _judge(meaning, _pair(rows, found, sizes), formats, chosen, place)
    return None


def _read_columns(row: Row, columns: Sequence[str]) -> list[list[float]]:
    """The boxes of a row: one of plain columns, or several of columns of lists."""
    values = [find_field(row, name) for name in columns]
    if all(value in (None, "") or str(value).lower() == "nan" for value in values):
        return []
    lists = [value if isinstance(value, list) else [value] for value in values]
    try:
        return [list(map(parse_number, box)) for box in zip(*lists, strict=True)]
    except (Reject, ValueError):
        return []  # the job rejects the row


def _pair(
    rows: Sequence[Row], boxes: Sequence[Sequence[Any]], sizes: Sequence[Size | None]
) -> list[tuple[Sequence[float], Size | None]]:
    columns = _find_sizes(list(rows[0]) if rows else [])
    found = []
    for row, own, size in zip(rows, boxes, sizes, strict=True):
        if size is None and columns:
            try:
                size = parse_number(row[columns["height"]]), parse_number(row[columns["width"]])
            except Reject:
                size = None
        found += [(box, size) for box in own]
    return found


def _judge(
    meaning: Meaning,
    boxes: Sequence[tuple[Sequence[float], Size | None]],
    formats: Sequence[BoxFormat],
    chosen: Mapping[str, Any],
    place: str,
) -> Meaning | Question | str:
    if not boxes:
        return meaning._replace(notes=[f"boxes from the {place}: there are none in the rows read"])
    every = judge_formats(boxes)
    found = judge_formats(boxes, formats) if formats else every
    if given := chosen.get("box_format"):
        note = f"boxes from the {place}: {given}, as you say"
        return meaning._replace(box_format=given, units=found.units, notes=[note])
    if not found.formats and every.formats:
        text = f"the {place} are no {formats[0]} as they are named, but all boxes fit otherwise"
        return Question(text, [{"box_format": name} for name in every.formats])
    if not found.formats:
        return f"{found.text} ({place})"
    if len(found.formats) > 1:
        text = f"{found.text} ({place})"
        return Question(text, [{"box_format": name} for name in found.formats])
    text = found.text if formats and len(formats) == 1 else every.text
    notes = [f"{text}, from the {place}"]
    return meaning._replace(box_format=found.formats[0], units=found.units, notes=notes)


def _find_classes(
    rows: Sequence[Row],
    names: Sequence[str],
    chosen: Mapping[str, Any],
    label_key: str,
    others: Mapping[str, str],
    notes: Sequence[str],
) -> Meaning | Question | str:
    label = _choose_label(rows, names, chosen, label_key)
    if isinstance(label, Question):
        return label
    flags = [name for name in names if _are_flags(rows, name)]
    if label is None and len(flags) > 1:
        counts = Counter(sum(parse_flag(row[name], name) for name in flags) for row in rows)
        if several := sum(count for number, count in counts.items() if number > 1):
            return (
                f"the columns {join_names(flags)} are classes, and {several:,} of {len(rows):,} "
                "rows have several of them: multi-label classification is not supported"
            )
        note = f"label from the {len(flags)} columns {join_names(flags)}, of which one is 1"
        return Meaning("classification", one_hot=flags, others=others, notes=[*notes, note])
    if label is None and len(names) == 1 and not (fault := _find_label_fault(rows, names[0])):
        label = names[0]
    elif label is None:
        return fault if len(names) == 1 else ""
    if fault := _find_label_fault(rows, label):
        return fault
    notes = [*notes, f"label from the column {label}"]
    return Meaning("classification", label, others=others, notes=notes)


def _choose_label(
    rows: Sequence[Row], names: Sequence[str], chosen: Mapping[str, Any], label_key: str
) -> str | Question | None:
    """The column of the classes by its name. A question if several could be meant."""
    if given := chosen.get(label_key):
        return str(given)
    short = {name: _normalise(name.rpartition(".")[2]) for name in names}
    short = {n: own for n, own in short.items() if own != "y" or not _are_numbers(rows, n)}
    found = [name for usual in _LABELS for name, own in short.items() if own == usual]
    found = [name for name in found if any(find_field(row, name) is not None for row in rows)]
    if exact := [name for name in found if short[name] == "label"]:
        return exact[0]
    different = _drop_translations(rows, found)
    if len(different) > 1:
        text = f"{join_names(different)} could each be the column of the classes"
        return Question(text, [{label_key: name} for name in different])
    return different[0] if different else None


def _drop_translations(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """The names without numbers of classes for which another column has the names."""
    kept = list(names)
    for name in names:
        for other in names:
            if name in kept and other in kept and name != other and _are_numbers(rows, name):
                pairs = {(str(find_field(r, name)), str(find_field(r, other))) for r in rows}
                one, two = {a for a, _ in pairs}, {b for _, b in pairs}
                if len(one) == len(two) == len(pairs):
                    kept.remove(name)
    return kept


def _find_label_fault(rows: Sequence[Row], name: str) -> str:
    """The reason for which the values of a column are no classes, or "" if they may be."""
    values = [str(value) for row in rows if (value := find_field(row, name)) not in (None, "")]
    distinct = set(values)
    if len(values) > 10 and len(distinct) == len(values) and _are_numbers(rows, name):
        return (
            f"the column {name} has {len(values):,} numbers that all differ, which are no classes"
        )
    for separator in _SEPARATORS:
        parts = {each: [p.strip() for p in each.split(separator)] for each in distinct}
        joined = [each for each in distinct if len(parts[each]) > 1]
        if joined and all(part in distinct for each in joined for part in parts[each]):
            return (
                f"the column {name} has several classes in one value, such as {min(joined)}: "
                "multi-label classification is not supported"
            )
    return ""


def find_multi_label(rows: Sequence[Row], path: str, label: str) -> str:
    """The reason for which images with several classes cannot be used, or ""."""
    classes: dict[Any, set[Any]] = defaultdict(set)
    for row in rows:
        classes[row.get(path)].add(str(find_field(row, label)))
    if several := sum(len(found) > 1 for found in classes.values()):
        return (
            f"{several:,} of {len(classes):,} images have several classes in the column {label}: "
            "multi-label classification is not supported. If its rows are boxes, name the columns: "
            "--source task=detection --source corners=[...]"
        )
    return ""


def _are_numbers(rows: Sequence[Row], name: str) -> bool:
    values = [value for row in rows if (value := find_field(row, name)) not in (None, "")]
    try:
        return len([parse_number(value) for value in values]) > 0
    except Reject:
        return False


def _are_flags(rows: Sequence[Row], name: str) -> bool:
    return bool(rows) and all(
        str(row.get(name)).strip() in ("0", "1", "0.0", "1.0") for row in rows
    )


def _normalise(name: str) -> str:
    """A name in lower case, with underscores for other signs: `Roi.X1` is `roi_x1`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
