"""Recognises the kind of a data set in a folder, for `trainyard init`.

Each kind has a recogniser, a function that looks at names and at the start of a few files. It
yields matches, each with a reason and a certainty. The best match wins. No job uses this
package.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from beam_jobs.recognition.box_files import recognise_coco, recognise_voc, recognise_yolo
from beam_jobs.recognition.class_folders import recognise_class_folders
from beam_jobs.recognition.folder_view import FolderView
from beam_jobs.recognition.labelling_tools import recognise_cvat, recognise_label_studio
from beam_jobs.recognition.packed_files import (
    recognise_parquet,
    recognise_tfrecord,
    recognise_webdataset,
)
from beam_jobs.recognition.source_match import Certainty, SourceMatch, count
from beam_jobs.recognition.table_files import recognise_csv, recognise_jsonl
from pipeline_ops.errors import DataError

_MAX_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of data set. `needs` says what a folder of this kind holds."""

    recognise: Callable[[FolderView], Iterator[SourceMatch]]
    needs: str


KINDS = {
    # The key is the `type` of the source.
    "image_folder": Kind(
        recognise_class_folders, "a folder of images for each class, maybe below train and val"
    ),
    "voc": Kind(recognise_voc, "folders JPEGImages and Annotations, with an XML file per image"),
    "coco": Kind(
        recognise_coco, "a JSON file with images, categories and annotations, and the images"
    ),
    "yolo": Kind(recognise_yolo, "a data.yaml, and folders images and labels"),
    "csv": Kind(
        recognise_csv, "a CSV file with the columns path,label or path,xmin,ymin,xmax,ymax,label"
    ),
    "jsonl": Kind(recognise_jsonl, 'a .jsonl file with lines {"path": "1.jpg", "label": "cat"}'),
    "tfrecord": Kind(recognise_tfrecord, "TFRecord files with image/encoded and labels or boxes"),
    "parquet": Kind(recognise_parquet, "Parquet files"),
    "webdataset": Kind(recognise_webdataset, "tar files in which a name has an image and a label"),
    "label_studio": Kind(recognise_label_studio, "the JSON export of Label Studio, and the images"),
    "cvat": Kind(recognise_cvat, 'the XML export "CVAT for images", and the images'),
}


def recognise(view: FolderView, only: str | None = None) -> SourceMatch:
    """Finds the kind of a data set.

    Args:
      view: the folder.
      only: one of KINDS, if the user has chosen it.

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
    kinds = {only: KINDS[only]} if only else KINDS
    matches = [match for kind in kinds.values() for match in kind.recognise(view)]
    best = max((match.certainty for match in matches), default=Certainty.UNUSABLE)
    winners = [match for match in matches if match.certainty == best]
    if best == Certainty.UNUSABLE:
        raise DataError(_describe_unknown(place, view, matches, list(kinds)))
    if len(winners) > 1:
        raise DataError(_describe_tie(place, winners))
    return winners[0]


def _describe_tie(place: str, winners: Sequence[SourceMatch]) -> str:
    lines = [f"  {each.type:<14}{_locate(each)}{each.reason}" for each in winners]
    cure = (
        "Choose one of them with --type."
        if len({each.type for each in winners}) == len(winners)
        else "Name the folder or the file that you mean."
    )
    return "\n".join([f"{place}: {len(winners)} kinds of data fit equally.", *lines, cure])


def _locate(match: SourceMatch) -> str:
    return f"in {match.below}: " if match.below else ""


def _describe_unknown(
    place: str, view: FolderView, near: Sequence[SourceMatch], kinds: Sequence[str]
) -> str:
    more = "" if view.is_complete else "more than "
    suffixes = Counter(
        posixpath.splitext(file.key)[1].lower() or "without suffix" for file in view.files
    )
    shown = ", ".join(f"{number:,} {name}" for name, number in suffixes.most_common(_MAX_SHOWN))
    names = ", ".join(file.key for file in view.files[:_MAX_SHOWN])
    lines = [
        f"{place}: this is no data set that can be used as it is. It has {more}"
        f"{count(len(view.files), 'file')} ({shown}), for example {names}."
    ]
    if near:
        lines += ["What comes near:", *(f"  {each.type:<14}{each.reason}." for each in near)]
    lines += ["What each source needs:", *(f"  {name:<14}{KINDS[name].needs}" for name in kinds)]
    return "\n".join([*lines, "docs/data-sources.md describes the sources."])
