"""One folder of images per class, and maybe one folder per split around those, as for Keras.

A folder without files is no class, because it is not part of a data set's fingerprint.
"""

from __future__ import annotations

import dataclasses
import itertools
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import itemgetter

from beam_jobs.sources.folder_view import FolderView, Question, SourceMatch
from beam_jobs.sources.parsing import find_split, find_split_names, get_other_words, is_image_name
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.wording import count, join_names, say_splits
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import ImageFolderSource
from pipeline_ops.errors import DataError
from pipeline_ops.raw_data.listing import Listing
from pipeline_ops.raw_data.raw_file import RawFile

_Folders = tuple[str, ...]
REMEDY = (
    "or set preprocess.source.class_folder: outer, if the folders directly below path are the "
    "classes."
)


@dataclasses.dataclass(frozen=True)
class FolderLayout:
    """The folders of splits, all at one depth: our splits by their names, none if there are none.

    `stems` has the folders that are no class, each with the class folders around it and its split.
    """

    splits: Mapping[str, str]
    depth: int
    stems: Mapping[_Folders, tuple[_Folders, str | None]]
    is_inside_classes: bool
    """As in cat/train."""

    def find_classes(self, folders: _Folders) -> tuple[_Folders, str | None]:
        """The folders without those that are no class, and the split."""
        for end in range(len(folders) if self.stems else 0, 0, -1):
            if found := self.stems.get(folders[:end]):
                return found[0] + folders[end:], found[1]
        return folders, None


def read_entries(files: SourceFiles, source: ImageFolderSource) -> Iterator[SourceEntry]:
    layout = find_layout(source, files.listing)
    for key in itertools.chain(files.by_key, files.unreadable):
        with files.entry(key, key) as entry:
            classes, split = layout.find_classes(get_folders(key))
            if not classes:
                raise Reject("no_label", "lies in no class folder")
            label = classes[-1 if source.class_folder == "inner" else 0]
            entry.labels = [label]
            if file := files.get(key):
                yield SourceEntry(file, label, split=split)


def find_layout(source: ImageFolderSource, listing: Listing) -> FolderLayout:
    """Finds the folders of splits at the first depth that has them in all folders of images."""
    images = {get_folders(file.key) for file in listing.files if is_image_name(file.key)}
    folders = (images or {get_folders(file.key) for file in listing.files}) - {()}
    depth, splits = _find_splits(folders) if source.class_folder != "outer" else (0, {})
    around = {each[:depth] for each in folders}
    is_inside = len(around) > 1
    stems: dict[_Folders, tuple[_Folders, str | None]] = {}
    if splits and not is_inside:
        stems |= {each[:end]: ((), None) for each in around for end in range(1, depth + 1)}
    for stem, group in itertools.groupby(sorted(folders), itemgetter(slice(depth + 1))):
        if (split := splits.get(stem[depth])) is None:
            continue
        classes = stem[:depth] if is_inside else ()
        stems[stem] = classes, split
        below = {each[depth + 1 :] for each in group}
        # An only folder is no class if it is around others, or is named as the split.
        while len(first := {each[:1] for each in below}) == 1 and first != {()}:
            [(name,)] = first
            if (name,) in below and find_split(name) != split:
                break
            stem, below = (*stem, name), {each[1:] for each in below}
            stems[stem] = classes, split
    return FolderLayout(splits, depth, stems, is_inside)


