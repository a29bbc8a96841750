"""One folder of images per class, and maybe one folder per split around those, as for Keras.

A folder without files is no class, because it is not part of a data set's fingerprint.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from beam_jobs.sources.parsing import find_split_names
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import ImageFolderSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing

_REMEDY = (
    "or set preprocess.source.class_folder: outer, if the folders directly below path are the "
    "classes."
)


def read_entries(files: SourceFiles, source: ImageFolderSource) -> Iterator[SourceEntry]:
    splits = find_split_folders(source, files.listing)
    for key in itertools.chain(files.by_key, files.unreadable):
        with files.entry(key, key) as entry:
            label, split = _parse_label(source, key, splits)
            entry.labels = [label]
            if file := files.get(key):
                yield SourceEntry(file, label, split=split)


def _parse_label(
    source: ImageFolderSource, key: str, splits: Mapping[str, str]
) -> tuple[str, str | None]:
    *folders, _ = key.split("/")
    split = splits.get(folders.pop(0)) if splits and folders else None
    if not folders:
        raise Reject("no_label", "lies in no class folder")
    return folders[-1 if source.class_folder == "inner" else 0], split


def find_split_folders(source: ImageFolderSource, listing: Listing) -> dict[str, str]:
    """The splits by the names of their folders. Empty if the first folders are the classes."""
    return {} if source.class_folder == "outer" else find_split_names(_build_tree(listing))


def validate_layout(source: ImageFolderSource, listing: Listing, has_groups: bool = False) -> None:
    """Checks that folders have one meaning. With groups, the inner ones may have another."""
    tree, folder = _build_tree(listing), listing.folder
    if not tree:
        raise DataError(
            f"{folder}: its {len(listing.files)} files lie in no folder. Put the images of each "
            "class into a folder with the name of the class, "
            "or name the classes in a CSV file (preprocess.source.type: csv)."
        )
    if source.class_folder == "outer":
        return
    if splits := find_split_folders(source, listing):
        if others := sorted(set(tree) - set(splits)):
            raise DataError(
                f"{folder}: has folders of splits ({_join_names(splits)}) and other folders "
                f"({_join_names(others)}). Move the other folders away, {_REMEDY}"
            )
        if flat := [name for name in splits if tree[name] == {""}]:
            raise DataError(
                f"{folder}/{flat[0]}: a folder of a split needs class folders. Put its images into "
                f"one folder per class, move the folder away if they have no labels, {_REMEDY}"
            )
    elif len(tree) == 1:
        [(outer, inner)] = tree.items()
        if len(inner - {""}) > 1:
            raise DataError(
                f"{folder}: the only folder in it is {outer}, which has the folders "
                f"{_join_names(inner - {''})}. Set preprocess.source.path to {folder}/{outer}."
            )
    elif (
        source.class_folder is None
        and not has_groups
        and all("" not in inner and len(inner) > 1 for inner in tree.values())
    ):
        outer, inner = next(iter(tree.items()))
        raise DataError(
            f"{folder}: no image lies directly in one of its folders {_join_names(tree)}. "
            f"{outer} has the folders {_join_names(inner)}. "
            f"If those are the classes, set preprocess.source.path to {folder}/{outer}, or "
            f"preprocess.source.class_folder: inner, {_REMEDY}"
        )


def _build_tree(listing: Listing) -> dict[str, set[str]]:
    """The inner folders of each folder, "" for files that lie directly in it."""
    tree: dict[str, set[str]] = {}
    for file in listing.files:
        outer, separator, rest = file.key.partition("/")
        if separator:
            tree.setdefault(outer, set()).add(rest.partition("/")[0] if "/" in rest else "")
    return tree


def _join_names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")
