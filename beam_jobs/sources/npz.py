"""Arrays of NumPy in `.npz` and `.npy` files: images, and the label of each.

The driver reads the arrays once, in chunks, and keeps the place and the digest of every image. The
workers read the rows of their shards, and make PNGs of them. The key of an image is its place,
`<file>#<array>-<row>`, or `<file>#<row>` if the file has one array.

The arrays of an `.npz` file belong together. An `.npy` file, or an `.npz` file with a single array,
is an array with the name of the file, and belongs to those in the same folder.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import logging
import math
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

import beam_jobs.sources.parsing as parsing
from beam_jobs.io.arrays import ArrayRows, UnreadableArray, list_arrays, open_array, to_pixels
from beam_jobs.io.raw import PackedImage, open_raw, translate_read_errors
from beam_jobs.sources.folder_view import FolderView, SourceMatch
from beam_jobs.sources.packed import parse_class
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.wording import count, join_names
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import ArraysPart, NpzSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.limits import MAX_ENTRIES, check_limit
from pipeline_ops.raw_data.listing import Listing, RawFolder
from pipeline_ops.raw_data.raw_file import RawFile, compute_digest

_IMAGE_WORDS = frozenset(("x", "image", "images", "img", "imgs"))
_LABEL_WORDS = frozenset(("y", "label", "labels", "target", "targets"))
_MIN_BRIGHT = 25.5
"""The largest value of an array whose values are 0 to 255 is at least a tenth of it."""
_NAME_THEM = "Name the arrays with images and labels of preprocess.source.parts"
_TO_BYTES = "Save the images as uint8 with the values 0 to 255"
_log = logging.getLogger(__name__)


class _Array(NamedTuple):
    """An array in a file. `member` is its name in an `.npz` file, and `where` names its rows."""

    file: RawFile
    member: str
    where: str

    @property
    def name(self) -> str:
        return self.where.rstrip("#-")


class _Pair(NamedTuple):
    images: _Array
    labels: _Array
    split: str | None


def read_entries(files: SourceFiles, source: NpzSource) -> Iterator[SourceEntry]:
    listing, taken = files.listing, set[_Array]()
    for index, part in enumerate(source.parts):
        cure = f"Correct preprocess.source.parts.{index}"
        for pair in _find_pairs(part, listing, cure):
            if pair.images in taken:
                place = listing.folder / pair.images.name
                raise DataError(f"{place}: these images belong to two parts. {cure}.")
            taken.add(pair.images)
            yield from _read_pair(pair, files, source)


def _find_pairs(part: ArraysPart, listing: Listing, cure: str) -> Iterator[_Pair]:
    """The pairs of arrays in the files of a part."""
    found = [file for file in listing.files if fnmatchcase(file.key, part.files)]
    if not found:
        raise DataError(f"{listing.folder}: no file matches {part.files}. {cure}.files.")
    folders = parsing.find_splits_of_keys(file.key for file in found)
    for place, arrays in _group_arrays(found, listing).items():
        if part.images is not None:
            names = [(part.images, str(part.labels))] if part.images in arrays else []
        else:
            names = list(_match_names(arrays))
        missing = {name for pair in names for name in pair} - arrays.keys()
        if missing or not names:
            fault = f"there is no array {min(missing or [part.images or 'of images and labels'])}"
            known = f"found {join_names(sorted(arrays), 10) or 'none'}"
            raise DataError(f"{listing.folder / place}: {fault}, {known}. {_NAME_THEM}.")
        for name, label_name in names:
            images, stem = arrays[name], posixpath.splitext(posixpath.basename(place))[0]
            split = part.split or parsing.find_split(name) or parsing.find_split(stem)
            split = split or folders.get(images.file.key)
            yield _Pair(images, arrays[label_name], split)


def _group_arrays(found: Iterable[RawFile], listing: Listing) -> dict[str, dict[str, _Array]]:
    """The arrays by name, by the file or the folder in which they belong together."""
    groups: dict[str, dict[str, _Array]] = defaultdict(dict)
    for file in found:
        folder, base = posixpath.split(file.key)
        stem, suffix = posixpath.splitext(base)
        members = [stem]
        if suffix.lower() == ".npz":
            with translate_read_errors(file.key), open_raw(file, listing.folder) as opened:
                try:
                    members = list_arrays(opened)
                except UnreadableArray as error:
                    raise DataError(f"{listing.folder / file.key}: {error}.") from None
        if len(members) == 1:
            groups[folder or "."][stem] = _Array(file, members[0], f"{file.key}#")
        for name in members if len(members) > 1 else ():
            groups[file.key][name] = _Array(file, name, f"{file.key}#{name}-")
    return groups


def _match_names(arrays: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs the names of images and labels whose other words are equal, such as `train`."""
    found: dict[tuple[str, ...], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for name in arrays:
        words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)
        lower = [word.lower() for word in words]
        for index, known in enumerate((_IMAGE_WORDS, _LABEL_WORDS)):
            if known.intersection(lower):
                found[tuple(word for word in lower if word not in known)][index].append(name)
    for images, labels in found.values():
        if len(images) == len(labels) == 1:
            yield images[0], labels[0]


