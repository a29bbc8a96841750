"""Finds out what the columns of a table mean.

The `recognise` functions of `csv`, `jsonl`, `parquet` and `webdataset` call this module.

A name alone is no proof. An exact name comes before others that tools have for the same, a column
of coordinates is never a class, the format of boxes is tried on all of them, and a choice between
two columns that could both be meant is a question.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from beam_jobs.sources.box_formats import USUAL_FORMATS, SizedBox, judge_formats
from beam_jobs.sources.folder_view import Question
from beam_jobs.sources.parsing import CORNERS, find_split, parse_flag, parse_number, parse_size
from beam_jobs.sources.wording import join_names
from beam_jobs.stages.boxes import Size
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import BoxFormat
from pipeline_ops.raw_data.limits import MAX_NESTED_LISTS

Row = Mapping[str, Any]
_LABELS = (
    *("label", "labels", "class", "classes", "class_name", "classname", "category", "categories"),
    *("label_name", "labelname", "category_name", "class_label", "target", "species", "class_id"),
    *("classid", "category_id", "label_id", "cls", "y"),
)
"""Names of the column with the classes, the usual ones first."""
_BOXES = ("boxes", "bbox", "bboxes", "box", "bounding_box", "bounding_boxes", "objects")
_CORNERS: Sequence[tuple[tuple[BoxFormat, ...], Sequence[str]]] = (
    (("xyxy",), ["xmin ymin xmax ymax", "x_min y_min x_max y_max", "x1 y1 x2 y2", "x y x2 y2"]),
    (("xyxy",), ["min_x min_y max_x max_y", "x0 y0 x1 y1", "left top right bottom"]),
    (("center_xywh",), ["x_center y_center width height", "xcenter ycenter width height"]),
    (("center_xywh",), ["center_x center_y width height", "x_center y_center w h"]),
    (("center_xywh",), ["cx cy width height", "cx cy w h", "xc yc w h"]),
    (("xywh",), ["left top width height", "xmin ymin width height", "x_min y_min width height"]),
    (("xywh", "center_xywh"), ["x y width height", "x y w h"]),
)
"""The formats that the names of four columns allow."""
_CORNER_SETS = {tuple(names.split()): formats for formats, sets in _CORNERS for names in sets}
_COORDINATES = frozenset(itertools.chain(*_CORNER_SETS)) - {"width", "height"}
_PREFIX = re.compile("^(bbox|box|bndbox|bb|roi|rect|region|annotation)_")
_SPLITS = ("split", "subset", "set", "partition", "fold", "dataset", "phase")
_SIZES = ("width height", "image_width image_height", "img_width img_height", "img_w img_h")
_NUMBER = re.compile(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?")
_SEPARATORS = "|;,"
_SHAPE = re.compile(r"\s*([\[({].*\d.*[\])}]|(MULTI)?POLYGON|\d+ \d+ \d+ \d+)", re.DOTALL)
"""The start of a text that is a list of numbers, an object, an outline, or a mask."""
_USUAL = {"boxes": "boxes", "label": "label", "box_format": "xyxy", "units": "pixels"}


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

    def make_keys(self, *names: str) -> dict[str, Any]:
        """The keys of a source with these names, without empty and usual values."""
        keys = {name: getattr(self, name) for name in names}
        return {name: value for name, value in keys.items() if value and value != _USUAL.get(name)}


def find_field(fields: Any, name: str, max_lists: int = MAX_NESTED_LISTS) -> Any:
    """The value of `label`, or of `objects.bbox` in one object or in a list of objects, or None.

    A list may be inside of `max_lists` others, since the stack of Python has an end.
    """
    if isinstance(fields, Mapping) and name in fields:
        return fields[name]
    first, _, rest = name.partition(".")
    if isinstance(fields, list):
        return [find_field(item, name, max_lists - 1) for item in fields] if max_lists else None
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
    return boxes if all(map(_is_box, boxes)) else None


def _is_box(value: Any) -> bool:
    is_list = isinstance(value, list) and len(value) == 4
    return is_list and all(
        type(number) is float or (type(number) is int and number.bit_length() < 1024)
        for number in value
    )


def is_missing(value: Any) -> bool:
    """Returns whether a cell is empty, or has a word of Pandas or a database for that."""
    return value is None or str(value).strip().lower() in ("", "nan", "none", "null", "<na>")


def read_columns(row: Row, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """The boxes of a row: one of plain columns, or several of columns of lists. Raises Reject."""
    values = [find_field(row, name) for name in columns]
    if all(map(is_missing, values)):
        return []
    lists = [value if isinstance(value, list) else [value] for value in values]
    if len({*map(len, lists)}) > 1:
        raise Reject("malformed", f"{', '.join(columns)} have different lengths")
    return list(zip(*lists, strict=True))


class Columns:
    """The columns `names` of a table, all but that of the image.

    `sizes` are the sizes of the rows' images, as far as they are known. `chosen` are keys of the
    source that the user has given, and `label_key` is the key that names the column of the classes.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        names: Sequence[str],
        sizes: Sequence[Size | None],
        chosen: Mapping[str, Any],
        label_key: str,
    ):
        self._rows, self._sizes, self._chosen = rows, sizes, chosen
        self._label_key = label_key
        self._boxes_key = "columns.boxes" if label_key.startswith("columns.") else "boxes"
        self._notes: list[str] = []
        self._others = self._find_others(names)
        self._names = [name for name in names if name not in self._others.values()]

    def find_meaning(self) -> Meaning | Question | str:
        """Finds the meaning of the columns, or the reason for none."""
        found = self._find_boxes()
        if found is None:
            return self._find_classes()
        return self._find_boxes_label(found) if isinstance(found, Meaning) else found

    def _find_others(self, names: Iterable[str]) -> dict[str, str]:
        """Our columns `split` and `group`, where all values are what they must be."""
        found: dict[str, str] = {}
        for name in names:
            values = {v for row in self._rows if isinstance(v := row.get(name), str) and v}
            is_split = _normalise(name) in _SPLITS and values and all(map(find_split, values))
            if is_split and "split" not in found:
                found["split"] = name
                self._notes.append(f"split from the column {name}: {join_names(sorted(values))}")
            if _normalise(name) == "group":
                found["group"] = name
        return found

    def _find_boxes(self) -> Meaning | Question | str | None:
        """The columns of boxes with their format, tried on all boxes. None without such columns."""
        rows = self._rows
        for name in self._names:
            is_given = name == self._chosen.get(self._boxes_key)
            if _normalise(name.rpartition(".")[2]) not in _BOXES and not is_given:
                continue
            values = self._list_values(name)
            items = [each for value in values if isinstance(value, list) for each in value]
            if items and all(isinstance(box, dict) and {*CORNERS} & {*box} for box in items):
                numbers = [n for box in items for each in _try_columns(box, CORNERS) for n in each]
                is_fraction = bool(numbers) and all(0 <= number <= 1 for number in numbers)
                units = "fractions" if is_fraction else "pixels"
                note = f"boxes from {name}, objects with corners as {units}"
                return Meaning("detection", "own", name, units=units, notes=[note])
            if values and None not in map(parse_numbers, values):
                boxes = [parse_numbers(find_field(row, name)) or [] for row in rows]
                return self._judge(Meaning("detection", boxes=name), boxes, (), f"column {name}")
        given = self._chosen.get("corners")
        given = tuple(map(str, given)) if isinstance(given, list) else ()
        by_name = {_PREFIX.sub("", _normalise(name)): name for name in reversed(self._names)}
        by_name |= {name: name for name in given}
        for names, formats in {given: USUAL_FORMATS, **_CORNER_SETS}.items():
            columns = [by_name[name] for name in names if name in by_name]
            found = [_try_columns(row, columns) for row in rows] if len(columns) == 4 else []
            if any(found):
                meaning = Meaning("detection", corners=columns)
                return self._judge(meaning, found, formats, f"columns {', '.join(columns)}")
        return None

    def _judge(
        self,
        meaning: Meaning,
        boxes: Iterable[Sequence[Sequence[float]]],
        formats: Sequence[BoxFormat],
        place: str,
    ) -> Meaning | Question | str:
        """Tries formats on the boxes of each row, those that the names allow or all."""
        sized = list(self._add_sizes(boxes, meaning.corners))
        if not sized:
            note = f"boxes from the {place}: there are none in the rows read"
            return meaning._replace(notes=[note])
        every = judge_formats(sized)
        found = judge_formats(sized, formats) if formats else every
        if given := self._chosen.get("box_format"):
            note = f"boxes from the {place}: {given}, as you say"
            return meaning._replace(box_format=given, units=found.units, notes=[note])
        choices = found.formats or every.formats
        if not choices:
            return f"{found.text} ({place})"
        if len(found.formats) != 1:
            text = f"{found.text} ({place})"
            if not found.formats:
                text = f"the {place} are no {formats[0]} as they are named, but all boxes fit "
                text += "otherwise"
            return Question(text, [{"box_format": name} for name in choices])
        note = f"{(found if len(formats) == 1 else every).text}, from the {place}"
        return meaning._replace(box_format=choices[0], units=found.units, notes=[note])

    def _add_sizes(
        self, boxes: Iterable[Sequence[Sequence[float]]], corners: Sequence[str]
    ) -> Iterator[SizedBox]:
        """Each box with the size of its image, which the table may have if the image is unread."""
        columns = _find_sizes(name for name in self._rows[0] if name not in corners)
        for row, own, size in zip(self._rows, boxes, self._sizes, strict=True):
            with contextlib.suppress(Reject):
                if columns and not size:
                    size = parse_size(row.get(columns["height"]), row.get(columns["width"]))
            yield from ((box, size) for box in own)

    def _find_boxes_label(self, found: Meaning) -> Meaning | Question:
        """The meaning with the column of the classes of its boxes."""
        outer = found.boxes.rpartition(".")[0]
        rest = [name for name in self._names if name not in (found.boxes, *found.corners, outer)]
        inner = [name for name in rest if outer and name.startswith(f"{outer}.")]
        taken = {"width", "height"}.intersection(found.corners)  # by the source itself
        others = self._others | ({} if taken else _find_sizes(rest))
        notes = [*self._notes, *found.notes]
        if found.label == "own":
            return found._replace(label="", others=others, notes=notes)
        usable = [name for name in rest if name not in others.values()]
        label = self._choose_label(inner) or self._choose_label(usable)
        if isinstance(label, Question):
            return label
        if label:
            notes.append(f"label from the column {label}")
            return found._replace(label=label, others=others, notes=notes)
        single = self._chosen.get("single_class") or ("" if usable else "object")
        if not single:
            choices = [{self._label_key: name} for name in usable[:3]]
            text = f"no column is named as one of classes, of {join_names(usable)}"
            return Question(text, [*choices, {"single_class": "object"}])
        notes.append(f"class {single} for all boxes, because no column names one")
        return found._replace(single_class=single, others=others, notes=notes)

    def _find_classes(self) -> Meaning | Question | str:
        names = self._names
        coordinates = [name for name in names if _normalise(name) in _COORDINATES]
        if sum(map(self._has_numbers, coordinates)) > 1:
            return (
                f"the columns {join_names(coordinates)} are coordinates, but no four of its "
                "columns are a known box. Name them: --source corners=[...]"
            )
        label = self._choose_label(names)
        if isinstance(label, Question):
            return label
        flags = [] if label else list(filter(self._has_flags, names))
        if len(flags) > 1:
            counts = [sum(parse_flag(row[name], name) for name in flags) for row in self._rows]
            if several := sum(number > 1 for number in counts):
                return (
                    f"the columns {join_names(flags)} are classes, and {several:,} of "
                    f"{len(counts):,} rows have several of them: multi-label classification is not "
                    "supported"
                )
            note = f"label from the {len(flags)} columns {join_names(flags)}, of which one is 1"
            return self._tell_unused(Meaning("classification", one_hot=flags), note)
        label = label or (names[0] if len(names) == 1 else "")
        fault = self._find_label_fault(label) if label else ""
        if fault or not label:
            return fault
        return self._tell_unused(Meaning("classification", label), f"label from the column {label}")

    def _tell_unused(self, meaning: Meaning, note: str) -> Meaning | Question:
        """The meaning with a note on the other columns. A question if they may be boxes."""
        used = (meaning.label, *meaning.one_hot)
        unused = [name for name in self._names if name and name not in used]
        numbers = [n for n in unused if self._has_numbers(n) and not self._has_flags(n)]
        shapes = [n for n in unused if any(_SHAPE.match(str(find_field(r, n))) for r in self._rows)]
        if "task" not in self._chosen and (len(numbers) > 3 or shapes):
            choices: list[dict[str, Any]] = [{"task": "classification"}]
            if len(numbers) > 3:
                choices.append({"task": "detection", "corners": numbers[:4]})
            elif all(parse_numbers(find_field(row, shapes[0])) is not None for row in self._rows):
                choices.append({"task": "detection", self._boxes_key: shapes[0]})
            names = join_names([*numbers, *shapes])
            return Question(f"the columns {names} may be boxes, which are not known", choices)
        notes = [*self._notes, note]
        notes += [f"columns that are not used: {join_names(unused)}"] if unused else []
        return meaning._replace(others=self._others, notes=notes)

    def _choose_label(self, names: Sequence[str]) -> str | Question | None:
        """The column of the classes by its name. A question if several could be meant."""
        if given := self._chosen.get(self._label_key):
            return str(given)
        short = {name: _normalise(name.rpartition(".")[2]) for name in names}
        short = {n: own for n, own in short.items() if own != "y" or not self._has_numbers(n)}
        found = [name for usual in _LABELS for name, own in short.items() if own == usual]
        found = [n for n in found if any(find_field(row, n) is not None for row in self._rows)]
        if exact := [name for name in found if short[name] == "label"]:
            return exact[0]
        different = self._drop_translations(found)
        if len(different) > 1:
            text = f"{join_names(different)} could each be the column of the classes"
            return Question(text, [{self._label_key: name} for name in different])
        return different[0] if different else None

    def _drop_translations(self, names: Sequence[str]) -> list[str]:
        """The names without numbers of classes for which another column has the names."""
        kept = list(names)
        for name, other in itertools.permutations(names, 2):
            if name in kept and other in kept and self._has_numbers(name):
                pairs = {(str(find_field(r, name)), str(find_field(r, other))) for r in self._rows}
                if [len(set(values)) for values in zip(*pairs, strict=True)] == [len(pairs)] * 2:
                    kept.remove(name)
        return kept

    def _find_label_fault(self, name: str) -> str:
        """The reason for which the values of a column are no classes, or "" if they may be."""
        values = list(map(str, self._list_values(name)))
        number, distinct = f"{len(values):,} numbers", set(values)
        if len(values) > 10 and len(distinct) == len(values) and self._has_numbers(name):
            return f"the column {name} has {number} that all differ, which are no classes"
        for separator in _SEPARATORS:
            joined = [each for each in distinct if separator in each]
            parts = {part.strip() for each in joined for part in each.split(separator)}
            if joined and parts <= distinct:
                return (
                    f"the column {name} has several classes in one value, such as {min(joined)}: "
                    "multi-label classification is not supported"
                )
        return ""

    def _list_values(self, name: str) -> list[Any]:
        """The values of a column that are there."""
        values = (find_field(row, name) for row in self._rows)
        return [value for value in values if value not in (None, "")]

    def _has_numbers(self, name: str) -> bool:
        with contextlib.suppress(Reject):
            return len(list(map(parse_number, self._list_values(name)))) > 0
        return False

    def _has_flags(self, name: str) -> bool:
        values = {str(row.get(name)).strip() for row in self._rows}
        return bool(values) and values <= {"0", "1", "0.0", "1.0"}


def _try_columns(row: Row, columns: Sequence[str]) -> list[tuple[float, ...]]:
    """The boxes of a row, or none if the job will reject it."""
    with contextlib.suppress(Reject):
        return [tuple(map(parse_number, box)) for box in read_columns(row, columns)]
    return []


def _find_sizes(names: Iterable[str]) -> dict[str, str]:
    """The columns of the width and the height of images."""
    by_name = {_normalise(name): name for name in names}
    for width, height in map(str.split, _SIZES):
        if width in by_name and height in by_name:
            return {"width": by_name[width], "height": by_name[height]}
    return {}


def _normalise(name: str) -> str:
    """A name in lower case, with underscores for other signs: `Roi.X1` is `roi_x1`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
