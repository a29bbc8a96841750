"""Recognises Pascal VOC, COCO and YOLO: annotations with boxes for images in other folders."""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from beam_jobs.recognition.folder_view import MAX_CANDIDATES, FolderView, iterate_parents
from beam_jobs.recognition.source_match import Certainty, SourceMatch, count, find_split, join_names
from pipeline_ops.raw_data.raw_file import RawFile

_LISTS_FOLDER = "ImageSets/Main/"
_LIST_BYTES = 1 << 26
_COCO_KEYS = (b'"images"', b'"annotations"', b'"categories"')
_FILE_NAME = re.compile(rb'"file_name"\s*:\s*("(?:[^"\\\n]|\\.){1,1000}")')
_YOLO_LINE = re.compile(rb"\s*\d+(\s+[-+.\deE]+){4,}\s*(\r?\n|$)")
_YOLO_KEYS = (re.compile(rb"^names\s*:", re.MULTILINE), re.compile(rb"^(train|val)\s*:", re.M))


def recognise_voc(view: FolderView) -> Iterator[SourceMatch]:
    """Finds folders with `JPEGImages` and `Annotations`."""
    if view.named_file:
        return
    stems: dict[str, set[str]] = {}
    for file in view.list_candidates(".xml"):
        folder, separator, rest = f"/{file.key}".rpartition("/Annotations/")
        if separator:
            stems.setdefault(folder.lstrip("/"), set()).add(posixpath.splitext(rest)[0])
    for below, annotated in sorted(stems.items()):
        prefix = f"{below}/JPEGImages/" if below else "JPEGImages/"
        pictures = {
            posixpath.splitext(file.key[len(prefix) :])[0]
            for file in view.images
            if file.key.startswith(prefix)
        }
        if matched := len(pictures & annotated):
            keys, remark = _read_voc_lists(view, below, pictures | annotated)
            reason = (
                f"{count(len(annotated), 'XML file')} in Annotations, and "
                f"{count(len(pictures), 'image')} in JPEGImages, of which {matched:,} have "
                f"annotations{remark}"
            )
            yield SourceMatch("voc", Certainty.CERTAIN, reason, keys, below)
        else:
            first, number = min(annotated), count(len(annotated), "XML file")
            reason = (
                f"{prefix} has no image for the {number} in Annotations, such as {first}.jpg for "
                f"{first}.xml. Put the images there"
            )
            yield SourceMatch("voc", Certainty.UNUSABLE, reason)
    heads = [
        file.key
        for file in view.list_candidates(".xml")[:MAX_CANDIDATES]
        if b"<annotation>" in view.read_start(file)
    ]
    if heads and not stems:
        reason = (
            f"{heads[0]} is an annotation of Pascal VOC. Move the XML files into a folder "
            "Annotations, and their images into a folder JPEGImages beside it"
        )
        yield SourceMatch("voc", Certainty.UNUSABLE, reason)


def _read_voc_lists(view: FolderView, below: str, names: set[str]) -> tuple[dict[str, Any], str]:
    """The keys of the source for its lists, and a remark on them."""
    prefix = f"{below}/{_LISTS_FOLDER}" if below else _LISTS_FOLDER
    lists = {
        file.key[len(prefix) : -len(".txt")]: file
        for file in view.files
        if file.key.startswith(prefix) and file.key.endswith(".txt")
    }
    used = [name for name in lists if name in ("train", "val", "test")]
    keys: dict[str, Any] = {}
    if "trainval" in lists and not {"train", "val"} & lists.keys():
        used.append("trainval")
        keys["image_sets"] = {"train": "trainval"}
    if not used:
        return {}, "; no lists in ImageSets/Main"
    content = b"\n".join(view.read_start(lists[name], _LIST_BYTES) for name in used)
    unlisted = len(names - set(content.decode("utf-8", "replace").split()))
    if unlisted:
        keys["unlisted"] = "ignore"
        return keys, f"; {unlisted:,} of them are in none of the lists {join_names(used)}"
    return keys, f"; the lists {join_names(used)} name all of them"


def recognise_coco(view: FolderView) -> Iterator[SourceMatch]:
    """Finds JSON files for detection whose images are below the folder."""
    candidates = [file for file in view.list_candidates(".json") if "captions" not in file.key]
    if instances := [file for file in candidates if "instances" in posixpath.basename(file.key)]:
        candidates = instances  # COCO's own files of key points name the same images
    parts, reasons = [], []
    for file in candidates[:MAX_CANDIDATES]:
        ends = view.read_ends(file)
        if not ends.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{") or not _has_coco_keys(ends):
            continue
        names = _read_file_names(ends)
        folder, found = view.find_images_folder(names, file.key)
        if not found:
            reason = (
                f"{file.key} is like a COCO file, but none of its images"
                f"{f' ({names[0]})' if names else ''} is below this folder. Name the folder that "
                "holds both"
            )
            yield SourceMatch("coco", Certainty.UNUSABLE, reason)
            continue
        part = {"annotations": file.key}
        part |= {} if folder == "." else {"images": folder}
        split = find_split(file.key)
        parts.append(part | ({"split": split} if split else {}))
        reasons.append(f"{file.key} is a COCO file with images in {folder}")
    if parts:
        yield SourceMatch("coco", Certainty.CERTAIN, "; ".join(reasons), {"parts": parts})


def _has_coco_keys(ends: bytes) -> bool:
    """Returns whether two of the three lists are in sight. The middle of a large file is not."""
    return b'"file_name"' in ends and sum(key in ends for key in _COCO_KEYS) >= 2


def _read_file_names(ends: bytes) -> list[str]:
    names = []
    for quoted in _FILE_NAME.findall(ends):
        try:
            names.append(json.loads(quoted))
        except ValueError:  # not UTF-8, or a wrong escape
            continue
    return names


def recognise_yolo(view: FolderView) -> Iterator[SourceMatch]:
    """Finds a `data.yaml`, or folders `images` and `labels`."""
    descriptions = [
        file
        for file in view.list_candidates(".yaml", ".yml")[:MAX_CANDIDATES]
        if all(key.search(view.read_start(file)) for key in _YOLO_KEYS)
    ]
    labels = _count_label_files(view)
    for file in descriptions:
        below, name = posixpath.split(file.key)
        number = sum(n for folder, n in labels.items() if below in iterate_parents(f"{folder}/x"))
        reason = f"{file.key} names classes and splits; {count(number, 'label file')} below it"
        keys = {} if name == "data.yaml" else {"data": name}
        certainty = Certainty.CERTAIN if number else Certainty.LIKELY
        yield SourceMatch("yolo", certainty, reason, keys, below)
    if not descriptions and labels and not view.named_file:
        reason = (
            f"{count(sum(labels.values()), 'label file')} of YOLO in {join_names(sorted(labels))}, "
            "but no data.yaml, which names the classes. Add a file data.yaml with names, train "
            "and val"
        )
        yield SourceMatch("yolo", Certainty.UNUSABLE, reason)


def _count_label_files(view: FolderView) -> Counter[str]:
    """The number of text files by folder `labels` or below it, if the first ones hold boxes."""
    files: list[RawFile] = [
        file
        for file in view.files
        if file.key.endswith(".txt") and "labels" in posixpath.dirname(file.key).split("/")
    ]
    starts = [view.read_start(file) for file in files[:MAX_CANDIDATES]]
    if not any(_YOLO_LINE.match(start) for start in starts):
        return Counter()
    return Counter(posixpath.dirname(file.key) for file in files)