def _read_pair(pair: _Pair, files: SourceFiles, source: NpzSource) -> Iterator[SourceEntry]:
    """The entries of the rows. All images are read before the first one."""
    folder, where = files.listing.folder, pair.images.where
    with _open(pair.images, folder) as array:
        _check_length(array, pair.images, folder)
        num_bytes = math.prod(array.shape[1:])
        scale = _choose_scale(array)
        digests = [digest for rows in array.iterate() for digest in _digest_images(rows, scale)]
        _log.info("%s: %s of %s, times %g", pair.images.name, array.shape, array.dtype, scale)
    with _open(pair.labels, folder) as array:
        _check_labels(array, len(digests), pair.images.name)
        labels = itertools.chain.from_iterable(map(_to_labels, array.iterate()))
        for row, (digest, label) in enumerate(zip(digests, labels, strict=True)):
            key = f"{where}{row:06d}"
            with files.entry(key, key=key, scope=pair.images.file.key):
                if digest is None:
                    raise Reject("corrupt", "a value of the image is not finite")
                name = parse_class(label, source.class_names)
                at = (pair.images.file, row, pair.images.member, scale)
                yield SourceEntry(PackedImage(key, num_bytes, digest, *at), name, split=pair.split)


def _check_length(array: ArrayRows, images: _Array, folder: RawFolder) -> None:
    """Raises TooLarge for more images than a file can hold, or than a source may have."""
    length, place = array.shape[0], folder / images.name
    cure = "Each image takes a byte or more. Correct the file, or remove it."
    check_limit(place, "has", length, images.file.num_bytes, "images", cure)
    check_limit(place, "has", length, MAX_ENTRIES, "images", "Divide the data set.")


@contextlib.contextmanager
def _open(array: _Array, folder: RawFolder) -> Iterator[ArrayRows]:
    """Opens an array for a block, which may raise UnreadableArray."""
    with translate_read_errors(array.file.key), open_raw(array.file, folder) as file:
        try:
            with open_array(file, array.member) as opened:
                yield opened
        except UnreadableArray as error:
            raise DataError(f"{folder / array.name}: {error}.") from None


def _choose_scale(array: ArrayRows) -> float:
    """The factor from the values of images to pixels of 0 to 255."""
    shape, num_axes = array.shape, len(array.shape)
    if not (num_axes == 3 or (num_axes == 4 and shape[3] in (1, 3))):
        cure = "Save them as [N, H, W] or [N, H, W, C] with 1 or 3 channels"
        if num_axes == 4 and shape[1] in (1, 3):
            cure = "Save numpy.moveaxis(images, 1, -1), which has the channels last"
        raise UnreadableArray(f"its shape {shape} is not that of images. {cure}")
    if array.dtype == np.uint8:
        return 1.0
    if array.dtype.kind not in "biuf":
        raise UnreadableArray(f"images are numbers, got {array.dtype}. {_NAME_THEM}")
    low, high, is_whole = math.inf, -math.inf, True
    for rows in array.iterate():
        values = rows[np.isfinite(rows)]
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
            is_whole = is_whole and bool((values == np.rint(values)).all())
    fault = ""
    if high <= 1 and is_whole:
        fault = "which may be of the range 0 to 1 or of 0 to 255"
    elif not 0 <= low <= high <= 255 or 1 < high < _MIN_BRIGHT:
        fault = "which is neither the range 0 to 1 nor 0 to 255"
    if fault:
        raise UnreadableArray(f"its values are {low:g} to {high:g}, {fault}. {_TO_BYTES}")
    return 255.0 if high <= 1 else 1.0


def _digest_images(rows: np.ndarray, scale: float) -> Iterator[int | None]:
    """The digests of the pixels of images, and None for one with values that are not finite."""
    is_finite = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
    values = rows if is_finite.all() else np.nan_to_num(rows, posinf=0, neginf=0)
    for pixels, is_usable in zip(to_pixels(values, scale), is_finite, strict=True):
        yield compute_digest(pixels.tobytes()) if is_usable else None


def _check_labels(array: ArrayRows, num_images: int, images: str) -> None:
    shape, kind = array.shape, array.dtype.kind
    is_one_hot = len(shape) == 2 and shape[1] > 1 and kind in "biuf"
    if not (is_one_hot or (kind in "iuUS" and math.prod(shape) == shape[0])):
        need = "labels are whole numbers or text [N] or [N, 1], or one-hot rows [N, K]"
        raise UnreadableArray(f"{need}, got {shape} of {array.dtype}. Convert and save them")
    if shape[0] != num_images:
        raise UnreadableArray(f"{shape[0]} labels are for {num_images} images in {images}")


def _to_labels(rows: np.ndarray) -> list[Any]:
    """A number or a text for each row, None for a one-hot row without, or with more than one 1."""
    if rows.size > len(rows):
        is_one, is_zero = rows == 1, rows == 0
        is_clear = (is_one.sum(axis=1) == 1) & (is_one | is_zero).all(axis=1)
        return [int(n) if ok else None for n, ok in zip(is_one.argmax(1), is_clear, strict=True)]
    flat = rows.reshape(-1)
    return (np.char.decode(flat, "utf-8", "replace") if flat.dtype.kind == "S" else flat).tolist()


def recognise(view: FolderView) -> Iterator[SourceMatch | str]:
    """Finds arrays whose names are those of images and labels."""
    files = view.list_candidates(".npz", ".npy")
    if not files:
        return
    try:
        pairs = list(_find_pairs(ArraysPart(files="*"), Listing(view.folder, tuple(files)), ""))
    except DataError as error:
        yield str(error).removesuffix(".")
        return
    names = join_names([pair.images.name for pair in pairs])
    reason = f"{count(len(pairs), 'array')} of images with labels: {names}"
    keys = {"parts": [{"files": glob.escape(view.named_file)}]} if view.named_file else {}
    yield SourceMatch("npz", reason, keys)
