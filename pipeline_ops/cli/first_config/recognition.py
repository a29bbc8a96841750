"""Recognises the kind of a data set in a folder, for `trainyard init`.

Each kind has a recogniser, a function that looks at names and at the start of a few files. It
yields a match for each place where its source fits, with a reason and a certainty. If files are of
its kind, but the source cannot read them as they are, it yields the reason in plain words, with the
cure. The best match wins. No job uses this package.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import html
import io
import itertools
import json
import posixpath
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from beam_jobs.io.example import parse
from beam_jobs.io.raw import CorruptParquet, iterate_rows, open_parquet, open_raw
from beam_jobs.io.tfrecord_files import CorruptRecord, scan_records
from beam_jobs.sources import parsing, read_records
from beam_jobs.sources.csv import find_delimiter
from beam_jobs.sources.image_folder import (
    REMEDY,
    FolderLayout,
    find_layout,
    get_folders,
    validate_layout,
)
from beam_jobs.sources.packed import find_field
from beam_jobs.sources.parsing import (
    CORNERS,
    find_split_names,
    is_image_name,
    parse_json_object,
)
from beam_jobs.sources.tfrecord import parse_label_map
from beam_jobs.sources.voc import find_voc_files
from beam_jobs.stages.stage import Reject
from pipeline_ops.artifacts import dataset as shards
from pipeline_ops.cli.first_config.folder_view import MAX_CANDIDATES, START_BYTES, FolderView, count
from pipeline_ops.config.sources import ImageFolderSource, VocSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.raw_file import RawFile

_MAX_ROWS, _MAX_EXAMPLES = 200, 20
"""Number of rows of a manifest, and of rows or members of a packed file, that are read."""
_ANNOTATIONS = (".csv", ".json", ".jsonl", ".ndjson", ".tsv", ".txt", ".xml", ".yaml", ".yml")
_BYTE_ORDER_MARK_AND_SPACE = b"\xef\xbb\xbf \r\n\t"


class SourceMatch(NamedTuple):
    """A source that fits.

    `reason` says in plain words what was seen. `keys` are the keys of the source besides `type` and
    `path`. `below` is the folder of the source below the folder that was looked at, "" for that
    folder itself. A match is likely and not certain if names alone say so, or if files of another
    kind are there.
    """

    type: str
    reason: str
    keys: Mapping[str, Any]
    below: str = ""
    is_certain: bool = True


def _find_class_folders(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds class folders. A folder that contains only one other folder is entered."""
    if view.named_file or not view.images:
        return
    # The innermost folder that all images share. One of images alone is a class.
    folders = {posixpath.dirname(file.key) for file in view.images}
    below = posixpath.commonpath(folders) if "" not in folders else ""
    below = posixpath.dirname(below) if below in folders else below
    listing = view.enter(below)
    source = ImageFolderSource.model_validate({"type": "image_folder", "path": "."})
    layout = find_layout(source, listing)
    keys, remark = _choose_class_folder(layout, listing.files)
    source = source.model_copy(update=keys)
    try:
        validate_layout(source, listing)
    except DataError as error:
        problem = str(error).partition(f", {REMEDY}")[0].removesuffix(".")
        by_hand = " in a config that you write by hand" if "preprocess.source." in problem else ""
        yield problem + by_hand
        return
    found = read_records(source, listing)
    images = Counter(record.label for record in found.records if is_image_name(record.key))
    others = sorted({record.label for record in found.records} - images.keys())
    if not images:
        yield f"{count(len(view.images), 'image')} in no class folder"
    elif len(images) == 1:
        yield (
            f"only one folder has images ({min(images)}), and a classifier needs two classes. Put "
            "the images of each class into a folder of its own"
        )
    elif others:
        yield (
            f"{len(images)} folders have images, and {_join_names(others)} "
            f"{'has' if len(others) == 1 else 'have'} none. Move what is no class away"
        )
    else:
        names = [file.key.lower() for file in listing.files]
        is_annotated = any(name.endswith(".xml" if "/" in name else _ANNOTATIONS) for name in names)
        *first, last = [f"{number:,}" for _, number in sorted(images.items())]
        numbers = f"{', '.join(first)} and {last}"
        if len(images) > 5:
            numbers = f"{min(images.values()):,} to {max(images.values()):,}"
        reason = f"{len(images):,} class folders with {numbers} images"
        reason += _say_splits(layout.splits) + remark
        is_certain = not is_annotated and "outer" not in keys.values()
        yield SourceMatch("image_folder", reason, keys, below, is_certain)


