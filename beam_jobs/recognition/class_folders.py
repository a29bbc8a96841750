"""Recognises images in one folder per class, maybe inside the folders of splits."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator

from beam_jobs.recognition.folder_view import FolderView
from beam_jobs.recognition.source_match import Certainty, SourceMatch, count, join_names
from beam_jobs.sources import read_records
from beam_jobs.sources.image_folder import find_split_folders, validate_layout
from beam_jobs.sources.parsing import is_image_name
from pipeline_ops.config.sources import ImageFolderSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing

_TYPE = "image_folder"
_ANNOTATIONS = (".csv", ".json", ".jsonl", ".ndjson", ".tsv", ".txt", ".xml", ".yaml", ".yml")


def recognise_class_folders(view: FolderView) -> Iterator[SourceMatch]:
    """Finds class folders. A folder that contains only one other folder is entered."""
    if view.named_file or not view.images:
        return
    below = _find_common_folder(view)
    listing = view.enter(below)
    source = ImageFolderSource(type="image_folder", path=".")
    try:
        validate_layout(source, listing)
    except DataError as error:
        yield SourceMatch(_TYPE, Certainty.UNUSABLE, str(error))
        return
    found = read_records(source, listing)
    images = Counter(record.label for record in found.records if is_image_name(record.key))
    others = sorted({record.label for record in found.records} - images.keys())
    if not images:
        reason = f"{count(len(view.images), 'image')} in no class folder"
        yield SourceMatch(_TYPE, Certainty.UNUSABLE, reason)
    elif len(images) == 1:
        reason = (
            f"only one folder has images ({min(images)}), and a classifier needs two classes. Put "
            "the images of each class into a folder of its own"
        )
        yield SourceMatch(_TYPE, Certainty.UNUSABLE, reason)
    elif others:
        reason = (
            f"{len(images)} folders have images, and {join_names(others)} "
            f"{'has' if len(others) == 1 else 'have'} none. Move what is no class away"
        )
        yield SourceMatch(_TYPE, Certainty.UNUSABLE, reason)
    else:
        reason = _describe(images, list(find_split_folders(source, listing)))
        certainty = Certainty.LIKELY if _has_annotations(listing) else Certainty.CERTAIN
        yield SourceMatch(_TYPE, certainty, reason, below=below)


def _find_common_folder(view: FolderView) -> str:
    """The innermost folder that all images share, unless it contains images itself.

    A folder of images alone is a class, so the folder around it is returned.
    """
    folders = {posixpath.dirname(file.key) for file in view.images}
    common = posixpath.commonpath(folders) if "" not in folders else ""
    return posixpath.dirname(common) if common in folders else common


def _has_annotations(listing: Listing) -> bool:
    """Returns whether a file beside the class folders may hold annotations."""
    return any(
        "/" not in file.key and file.key.lower().endswith(_ANNOTATIONS) for file in listing.files
    )


def _describe(images: Counter[str], splits: list[str]) -> str:
    where = f", in the folders {join_names(splits)} of the splits" if splits else ""
    if len(images) > 5:
        low, high = min(images.values()), max(images.values())
        return f"{len(images):,} class folders with {low:,} to {high:,} images{where}"
    *first, last = [f"{number:,}" for _, number in sorted(images.items())]
    return f"{len(images)} class folders with {', '.join(first)} and {last} images{where}"
