"""Reads `data.yaml` of an Ultralytics YOLO data set: the places of the splits, and the classes.

`path` often names a folder of another machine, or one below Ultralytics' own folder of data sets.
So it is looked for below the folder of `data.yaml`, then the same without its first folder, and so
on, until there is something in it. Nothing is downloaded or executed.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from beam_jobs.sources.collect import ListedFiles
from beam_jobs.sources.parsing import iterate_path_ends
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.yaml_messages import YamlProblem
from pipeline_ops.config.yaml_reading import Location, read_yaml
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing

_SPLITS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}
_MAX_BYTES = 4 << 20
_MAX_CLASSES = 100_000
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:")


class SplitEntry(NamedTuple):
    """One entry of train, val or test: a folder of images, or a list of their paths.

    `key` is its path below the source's folder, `location` its line in `data.yaml`, and
    `data_folder` the folder of that file.
    """

    key: str
    is_folder: bool
    split: str
    location: str
    data_folder: str

    @property
    def prefix(self) -> str:
        """The beginning of the keys of all files in the folder."""
        return "" if self.key == "." else f"{self.key}/"


class YoloData(NamedTuple):
    """The places of all splits, and the names of the classes by number."""

    places: tuple[SplitEntry, ...]
    names: Mapping[int, str]


class _Description(NamedTuple):
    """The values of `data.yaml` and the line of each, for messages."""

    name: str
    values: Mapping[str, Any]
    lines: Mapping[Location, int]

    def find_line(self, *location: str | int) -> int:
        return self.lines.get(location) or self.lines.get(location[:1], 1)

    def make_error(self, message: str, *location: str | int) -> DataError:
        return DataError(f"{self.name}:{self.find_line(*location)}: {message}")


def read_yolo_data(name: str, listing: Listing, files: ListedFiles) -> YoloData:
    """Reads the file of this name.

    Raises:
      DataError: names the line, and what to correct.
    """
    content = files.read(name, "data")
    if len(content) > _MAX_BYTES:
        raise DataError(f"{name}: has {len(content)} bytes, allowed are {_MAX_BYTES}.")
    try:
        values, lines = read_yaml(read_text(content, name))
    except YamlProblem as problem:
        raise DataError(f"{name}:{problem.line}: {problem.rule}") from None
    if not isinstance(values, dict):
        raise DataError(f"{name}:1: must be a mapping with the keys train, val and names.")
    description = _Description(name, values, lines)
    if "kpt_shape" in values:
        raise description.make_error(
            "kpt_shape: key points are not supported. Remove the key, and the columns of the key "
            "points from the label files.",
            "kpt_shape",
        )
    return YoloData(_find_places(description, listing, files), _parse_names(description))


def read_text(content: bytes, name: str) -> str:
    """The text of a file. Raises DataError: it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}:{line}: is not UTF-8. Save the file as UTF-8.") from None


def _find_places(
    description: _Description, listing: Listing, files: ListedFiles
) -> tuple[SplitEntry, ...]:
    values = description.values
    if not values.get("train"):
        raise description.make_error("the key train is missing. Add the folder of the images.")
    if not isinstance(path := values.get("path") or "", str):
        raise description.make_error("path: must be text.", "path")
    folders = _collect_folders(listing)
    places: dict[str, SplitEntry] = {}
    for key, split in _SPLITS.items():
        entries = values.get(key) or []
        for index, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            location = (key, index) if isinstance(entries, list) else (key,)
            if not isinstance(entry, str):
                raise description.make_error(f"{key}: must be text, or a list of texts.", *location)
            candidates = list(_iterate_candidates(description, path, entry, files))
            found = next((c for c in candidates if c in folders or files.get(c)), None)
            if found is None:
                raise description.make_error(
                    f"{key}: there are no files in {listing.folder} under {_join(candidates)}. "
                    f"Correct the entry or path, or remove {key}.",
                    *location,
                )
            if other := places.get(found):
                raise description.make_error(
                    f"{key}: {found} is named in {other.location} already, and an image can be in "
                    "one split only. Remove one of the entries.",
                    *location,
                )
            line, folder = description.find_line(*location), posixpath.dirname(description.name)
            places[found] = SplitEntry(
                found, found in folders, split, f"{description.name}:{line}", folder
            )
    return tuple(places.values())


def _join(candidates: list[str]) -> str:
    """The first three candidates, and the number of the others."""
    more = f" or {len(candidates) - 3} shorter paths" if len(candidates) > 3 else ""
    return ", ".join(candidate[:200] for candidate in candidates[:3]) + more


def _iterate_candidates(
    description: _Description, path: str, entry: str, files: ListedFiles
) -> Iterator[str]:
    """The keys that an entry may mean, most likely first.

    `../train/images` also stands for `train/images`, as in the files that Roboflow writes.
    """
    folder = posixpath.dirname(description.name)
    try:
        if _ABSOLUTE.match(entry):
            roots, entries = [""], list(iterate_path_ends(entry))
        else:
            entry = entry.replace("\\", "/")
            roots = [*iterate_path_ends(path), ""]
            entries = list(dict.fromkeys([entry, entry.removeprefix("../")]))
        for root, end in itertools.product(roots, entries):
            yield files.to_key(posixpath.join(folder, root), end)
    except Reject as reject:
        raise description.make_error(f"{reject.detail}.", "path") from None


def _collect_folders(listing: Listing) -> set[str]:
    """All folders that hold files, and "." for the source's own folder."""
    folders = {"."}
    for file in listing.files:
        folder = posixpath.dirname(file.key)
        while folder and folder not in folders:
            folders.add(folder)
            folder = posixpath.dirname(folder)
    return folders


def _parse_names(description: _Description) -> Mapping[int, str]:
    """The classes by number. With `nc` alone they are class_0, class_1 and so on."""
    names, count = description.values.get("names"), description.values.get("nc")
    if count is not None and (
        not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MAX_CLASSES
    ):
        raise description.make_error("nc: must be the number of classes, at least 1.", "nc")
    if names is None and count is not None:
        return {number: f"class_{number}" for number in range(count)}
    if not names or not isinstance(names, (list, dict)):
        raise description.make_error(
            "names: must be a list of the classes, or a mapping from numbers to classes.", "names"
        )
    if count is not None and count != len(names):
        raise description.make_error(f"nc: is {count}, but there are {len(names)} names.", "nc")
    found: dict[str, int] = {}
    for number, name in names.items() if isinstance(names, dict) else enumerate(names):
        location = number if isinstance(names, list) else str(number)
        if not str(number).isdecimal() or isinstance(name, bool) or not isinstance(name, str | int):
            raise description.make_error(
                f"names: {str(number):.40}: {str(name):.40} is not a number with the name of a "
                "class. Put the name in quotes.",
                "names",
                location,
            )
        if found.setdefault(str(name).strip(), int(number)) != int(number):
            raise description.make_error(
                f"names: two classes have the name {str(name):.40}. Rename one of them.",
                "names",
                location,
            )
    return {number: name for name, number in found.items()}