def _choose_class_folder(
    layout: FolderLayout, files: Iterable[RawFile]
) -> tuple[dict[str, str], str]:
    """Returns the key `class_folder` where two folders around an image may be its class.

    Inner folders that all repeat are classes, in folders of days, for example. If none repeats,
    they are parts of the outer ones. The remark says so.
    """
    if layout.splits and not layout.is_inside_classes:
        return {}, ""
    pairs = {layout.find_classes(get_folders(file.key))[0][:2] for file in files} - {()}
    outer = sorted({pair[0] for pair in pairs})
    inner = Counter(pair[1] for pair in pairs if len(pair) > 1)
    if not inner or len(outer) < 2:
        return {}, ""
    if len(inner) > 1 and min(inner.values()) > 1:
        return {"class_folder": "inner"}, f", merged from the folders {_join_names(outer)}"
    is_part = max(inner.values()) == 1 and min(map(len, pairs)) > 1
    keys = {"class_folder": "outer"} if is_part and not layout.splits else {}
    return keys, f"; the folders in them are no classes ({_join_names(sorted(inner))})"


def _say_splits(folders: Mapping[str, str]) -> str:
    names = [f"{name} ({split})" for name, split in sorted(folders.items())]
    return f", in the folders {_join_names(names)}" if names else ""


