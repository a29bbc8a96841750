"""Recognises the kind of a data set in a folder, for `trainyard init`.

Each kind has a recogniser, a function that looks at names and at the start of a few files. It
yields matches, each with a reason and a certainty. The best match wins. No job uses this
package.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pipeline_ops.cli.first_config import recognisers
from pipeline_ops.cli.first_config.folder_view import FolderView, count
from pipeline_ops.cli.first_config.recognisers import SourceMatch
from pipeline_ops.errors import DataError

_MAX_SHOWN = 5


class Kind(NamedTuple):
    """A kind of data set. `needs` says what a folder of this kind holds."""

    recognise: Callable[[FolderView], Iterator[SourceMatch | str]]
    needs: str


KINDS = {
    # The key is the `type` of the source.
    "image_folder": Kind(
        recognisers.recognise_class_folders,
        "a folder of images for each class, maybe below train and val",
    ),
    "voc": Kind(
        recognisers.recognise_voc,
        "images, and XML files of Pascal VOC with the same names",
    ),
    "coco": Kind(
        recognisers.recognise_coco,
        "a JSON file with images, categories and annotations, and the images",
    ),
    "yolo": Kind(recognisers.recognise_yolo, "a data.yaml, and folders images and labels"),
    "csv": Kind(
        recognisers.recognise_csv,
        "a CSV file with a column of images and one of classes, maybe with boxes",
    ),
    "jsonl": Kind(
        recognisers.recognise_jsonl, 'a .jsonl file with lines {"path": "1.jpg", "label": "cat"}'
    ),
    "tfrecord": Kind(
        recognisers.recognise_tfrecord, "TFRecord files with image/encoded and labels or boxes"
    ),
    "parquet": Kind(recognisers.recognise_parquet, "Parquet files"),
    "webdataset": Kind(
        recognisers.recognise_webdataset, "tar files in which a name has an image and a label"
    ),
    "label_studio": Kind(
        recognisers.recognise_label_studio, "the JSON export of Label Studio, and the images"
    ),
    "cvat": Kind(recognisers.recognise_cvat, 'the XML export "CVAT for images", and the images'),
}


def recognise(view: FolderView, only: str | None = None) -> SourceMatch:
    """Finds the kind of a data set. `only` is one of KINDS, if the user has chosen it.

    Raises:
      DataError: no kind fits, or several fit equally. The message says what the folder holds.
    """
    place = str(view.folder / (view.named_file or ""))
    if not view.files:
        found = f" ({view.rejected[0].key}: {view.rejected[0].detail})" if view.rejected else ""
        raise DataError(
            f"{place}: there are no files{found}. Name a folder with images and their labels or "
            "boxes."
        )
    names = [only] if only else list(KINDS)
    looks = [(name, look) for name in names for look in KINDS[name].recognise(view)]
    matches = [look for _, look in looks if isinstance(look, SourceMatch)]
    if not matches:
        near = [f"  {name:<14}{look}." for name, look in looks]
        raise DataError(_describe_unknown(place, view, near, names))
    best = max(match.certainty for match in matches)
    winners = [match for match in matches if match.certainty == best]
    if len(winners) > 1:
        raise DataError(_describe_tie(place, winners))
    return winners[0]


def _describe_tie(place: str, winners: Sequence[SourceMatch]) -> str:
    lines = [
        f"  {each.type:<14}{f'in {each.below}: ' if each.below else ''}{each.reason}"
        for each in winners
    ]
    cure = (
        "Choose one of them with --type."
        if len({each.type for each in winners}) == len(winners)
        else "Name the folder or the file that you mean."
    )
    return "\n".join([f"{place}: {len(winners)} kinds of data fit equally.", *lines, cure])


def _describe_unknown(
    place: str, view: FolderView, near: Sequence[str], names: Iterable[str]
) -> str:
    more = "" if view.is_complete else "more than "
    suffixes = Counter(
        posixpath.splitext(file.key)[1].lower() or "without suffix" for file in view.files
    )
    shown = ", ".join(f"{number:,} {name}" for name, number in suffixes.most_common(_MAX_SHOWN))
    first = ", ".join(file.key for file in view.files[:_MAX_SHOWN])
    lines = [
        f"{place}: this is no data set that can be used as it is. It has {more}"
        f"{count(len(view.files), 'file')} ({shown}), for example {first}."
    ]
    if near:
        lines += ["What comes near:", *near]
    lines += ["What each source needs:", *(f"  {name:<14}{KINDS[name].needs}" for name in names)]
    return "\n".join([*lines, "docs/data-sources.md describes the sources."])