def check_layout(source: ImageFolderSource, listing: Listing, has_groups: bool = False) -> None:
    """Checks that folders have one meaning. With groups, the inner ones may have another."""
    folder, layout = listing.folder, find_layout(source, listing)
    folders = {get_folders(file.key) for file in listing.files} - {()}
    if not folders:
        raise DataError(
            f"{folder}: its {len(listing.files)} files lie in no folder. Put the images of each "
            "class into a folder with the name of the class, or name the classes in a CSV file "
            "(preprocess.source.type: csv)."
        )
    if source.class_folder == "outer":
        return
    if layout.splits:
        _check_split_folders(layout, folders, listing)
        if not layout.is_inside_classes:
            return
    tree = defaultdict[str, set[str]](set)  # the inner folders, "" for files directly in the outer
    for outer, *inner in sorted(filter(None, (layout.find_classes(each)[0] for each in folders))):
        tree[outer].add(inner[0] if inner else "")
    if len(tree) == 1:
        [(first, below)] = tree.items()
        if len(below := below - {""}) > 1:
            fault = f"the only folder in it is {first}, which has the folders"
            cure = f"Set preprocess.source.path to {folder}/{first}."
            raise DataError(f"{folder}: {fault} {join_names(sorted(below))}. {cure}")
    elif (
        source.class_folder is None
        and not has_groups
        and all("" not in below and len(below) > 1 for below in tree.values())
    ):
        first, below = next(iter(tree.items()))
        raise DataError(
            f"{folder}: no image lies directly in one of its folders {join_names(sorted(tree))}. "
            f"{first} has the folders {join_names(sorted(below))}. "
            f"If those are the classes, set preprocess.source.path to {folder}/{first}, or "
            f"preprocess.source.class_folder: inner, {REMEDY}"
        )


def _check_split_folders(
    layout: FolderLayout, folders: Iterable[_Folders], listing: Listing
) -> None:
    splits = sorted(layout.splits)
    others = {each[0] for each in folders}.difference(splits) if not layout.depth else ()
    if others:
        fault = f"has folders of splits ({join_names(splits)}) and other folders"
        fault = f"{fault} ({join_names(sorted(others))})"
        raise DataError(f"{listing.folder}: {fault}. Move the other folders away, {REMEDY}")
    for split in set(layout.splits.values()):
        names = [name for name in splits if layout.splits[name] == split]
        if len({bool(get_other_words(name)) for name in names}) > 1:
            fault = f"{join_names(names)} may all be the split {split}, or parts or copies of it"
            raise DataError(f"{listing.folder}: {fault}. Keep one of them, {REMEDY}")
    stems = {each[: layout.depth + 1] for each in layout.stems if len(each) > layout.depth}
    with_classes = {each[: layout.depth + 1] for each in folders if layout.find_classes(each)[0]}
    if flat := sorted(stems - with_classes):
        fault = "a folder of a split needs class folders. Put its images into one folder per class"
        cure = f"move the folder away if they have no labels, {REMEDY}"
        raise DataError(f"{listing.folder}/{'/'.join(flat[0])}: {fault}, {cure}")


def _find_splits(folders: Collection[_Folders]) -> tuple[int, dict[str, str]]:
    """Returns the depth of the folders of splits, and our splits by their names."""
    for depth in range(min(map(len, folders), default=0)):
        names = {each[depth] for each in folders}
        splits = find_split_names(names)
        if splits and (splits.keys() == names or depth == 0):  # others beside them are refused
            return depth, splits
    return 0, {}


def get_folders(key: str) -> _Folders:
    """The names of the folders around a file, the outermost first."""
    return tuple(key.split("/")[:-1])


_MASK = re.compile(r"(.+?)[ _-](masks?|seg|segmentation|gt|label|annotation)([ _-]?\d+)?", re.I)
_PARTS = frozenset(
    ("images", "imgs", "img", "photos", "pictures", "jpegimages", "masks", "mask", "trimaps")
    + ("annotations", "labels", "segmentations", "segmentation", "ground_truth", "gt", "depth")
)
_COPIES = 0.8
"""Share of the images in several folders whose names are in all of them."""
_ANNOTATIONS = (".csv", ".json", ".jsonl", ".ndjson", ".tsv", ".txt", ".xml", ".yaml", ".yml")


