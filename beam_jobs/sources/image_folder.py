"""Raw images in one folder per class, and maybe in one folder per split around those.

    <source>/cat/0001.jpg            label cat
    <source>/cat/outdoors/0002.jpg   label cat
    <source>/readme.txt              in no class folder: kept out, named in the quarantine, counted

    <source>/train/cat/0001.jpg      label cat, given to the split train, as for Keras
    <source>/val/cat/0002.jpg        label cat, given to the split validation

A folder without files is no class, because it is not part of a data set's fingerprint. If the
folders have two possible meanings, `validate_layout` refuses them. `preprocess.source.class_folder`
then selects one of the meanings.
"""

from __future__ import annotations

from collections.abc import Mapping

from beam_jobs.planning.plan import Record
from beam_jobs.sources.collect import Collector, Found
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import ImageFolderSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing

_SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
_CURE = (
    "or set preprocess.source.class_folder: outer, if the folders directly below path are the "
    "classes"
)


def read_records(source: ImageFolderSource, listing: Listing) -> Found:
    """The files with their labels and splits, and the files that have no label."""
    collector, splits = Collector(), split_folders(source, listing)
    for file in listing.files:
        with collector.rejects(file.key):
            label, split = _label_of(source, file.key, splits)
            collector.add(Record(file, label, split=split), file.key)
    for entry in listing.refused:
        with collector.rejects(entry.key):
            label, _ = _label_of(source, entry.key, splits)
            collector.note_labels([label])
            raise Reject(entry.reason, entry.detail)
    return collector.found()


def _label_of(
    source: ImageFolderSource, key: str, splits: Mapping[str, str]
) -> tuple[str, str | None]:
    """The label and the split of a file. Raises Reject: no_label."""
    *folders, _ = key.split("/")
    split = splits.get(folders.pop(0)) if splits and folders else None
    if not folders:
        raise Reject("no_label", "lies in no class folder")
    return folders[-1 if source.class_folder == "inner" else 0], split


def split_folders(source: ImageFolderSource, listing: Listing) -> dict[str, str]:
    """The splits by the name of the folder that holds their class folders.

    The mapping is empty if the first folders are the classes.
    """
    found = {
        folder: _SPLITS[folder.lower()] for folder in _tree(listing) if folder.lower() in _SPLITS
    }
    is_layout = (
        source.class_folder != "outer"
        and "train" in found.values()
        and len(set(found.values())) > 1
    )
    return found if is_layout else {}


def validate_layout(source: ImageFolderSource, listing: Listing, has_groups: bool = False) -> None:
    """Checks that the folders have only one meaning.

    Args:
      source: the source.
      listing: its files, at least one.
      has_groups: whether `preprocess.split` says what the inner folders are.

    Raises:
      DataError: there are no class folders, they lie deeper than they seem to, or they stand among
        folders of splits.
    """
    tree, folder = _tree(listing), listing.folder
    if not tree:
        raise DataError(
            f"{folder}: its {len(listing.files)} files lie in no folder; put the images of each "
            "class into a folder of its own, "
            "named as the class, or name the classes in a CSV file (preprocess.source.type: csv)"
        )
    if source.class_folder == "outer":
        return
    if splits := split_folders(source, listing):
        _validate_splits(folder, tree, splits)
    elif len(tree) == 1:
        _validate_only_folder(folder, *tree.items())
    elif (
        source.class_folder is None
        and not has_groups
        and all("" not in inner and len(inner) > 1 for inner in tree.values())
    ):
        outer, inner = next(iter(tree.items()))
        raise DataError(
            f"{folder}: no image lies directly in one of its folders {_names(tree)}; {outer} has "
            f"the folders {_names(inner)}. "
            f"If those are the classes, set preprocess.source.path to {folder}/{outer}, or "
            f"preprocess.source.class_folder: inner; {_CURE}"
        )


def _validate_splits(
    folder: object, tree: Mapping[str, set[str]], splits: Mapping[str, str]
) -> None:
    if others := sorted(set(tree) - set(splits)):
        raise DataError(
            f"{folder}: has folders of splits ({_names(splits)}) beside {_names(others)}; move "
            f"those away, {_CURE}"
        )
    if flat := [name for name in splits if tree[name] == {""}]:
        raise DataError(
            f"{folder}/{flat[0]}: has no class folders, as a folder of a split has; put its "
            f"images into one folder per class, {_CURE}"
        )


def _validate_only_folder(folder: object, only: tuple[str, set[str]]) -> None:
    outer, inner = only
    if len(inner - {""}) > 1:
        raise DataError(
            f"{folder}: the only folder in it is {outer}, which has the folders "
            f"{_names(inner - {''})}; set preprocess.source.path to "
            f"{folder}/{outer}"
        )


def _tree(listing: Listing) -> dict[str, set[str]]:
    """The inner folders of each folder that holds files, by its name.

    The inner folder "" stands for files that lie directly in it.
    """
    tree: dict[str, set[str]] = {}
    for file in listing.files:
        outer, separator, rest = file.key.partition("/")
        if separator:
            tree.setdefault(outer, set()).add(rest.partition("/")[0] if "/" in rest else "")
    return tree


def _names(names: object) -> str:
    """The first five names, and the number of the others."""
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")