def _find_voc(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds images with an XML file of the same name, in the same folder or in another one."""
    files = [] if view.named_file else view.list_candidates(".xml")
    if not any(
        "/Annotations/" in f"/{file.key}" or b"<annotation>" in view.read_start(file)
        for file in files[:MAX_CANDIDATES]
    ):
        return
    best: dict[str, tuple[Any, ...]] = {}
    for below, images, texts in _pair_voc_folders(view, files):
        source = VocSource(type="voc", path=".", images=images, annotations=texts)
        pictures, annotated = find_voc_files(view.enter(below), source)
        found = (pictures.keys() & annotated.keys(), source, pictures, annotated)
        best[below] = max(best.get(below, found), found, key=lambda each: len(each[0]))
    if not best:
        first = posixpath.splitext(posixpath.basename(files[0].key))[0]
        yield (
            f"{files[0].key} is an annotation of Pascal VOC, but there is no image {first}.jpg. "
            "Add the images, or name the folder that holds both"
        )
    for below in sorted(best):
        both, source, pictures, annotated = best[below]
        keys, remark = _read_voc_lists(view, below, pictures.keys() | annotated.keys())
        keys |= _unless("images", source.images, "JPEGImages")
        keys |= _unless("annotations", source.annotations, "Annotations")
        splits = find_split_names({name.partition("/")[0] for name in both})
        reason = (
            f"{count(len(annotated), 'XML file')}{_say_folder(source.annotations)}, and "
            f"{count(len(pictures), 'image')}{_say_folder(source.images)}, of which "
            f"{len(both):,} have annotations{_say_splits(splits) or remark}"
        )
        yield SourceMatch("voc", reason, keys, below)


def _pair_voc_folders(view: FolderView, files: Iterable[RawFile]) -> set[tuple[str, str, str]]:
    """Lists where an image and an XML file of the same name are.

    Each item is the folder of the source, and below it the folders of the images and of the
    annotations. A folder of a split is around both, or inside. If every XML file is beside its
    image, the folder around all of them is the only item.
    """
    images, found = defaultdict[str, set[str]](set), set[tuple[str, str]]()
    for file in view.images:
        folder, name = posixpath.split(posixpath.splitext(file.key)[0])
        images[name].add(folder)
    for file in files:
        folder, name = posixpath.split(posixpath.splitext(file.key)[0])
        around = {folder} if folder in images[name] else images[name]
        found.update((image, folder) for image in around)
    if found and all(image == folder for image, folder in found):
        common = posixpath.commonpath(image for image, _ in found)
        found = {(common, common)}
    folders = set()
    for pair in found:
        image, xml = ([part for part in folder.split("/") if part] for folder in pair)
        shared = len(posixpath.commonprefix([image, xml]))
        before, image, xml = image[:shared], image[shared:], xml[shared:]
        while image and xml and image[-1] == xml[-1]:
            image, xml = image[:-1], xml[:-1]
        folders.add((tuple(before), "/".join(image) or ".", "/".join(xml) or "."))
    splits = find_split_names({before[-1] for before, _, _ in folders if before})
    return {
        ("/".join(before[:-1] if {*before[-1:]} & splits.keys() else before), image, xml)
        for before, image, xml in folders
    }


def _say_folder(folder: str) -> str:
    return "" if folder == "." else f" in {folder}"


def _read_voc_lists(view: FolderView, below: str, names: set[str]) -> tuple[dict[str, Any], str]:
    """Returns the keys of the source for its lists, and a remark on them."""
    prefix = posixpath.join(below, "ImageSets/Main/")
    lists = {
        file.key.removeprefix(prefix).removesuffix(".txt"): file
        for file in view.files
        if file.key.startswith(prefix) and file.key.endswith(".txt")
    }
    used = [name for name in lists if name in ("train", "val", "test")]
    keys: dict[str, Any] = {}
    if "trainval" in lists and not {"train", "val"} & lists.keys():
        used.append("trainval")
        keys["image_sets"] = {"train": "trainval"}
    if not used:
        return {}, ""
    content = b"\n".join(view.read_start(lists[name], 1 << 26) for name in used)
    unlisted = len(names - set(content.decode("utf-8", "replace").split()))
    if unlisted:
        keys["unlisted"] = "ignore"
        return keys, f"; {unlisted:,} of them are in none of the lists {_join_names(used)}"
    return keys, f"; the lists {_join_names(used)} name all of them"


_COCO_KEYS = (b'"images"', b'"annotations"', b'"categories"')
_FILE_NAME = re.compile(rb'"file_name"\s*:\s*("(?:[^"\\\n]|\\.){1,1000}")')


def _find_coco(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds JSON files for detection whose images are below the folder."""
    candidates = [file for file in view.list_candidates(".json") if "captions" not in file.key]
    if instances := [file for file in candidates if "instances" in posixpath.basename(file.key)]:
        candidates = instances  # COCO's own files of key points name the same images
    parts, reasons = [], []
    for file in candidates[:MAX_CANDIDATES]:
        ends = view.read_ends(file)
        # The middle of a large file, with one of the three lists, is not in sight.
        has_keys = b'"file_name"' in ends and sum(key in ends for key in _COCO_KEYS) >= 2
        if not has_keys or not ends.lstrip(_BYTE_ORDER_MARK_AND_SPACE).startswith(b"{"):
            continue
        names = []
        for quoted in _FILE_NAME.findall(ends):
            with contextlib.suppress(ValueError):  # not UTF-8, or a wrong escape
                names.append(json.loads(quoted))
        folder, found = view.find_images_folder(names, file.key)
        if not found:
            yield (
                f"{file.key} is like a COCO file, but none of its images"
                f"{f' ({names[0]})' if names else ''} is below this folder. Name the folder that "
                "holds both"
            )
            continue
        part = {"annotations": file.key, **_unless("images", folder, ".")}
        parts.append({**part, **_unless("split", find_split(file.key), None)})
        reasons.append(f"{file.key} is a COCO file with images in {folder}")
    if parts:
        yield SourceMatch("coco", "; ".join(reasons), {"parts": parts})


_YOLO_LINE = re.compile(rb"\s*\d+(\s+[-+.\deE]+){4,}\s*(\r?\n|$)")
_YOLO_KEYS = (re.compile(rb"^names\s*:", re.MULTILINE), re.compile(rb"^(train|val)\s*:", re.M))


def _find_yolo(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds a `data.yaml`, or folders `images` and `labels`."""
    descriptions = [
        file
        for file, start in view.iterate_starts(".yaml", ".yml")
        if all(key.search(start) for key in _YOLO_KEYS)
    ]
    texts = [
        file
        for file in view.files
        if file.key.endswith(".txt") and "labels" in file.key.split("/")[:-1]
    ]
    if not any(_YOLO_LINE.match(view.read_start(file)) for file in texts[:MAX_CANDIDATES]):
        texts = []  # they hold no boxes
    labels = Counter(posixpath.dirname(file.key) for file in texts)
    for file in descriptions:
        below, name = posixpath.split(file.key)
        around = f"{below}/" if below else ""
        number = sum(n for folder, n in labels.items() if f"{folder}/".startswith(around))
        reason = f"{file.key} names classes and splits; {count(number, 'label file')} below it"
        keys = _unless("data", name, "data.yaml")
        yield SourceMatch("yolo", reason, keys, below, is_certain=number > 0)
    if not descriptions and labels and not view.named_file:
        yield (
            f"{count(labels.total(), 'label file')} of YOLO in {_join_names(sorted(labels))}, "
            "but no data.yaml, which names the classes. Add a file data.yaml with names, train "
            "and val"
        )


_OTHER_NAMES = {
    "label": ("class", "class_name", "category", "label_name", "target", "y"),
    "xmin": ("x_min", "x1", "left"),
    "ymin": ("y_min", "y1", "top"),
    "xmax": ("x_max", "x2", "right"),
    "ymax": ("y_max", "y2", "bottom"),
    "split": ("subset", "set", "partition"),
    "width": (),
    "height": (),
    "group": (),
}
"""Names that other tools have for our columns. The column with the paths is the one whose values
are images."""
_PATHS = ("path", "filename", "file_name", "file", "image", "image_path")
"""The usual names of this column, for a message."""


class _Table(NamedTuple):
    """A file whose rows or lines name images. `columns` has the names of our columns in it."""

    file: RawFile
    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]
    images: str
    find_by: str
    found: int
    has_boxes: bool


def _find_csv(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds CSV files with a column of images and one of classes, whatever their names are."""
    starts = view.iterate_starts(".csv", ".tsv")
    tables = ((file, *_read_table(start, file.num_bytes > START_BYTES)) for file, start in starts)
    yield from _recognise_tables("csv", view, tables)


def _recognise_tables(
    kind: str, view: FolderView, files: Iterable[tuple[RawFile, Sequence[str], Sequence[_Fields]]]
) -> Iterator[SourceMatch | str]:
    """Yields the matches of files with a header and rows. The files of the splits are one match."""
    tables = []
    for file, header, rows in files:
        table = _judge_table(view, file, header, rows)
        if isinstance(table, _Table):
            tables.append(table)
        elif table:
            yield table
    splits = [find_split(table.file.key) for table in tables]
    if "train" in splits and None not in splits and 1 < len(splits) == len({*splits}):
        yield _match_tables(kind, view, tables, splits)
    else:
        for table in tables:
            yield _match_tables(kind, view, [table], [None])


def _judge_table(
    view: FolderView, file: RawFile, header: Sequence[str], rows: Sequence[_Fields]
) -> _Table | str | None:
    """Returns the table, the reason why its images cannot be used, or None for another file."""
    if any(is_image_name(name) and view.count_images_named([name]) for name in header):
        line = ",".join(("path", *_XYXY, "label") if len(header) == 6 else ("path", "label"))
        return f"{file.key} has no header: its first line names an image. Add the line {line}"
    usual = next((name for name in header if name.lower() in _PATHS), "")
    best = (usual, ".", "path", 0)
    for name in header:
        values = [value for row in rows if isinstance(value := row.get(name), str) and value]
        folder, number = view.find_images_folder(values, file.key)
        by_name = view.count_images_named(values)
        best = max(best, (name, folder, "path", number), key=lambda found: found[3])
        best = max(best, (name, ".", "name", by_name), key=lambda found: found[3])
    path, images, find_by, found = best
    columns = {"path": path} | _find_columns([name for name in header if name != path])
    has_boxes = {*CORNERS} <= columns.keys() or "boxes" in header
    is_complete = "label" in columns or "boxes" in header
    if found and is_complete:
        return _Table(file, columns, rows, images, find_by, found, has_boxes)
    if found:
        return (
            f"{file.key} names images in {path}, but which of {_join_names(header)} "
            "has the classes is not clear. Name it in preprocess.source.columns, "
            f"`{{path: {path}, label: ...}}`"
        )
    if usual and is_complete:
        values = [row[usual] for row in rows if row.get(usual)]
        return (
            f"{file.key} names images and classes, but none of its images"
            f"{f' ({values[0]})' if values else ''} is below this folder. Correct the paths, or "
            "name the folder that holds both"
        )
    return None


def _find_columns(header: Sequence[str]) -> dict[str, str]:
    """The names in a header by ours. The only other column is the label's."""
    columns: dict[str, str] = {}
    for ours, others in _OTHER_NAMES.items():
        for name in header:
            if re.sub(r"[\s-]", "_", name.lower()) in (ours, *others):
                columns.setdefault(ours, name)
    rest = [name for name in header if name not in ("boxes", *columns.values())]
    if "label" not in columns and len(rest) == 1:
        columns["label"] = rest[0]
    return columns


def _match_tables(
    kind: str, view: FolderView, tables: Sequence[_Table], splits: Sequence[str | None]
) -> SourceMatch:
    first = tables[0]
    columns = {
        ours: theirs
        for ours, theirs in first.columns.items()
        if ours != theirs and (first.has_boxes or ours not in (*CORNERS, "width", "height"))
    }
    parts: list[dict[str, Any]] = [
        {"manifest": table.file.key}
        | _unless("images", table.images, ".")
        | _unless("split", split, None)
        for table, split in zip(tables, splits, strict=True)
    ]
    keys: dict[str, Any] = parts[0] if len(parts) == 1 else {"parts": parts}
    keys |= _get_task(first.has_boxes) | _unless("columns", columns, {})
    keys |= _unless("find_by", first.find_by, "path")
    if first.has_boxes and _has_fractions(
        dict(row) | {name: row.get(column) for name, column in first.columns.items()}
        for row in first.rows
    ):
        keys["units"] = "fractions"
    noun = "boxes" if first.has_boxes else "labels"
    reason = "; ".join(
        f"{table.file.key} names images{_say_folder(table.images)} with {noun}"
        f"{' by their file names' if table.find_by == 'name' else ''} "
        f"({table.found:,} of the first {count(len(table.rows), 'row')} looked up were found)"
        for table in tables
    )
    # A table with the columns of another tool may be a copy of the XML files beside it.
    is_copy = bool(columns and view.list_candidates(".xml"))
    return SourceMatch(kind, reason, keys, is_certain=not is_copy)


def _read_table(start: bytes, is_cut: bool) -> tuple[Sequence[str], list[dict[str, Any]]]:
    """The header and the first rows of a CSV file. Both are empty if it is none."""
    lines = start.decode("utf-8-sig", "replace").split("\n")
    if is_cut:
        lines.pop()
    text = io.StringIO("\n".join(lines[: _MAX_ROWS + 1]), newline="")
    reader = csv.DictReader(text, delimiter=find_delimiter(lines[0] if lines else ""))
    try:
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        return reader.fieldnames, list(reader)
    except csv.Error:
        return [], []


def _find_jsonl(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds files of JSON lines with a path and a label or boxes."""
    files = []
    for file, start in view.iterate_starts(".jsonl", ".ndjson"):
        entries = []
        for line in start.split(b"\n")[:_MAX_ROWS]:
            with contextlib.suppress(Reject):  # also of the last line, which may be cut off
                entries.append(parse_json_object(line))
        files.append((file, [*dict.fromkeys(itertools.chain(*entries))], entries))
    found = list(_recognise_tables("jsonl", view, files))
    yield from found
    if not found and files and files[0][1]:
        file, header, _ = files[0]
        yield (
            f"the lines of {file.key} have the keys {_join_names(header)}. "
            "The source needs path and label, or path and boxes"
        )


def _has_fractions(entries: Iterable[Mapping[str, Any]]) -> bool:
    """Returns whether all corners of the boxes are from 0 to 1."""
    lists = (entry.get("boxes", [entry]) for entry in entries)
    boxes = [box for boxes in lists if isinstance(boxes, list) for box in boxes]
    boxes = [box for box in boxes if isinstance(box, dict)]
    try:
        corners = [float(box[name]) for box in boxes for name in CORNERS if box.get(name) != ""]
    except (KeyError, TypeError, ValueError):
        return False
    return bool(corners) and all(0 <= corner <= 1 for corner in corners)


_LABEL_STUDIO = ((b'"annotations"', b'"data"'), (b'"annotator"', b'"annotation_id"'))
"""Keys of an export: of the full JSON, and of JSON-MIN."""


def _find_label_studio(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds JSON files that are a list of tasks."""
    for file, start in view.iterate_starts(".json"):
        is_list = start.lstrip(_BYTE_ORDER_MARK_AND_SPACE).startswith(b"[")
        if is_list and any(all(key in start for key in keys) for keys in _LABEL_STUDIO):
            reason = f"{file.key} is a list of tasks as Label Studio exports them"
            has_shapes = b"rectanglelabels" in start or b"polygonlabels" in start
            keys = {"export": file.key, **_get_task(has_shapes)}
            yield SourceMatch("label_studio", reason, keys)


_CVAT_IMAGE = re.compile(rb"""<image\s[^>]{0,500}?name=["']([^"'<>]{1,500})["']""")


def _find_cvat(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds XML files of the format "CVAT for images"."""
    for file, start in view.iterate_starts(".xml"):
        if b"<annotations>" not in start or not (quoted := _CVAT_IMAGE.findall(start)):
            continue
        names = [html.unescape(name.decode("utf-8", "replace")) for name in quoted]
        folder, found = view.find_images_folder(names, file.key)
        if found:
            has_shapes = any(shape in start for shape in (b"<box", b"<polygon", b"<mask"))
            keys = {"annotations": file.key, "images": folder, **_get_task(has_shapes)}
            reason = f"{file.key} is an export of CVAT with images in {folder}"
            yield SourceMatch("cvat", reason, keys)
        else:
            yield f"{file.key} is an export of CVAT without its images. Export it with images"


_TFRECORD_NAME = re.compile(r"\.(tfrecords?|tfrec|record)(-\d+-of-\d+)?$|-\d+-of-\d+$")


def _find_tfrecord(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds TFRecord files with images. The first record of the first file is parsed."""
    files = [
        file
        for file in view.list_candidates("")
        if _TFRECORD_NAME.search(file.key)
        and not posixpath.basename(file.key).startswith(
            (shards.QUARANTINE_PREFIX, f"{shards.RAW_TEST_PREFIX}test-")
        )
    ]
    if not files:
        return
    features, problem = dict[str, Any](), ""
    with view.open(files[0]) as opened:
        empty = CorruptRecord("truncated", "it has no records")
        _, record = next(scan_records(opened, files[0].num_bytes), (0, empty))
    try:
        if isinstance(record, CorruptRecord):
            raise record
        features = parse(record)
    except (CorruptRecord, ValueError) as error:
        problem = str(error)
    has_boxes = shards.BOX_XMIN in features
    has_label = shards.LABEL in features or "image/class/text" in features
    if shards.ENCODED not in features or not (has_boxes or has_label):
        reason = f"{files[0].key}: {problem or 'its first record has other features'}"
        if any(posixpath.basename(file.key) == "dataset_info.json" for file in view.files):
            reason += ". TensorFlow Datasets made it: use `type: tfds` (docs/data-sources.md)"
        yield reason
        return
    keys = _get_task(has_boxes)
    if maps := view.list_candidates(".pbtxt"):
        keys["label_map"] = maps[0].key
    patterns = list(dict.fromkeys(map(_get_pattern, files)))
    keys |= _list_parts(files) or {"parts": [{"files": pattern} for pattern in patterns]}
    reason = (
        f"{count(len(files), 'TFRecord file')} ({_join_names(patterns)}) whose first record "
        f"has an image and {'boxes' if has_boxes else 'a label'}"
    )
    yield SourceMatch("tfrecord", reason, keys)


def _find_parquet(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds Parquet files with a column of images. The first rows of the first file are read."""
    files = view.list_candidates(".parquet")
    if not any(start.startswith(b"PAR1") for _, start in view.iterate_starts(".parquet")):
        return
    try:
        with open_raw(files[0], view.folder) as opened, open_parquet(opened) as parquet:
            names = parquet.schema_arrow.names
            groups = range(parquet.num_row_groups)
            every = (row for group in groups for _, row in iterate_rows(parquet, group, names))
            rows = list(itertools.islice(every, _MAX_EXAMPLES))
    except (CorruptParquet, OSError) as error:
        yield f"{files[0].key}: {error}"
        return
    image, fields = _guess_image_column(view, rows), _guess_fields(rows)
    if image is None or not fields:
        missing = "images" if image is None else "labels or boxes"
        yield f"{files[0].key} has no known column with {missing}, but {_join_names(names)}"
        return
    kind = "boxes" if fields["task"] == "detection" else "labels"
    reason = f"{count(len(files), 'Parquet file')} with {kind}"
    keys = {**fields, **_list_parts(files), **image}
    yield SourceMatch("parquet", reason, keys)


_Fields = Mapping[str, Any]


def _guess_image_column(view: FolderView, rows: Sequence[_Fields]) -> dict[str, Any] | None:
    """The keys `image` and `images` of a Parquet source. None if no column can be the images."""
    paths: dict[str, list[str]] = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        values = [each.get("bytes") if isinstance(each, dict) else each for each in values]
        if any(isinstance(value, bytes) for value in values):
            return _unless("image", name, "image")
        paths[name] = [value for value in values if isinstance(value, str)]
    for name, found in paths.items():
        folder, number = view.find_images_folder(found, "")
        if number:
            return {**_unless("image", name, "image"), "images": folder}
    return None


def _find_webdataset(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds tar files whose first members are images and annotations of the same names."""
    files = view.list_candidates(".tar")
    members = _list_members(view, files[0]) if files else []
    suffixes = {name.partition(".")[2].lower() for name, _ in members}
    objects = []
    for name, content in members:
        if name.lower().endswith(".json"):
            with contextlib.suppress(Reject):
                objects.append(parse_json_object(content))
    fields = _guess_fields(objects)
    if fields or suffixes & {"cls", "txt"}:
        keys: dict[str, Any] = {"task": "classification", "annotation": "txt"}
        if fields.get("task") == "detection":
            keys = fields
        elif "cls" in suffixes:
            keys = {"task": "classification"}
        elif fields:
            keys = {**fields, "annotation": "json"}
        keys |= _list_parts(files)
        reason = (
            f"{count(len(files), 'tar file')} of samples with the members "
            f"{_join_names(sorted(suffixes))}"
        )
        yield SourceMatch("webdataset", reason, keys)
    elif members:
        yield (
            f"{files[0].key} begins with {_join_names([name for name, _ in members])}. In a shard "
            "of WebDataset, each image has a member of the same name with its class or its boxes, "
            ".cls, .json or .txt. Unpack an archive of a folder"
        )
    elif files:
        yield f"{files[0].key} is no tar file, or is damaged. Write it again"
    elif packed := view.list_candidates(".tar.gz", ".tgz"):
        yield f"{packed[0].key} is compressed. Use gunzip first"


def _list_members(view: FolderView, file: RawFile) -> list[tuple[str, bytes]]:
    """The base names of the first files in a tar file, each with the start of its content."""
    found = []
    with view.open(file) as opened:
        try:
            with tarfile.open(fileobj=opened, mode="r:") as tar:
                for member in itertools.islice(tar, _MAX_EXAMPLES):
                    if content := tar.extractfile(member) if member.isfile() else None:
                        found.append((posixpath.basename(member.name), content.read(START_BYTES)))
        except (tarfile.TarError, ValueError, OverflowError, RecursionError):
            pass  # damaged from here on
    return found


_BOXES = ("boxes", "bbox", "bboxes", "objects", "annotations")
_LABELS: tuple[str, ...] = ("label", "labels", "class", "class_name")
_LABELS += ("category", "categories", "category_id", "category_name")
_XYXY = ("xmin", "ymin", "xmax", "ymax")
"""Names of fields that are looked for, the usual ones first."""


def _guess_fields(rows: Sequence[_Fields]) -> dict[str, Any]:
    """The keys `task`, `label`, `boxes` and so on of a source, from its first annotations.

    Empty if there are neither labels nor boxes.
    """
    names = (*_BOXES, *(f"{outer}.{inner}" for outer in _BOXES for inner in _BOXES))
    for name in names:
        values = [value for row in rows if (value := find_field(row, name)) is not None]
        boxes = [box for value in values for box in _as_list(value)]
        keys = {"task": "detection", **_unless("boxes", name, "boxes")}
        if values and all(isinstance(box, list) and len(box) == 4 for box in boxes):
            if all(isinstance(number, int | float) for box in boxes for number in box):
                return {**keys, **_guess_numbers(rows, name, boxes)} if boxes else keys
        elif values and all(isinstance(b, dict) and {*CORNERS, "label"} <= {*b} for b in boxes):
            return keys
    if any(all(_has_value(row, name) for name in CORNERS) for row in rows):
        columns = ([_as_list(find_field(row, name)) for name in _XYXY] for row in rows)
        boxes = [box for row in columns for box in zip(*row, strict=False)]
        found = _guess_numbers(rows, "", boxes)
        return {"task": "detection", "corners": list(_XYXY), **found}
    label = _find_label(rows, "")
    return {"task": "classification", **_unless("label", label, "label")} if label else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _guess_numbers(
    rows: Sequence[_Fields], boxes: str, numbers: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """The label, the format and the unit of boxes of four numbers."""
    outer = boxes.rpartition(".")[0]
    label = (outer and _find_label(rows, f"{outer}.")) or _find_label(rows, "") or "label"
    is_xywh = any(c < a or d < b for a, b, c, d in numbers)
    is_fraction = bool(numbers) and max(map(max, numbers)) <= 1
    keys = _unless("label", label, "label") | ({"box_format": "xywh"} if is_xywh else {})
    return keys | ({"units": "fractions"} if is_fraction else {})


def _find_label(rows: Sequence[_Fields], before: str) -> str:
    """The first usual name of labels that has a value in a row, or "" if there is none."""
    names = [f"{before}{name}" for name in _LABELS]
    return next((name for name in names if any(_has_value(row, name) for row in rows)), "")


def _has_value(row: _Fields, name: str) -> bool:
    return any(value is not None for value in _as_list(find_field(row, name)))


def _list_parts(files: Iterable[RawFile]) -> dict[str, Any]:
    """The key `parts` if the names of the files tell their splits, and otherwise no key."""
    patterns = dict.fromkeys(map(_get_pattern, files))
    parts = [
        {"files": pattern, **_unless("split", find_split(pattern), None)} for pattern in patterns
    ]
    return {"parts": parts} if any("split" in part for part in parts) else {}


def _get_pattern(file: RawFile) -> str:
    """The pattern of a file and of the other shards of its set."""
    key = file.key
    found = re.search(r"-(\d+)-of-\d+", key)
    if not found:
        return glob.escape(key)
    before, after = glob.escape(key[: found.start(1)]), glob.escape(key[found.end(1) :])
    return f"{before}{'?' * len(found[1])}{after}"


def find_split(path: str) -> str | None:
    """The split that the words of a path name, as in `instances_val2017.json`.

    Those of the file's name come first. None if they name none, or more than one.
    """
    return parsing.find_split(posixpath.basename(path)) or parsing.find_split(path)


def find_class_order(view: FolderView, labels: Collection[str]) -> list[str]:
    """The classes in the order of a label map that names all of them. Empty if there is none."""
    for file, start in view.iterate_starts(".pbtxt"):
        with contextlib.suppress(DataError):  # of something else
            names = parse_label_map(start, file.key).names
            order = [names[number] for number in sorted(names) if names[number] in labels]
            if len(order) == len(labels):
                return order
    return []


def _get_task(has_boxes: bool) -> dict[str, Any]:
    return {"task": "detection" if has_boxes else "classification"}


def _unless(key: str, value: Any, default: Any) -> dict[str, Any]:
    """The key of a source with a value, left out if the value is the default."""
    return {} if value == default else {key: value}


def _join_names(names: Sequence[str], limit: int = 5) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


KINDS: Mapping[str, tuple[Callable[[FolderView], Iterator[SourceMatch | str]], str]] = {
    "image_folder": (
        _find_class_folders,
        "a folder of images for each class, maybe below train and val",
    ),
    "voc": (_find_voc, "images, and XML files of Pascal VOC with the same names"),
    "coco": (_find_coco, "a JSON file with images, categories and annotations, and the images"),
    "yolo": (_find_yolo, "a data.yaml, and folders images and labels"),
    "csv": (_find_csv, "a CSV file with a column of images and one of classes, maybe with boxes"),
    "jsonl": (_find_jsonl, 'a .jsonl file with lines {"path": "1.jpg", "label": "cat"}'),
    "tfrecord": (_find_tfrecord, "TFRecord files with image/encoded and labels or boxes"),
    "parquet": (_find_parquet, "Parquet files"),
    "webdataset": (_find_webdataset, "tar files in which a name has an image and a label"),
    "label_studio": (_find_label_studio, "the JSON export of Label Studio, and the images"),
    "cvat": (_find_cvat, 'the XML export "CVAT for images", and the images'),
}
"""The recogniser of each `type` of a source, and the content of a folder that fits."""
_MAX_SHOWN = 5


def recognise(view: FolderView, only: str | None = None) -> SourceMatch:
    """Finds the kind of a data set. `only` is one of KINDS, if the user has chosen it.

    Raises DataError if no kind fits, or several fit equally. It says what the folder holds.
    """
    place = str(view.folder / (view.named_file or ""))
    if not view.files:
        found = f" ({view.rejected[0].key}: {view.rejected[0].detail})" if view.rejected else ""
        raise DataError(
            f"{place}: there are no files{found}. Name a folder with images and their labels or "
            "boxes."
        )
    names = [only] if only else list(KINDS)
    looks = [(name, look) for name in names for look in KINDS[name][0](view)]
    matches = [look for _, look in looks if isinstance(look, SourceMatch)]
    if not matches:
        more = "" if view.is_complete else "more than "
        suffixes = Counter(
            posixpath.splitext(file.key)[1].lower() or "without suffix" for file in view.files
        )
        shown = ", ".join(f"{number:,} {name}" for name, number in suffixes.most_common(_MAX_SHOWN))
        first = ", ".join(file.key for file in view.files[:_MAX_SHOWN])
        lines = [
            f"{place}: this is no data set that can be used as it is. It has {more}"
            f"{count(len(view.files), 'file')} ({shown}), for example {first}.",
            *(["What comes near:"] if looks else []),
            *(f"  {name:<14}{look}." for name, look in looks),
            "What each source needs:",
            *(f"  {name:<14}{KINDS[name][1]}" for name in names),
            "docs/data-sources.md describes the sources.",
        ]
        raise DataError("\n".join(lines))
    winners = [match for match in matches if match.is_certain] or matches
    if len(winners) == 1:
        return winners[0]
    is_same_type = len({each.type for each in winners}) < len(winners)
    advice = "Name the folder or the file that you mean."
    lines = [
        f"{place}: {len(winners)} kinds of data fit equally.",
        *(
            f"  {each.type:<14}{f'in {each.below}: ' if each.below else ''}{each.reason}"
            for each in winners
        ),
        advice if is_same_type else "Choose one of them with --type.",
    ]
    raise DataError("\n".join(lines))