def recognise(view: FolderView) -> Iterator[SourceMatch | Question | str]:
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
    if given := view.chosen.get("class_folder"):
        keys, remark = {"class_folder": given}, ""
    source = source.model_copy(update=keys)
    names = [file.key.lower() for file in listing.files]
    is_annotated = any(name.endswith(".xml" if "/" in name else _ANNOTATIONS) for name in names)
    try:
        check_layout(source, listing)
    except DataError as error:
        problem = str(error).partition(f", {REMEDY}")[0].removesuffix(".")
        if "preprocess.source.class_folder: inner" in problem and not is_annotated:
            choices = [{"class_folder": "inner"}, {"class_folder": "outer"}]
            yield Question(problem.partition(". If those")[0], choices, "image_folder")
        else:
            yield problem
        return
    if not given and (doubt := _find_doubt(layout, keys, listing.files)):
        choices = [{"class_folder": keys.get("class_folder", "outer")}]
        yield doubt if is_annotated else Question(doubt, choices, "image_folder")
        return
    if masks := _find_masks(listing.files):
        yield f"{count(len(masks), 'image')} such as {masks[0]} are masks of others. Move them away"
        return
    files = SourceFiles(listing, source.type)
    found = files.collect(read_entries(files, source))
    images = Counter(record.label for record in found.records if is_image_name(record.key))
    others = sorted({record.label for record in found.records} - images.keys())
    if not images:
        yield f"{count(len(view.images), 'image')} in no class folder"
    elif len(images) == 1:
        fault = f"only one folder has images ({min(images)}), and a classifier needs two classes"
        yield f"{fault}. Put the images of each class into a folder of its own"
    elif others:
        have = "has" if len(others) == 1 else "have"
        fault = f"{len(images)} folders have images, and {join_names(others)} {have} none"
        yield f"{fault}. Move what is no class away"
    else:
        *first, last = [f"{number:,}" for _, number in sorted(images.items())]
        numbers = f"{', '.join(first)} and {last}"
        if len(images) > 5:
            numbers = f"{min(images.values()):,} to {max(images.values()):,}"
        reason = f"{len(images):,} class folders with {numbers} images"
        reason += say_splits(layout.splits) + remark
        others = [file.key for file in view.files if not is_image_name(file.key)]
        note = f"{count(len(others), 'file')} not used: {join_names(others, 3)}"
        is_certain = not is_annotated and (bool(given) or "outer" not in keys.values())
        yield SourceMatch("image_folder", reason, keys, below, is_certain, [note] if others else ())


def _find_doubt(layout: FolderLayout, keys: Mapping[str, str], files: Iterable[RawFile]) -> str:
    """Says why the outer folders may be something else than they seem, "" if there is no doubt."""
    paths = defaultdict[str, set[str]](set)
    for file in filter(lambda file: is_image_name(file.key), files):
        outer, _, rest = file.key.partition("/")
        paths[outer].add(rest)
    names = join_names(sorted(paths))
    if len(paths) > 1 and all(name.lower() in _PARTS for name in paths):
        return (
            f"the folders {names} are named as parts of a data set and not as classes. Name the "
            "classes in a CSV file (docs/data-sources.md), or say that these are classes"
        )
    if layout.splits or keys.get("class_folder") != "inner":
        return ""
    if splits := [name for name in sorted(paths) if find_split(name)]:
        return (
            f"of the folders {names} around the classes, {join_names(splits)} is named as a split, "
            "and the others are not. Rename them to train, val and test, or say that none is one"
        )
    shared, every = set.intersection(*paths.values()), set.union(*paths.values())
    if len(shared) > _COPIES * len(every):
        return (
            f"the folders {names} hold images of the same names, as copies of the same pictures "
            f"do. Name one of them, such as {min(paths)}, instead of this folder, or say that all "
            "are to be used"
        )
    return ""


def _find_masks(files: Iterable[RawFile]) -> list[str]:
    """The images whose names are those of others with `_mask`, for example."""
    stems = {posixpath.splitext(file.key)[0]: file.key for file in files}
    return [
        key for stem, key in stems.items() if (found := _MASK.fullmatch(stem)) and found[1] in stems
    ]


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
        return {"class_folder": "inner"}, f", merged from the folders {join_names(outer)}"
    is_part = max(inner.values()) == 1 and min(map(len, pairs)) > 1
    keys = {"class_folder": "outer"} if is_part and not layout.splits else {}
    return keys, f"; the folders in them are no classes ({join_names(sorted(inner))})"
