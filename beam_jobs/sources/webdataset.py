"""Tar shards of WebDataset: a sample is the members with one name up to its first dot.

The driver reads headers, annotations and the bytes of images, and keeps the place of each image.
The key of an image is its name in the archive. Rejected samples are named `<file>#<sample>`.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import posixpath
import re
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from beam_jobs.io.raw import PackedImage, open_raw, translate_read_errors
from beam_jobs.sources.columns import Columns, Meaning, list_names
from beam_jobs.sources.folder_view import FolderView, Question, SourceMatch, read_size
from beam_jobs.sources.packed import find_containers, list_parts, make_entry, make_keys
from beam_jobs.sources.parsing import check_size, is_image_name, parse_json_object, parse_utf8
from beam_jobs.sources.source import SourceEntry, SourceFiles
from beam_jobs.sources.wording import count, join_names
from beam_jobs.stages.stage import Reject
from pipeline_ops.config.sources import WebdatasetSource
from pipeline_ops.raw_data.limits import (
    MAX_IMAGE_BYTES,
    MAX_SAMPLE_ANNOTATION_BYTES,
    MAX_SAMPLE_MEMBERS,
    MAX_TAR_GLOBAL_FIELDS,
    MAX_TAR_HEADER_BYTES,
    MAX_TAR_HEADER_DIGITS,
)
from pipeline_ops.raw_data.raw_file import RawFile, compute_digest, to_raw_key

_NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
"""The name of a sample, and the rest: `a/7` and `seg.png` for `a/7.seg.png`."""
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_MAX_MEMBERS, _MAX_MEMBER_BYTES = 60, 1 << 20
"""What is looked at to recognise a tar file."""
_TAR_ERRORS = (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError)
_ADJACENT = "The members of a sample must follow one another"
_MAX_PADDING_BYTES = 1 << 20
_PAX_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_HEADER_TYPES = (*_PAX_TYPES, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % MAX_TAR_HEADER_DIGITS)


def read_entries(files: SourceFiles, source: WebdatasetSource) -> Iterator[SourceEntry]:
    folder = files.listing.folder
    for container, split in find_containers(source, files.listing):
        with translate_read_errors(container.key), open_raw(container, folder) as file:
            members = _scan(file, container.num_bytes)
            samples = itertools.groupby(members, lambda member: getattr(member, "sample", ""))
            for name, found in samples:
                key = to_raw_key(os.fsencode(name))
                where = f"{container.key}#{key}" if name else container.key  # damage has no name
                with files.entry(where, key=where, scope=container.key):
                    first = list(itertools.islice(found, MAX_SAMPLE_MEMBERS + 1))
                    yield _Sample(file, container, first).make_entry(source, split)


class _TarInfo(tarfile.TarInfo):
    """A member whose extended header is checked before `tarfile` reads it.

    Its size and the numbers in it decide how much memory and time `tarfile` takes. It is processed
    by `_proc_member`, which the source of `tarfile` names as the method to override.
    """

    def _proc_member(self, tar: Any) -> tarfile.TarInfo:
        if self.type in _HEADER_TYPES:
            self._check_header(tar)
        if self.type == tarfile.GNUTYPE_SPARSE and self._sparse_structs[1]:  # type: ignore[attr-defined]
            raise tarfile.ReadError("a sparse file of many parts. Pack it without --sparse")
        return super()._proc_member(tar)  # type: ignore[misc]

    def _check_header(self, tar: Any) -> None:
        if not 0 <= self.size <= MAX_TAR_HEADER_BYTES:
            limit = f"allowed are {MAX_TAR_HEADER_BYTES}"
            raise tarfile.ReadError(f"an extended header of {self.size} bytes, {limit}")
        if len(tar.pax_headers) > MAX_TAR_GLOBAL_FIELDS:
            limit = f"allowed are {MAX_TAR_GLOBAL_FIELDS}"
            raise tarfile.ReadError(f"{len(tar.pax_headers)} fields of global headers, {limit}")
        start = tar.fileobj.tell()
        if self.type in _PAX_TYPES and _LONG_NUMBER.search(tar.fileobj.read(self.size)):
            limit = f"allowed are {MAX_TAR_HEADER_DIGITS}"
            raise tarfile.ReadError(f"more digits than a number in an extended header has, {limit}")
        tar.fileobj.seek(start)

    def _proc_gnusparse_10(self, next: Any, pax_headers: Any, tar: Any) -> None:
        next.sparse = []  # The map is not read, because the member is refused. It may be long.


class _Member(NamedTuple):
    sample: str
    suffix: str
    info: tarfile.TarInfo


def _scan(file: BinaryIO, num_bytes: int) -> Iterator[_Member | Reject]:
    """Yields the members that belong to samples, in order, and then the damage if there is any."""
    if file.read(8).startswith(_COMPRESSED):
        detail = "a compressed archive, in which no image can be found by its place"
        cure = "Unpack it with gunzip, bunzip2, unxz or unzstd to a .tar file"
        yield Reject("compressed", f"{detail}. {cure}. Images get no smaller by compression")
        return
    file.seek(0)
    end = 0
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=_TarInfo) as tar:
            while member := tar.next():
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep all of them
                end = tar.offset
                if member.size < 0:
                    raise tarfile.ReadError(f"{member.name} has {member.size} bytes")
                if not member.offset < end <= num_bytes:
                    yield Reject("truncated", f"the file ends inside of {member.name}. Copy again")
                    return
                member.name = member.name.removeprefix("./")
                parts = _NAME.fullmatch(member.name)
                if parts and not member.isdir():
                    yield _Member(parts[1], parts[2].lower(), member)
            end = tar.offset
    except _TAR_ERRORS as error:
        fault = "too many headers before a member" if isinstance(error, RecursionError) else error
        yield Reject("corrupt", f"no tar file, or damaged after byte {end}: {fault}. Write again")
        return
    file.seek(end)
    rest = file.read(_MAX_PADDING_BYTES)
    if not rest:
        yield Reject("truncated", f"the end of the archive is missing at byte {end}. Copy it again")
    elif rest.strip(b"\0"):
        detail = f"no member begins at byte {end}, and the file goes on"
        cure = "It is damaged, or several archives were joined. Write one archive"
        yield Reject("corrupt", f"{detail}. {cure}")


class _Sample:
    def __init__(self, file: BinaryIO, container: RawFile, members: list[_Member | Reject]):
        self._file, self._container = file, container
        self._members: dict[str, tarfile.TarInfo] = {}
        if len(members) > MAX_SAMPLE_MEMBERS:
            detail = f"the sample has more than {MAX_SAMPLE_MEMBERS} members"
            raise Reject("too_large", f"{detail}, or a large part of the archive has one name")
        for member in members:
            if isinstance(member, Reject):
                raise member
            name = member.info.name
            if name.startswith("/") or ".." in name.split("/"):
                raise Reject("malformed", f"the name {name} leads out of the archive")
            if not member.info.isreg() or member.info.issparse():
                cure = "Pack the file itself (tar --hard-dereference --dereference)"
                raise Reject("not_regular", f"{name} is a link, a device or a sparse file. {cure}")
            if member.suffix in self._members:
                raise Reject("duplicate", f"{name} is there twice")
            self._members[member.suffix] = member.info

    def make_entry(self, source: WebdatasetSource, split: str | None) -> SourceEntry:
        member = self._find_image(source.image)
        annotation = self._members.get(source.annotation_suffix)
        if annotation is None:
            reason = "no_annotation" if source.task == "detection" else "no_label"
            there = ", ".join(self._members)
            detail = f"has no .{source.annotation_suffix} next to it, but {there}. {_ADJACENT}"
            raise Reject(reason, detail)
        fields = self._read_fields(annotation, source)
        content = self._read(member, MAX_IMAGE_BYTES)
        key, digest = to_raw_key(os.fsencode(member.name)), compute_digest(content)
        image = PackedImage(key, len(content), digest, self._container, member.offset_data)
        return make_entry(image, fields, source, split, source.class_names)

    def _find_image(self, suffix: str | None) -> tarfile.TarInfo:
        images = [
            member
            for name, member in self._members.items()
            if (is_image_name(member.name) if suffix is None else name == suffix.lower())
        ]
        if not images:
            detail = f"no image among the members {', '.join(self._members)}. {_ADJACENT}"
            raise Reject("no_image", detail)
        if len(images) > 1:
            names = " and ".join(image.name for image in images)
            cure = "Name the suffix of one in preprocess.source.image"
            raise Reject("ambiguous_image", f"the images {names}. {cure}")
        return images[0]

    def _read_fields(self, member: tarfile.TarInfo, source: WebdatasetSource) -> dict[str, object]:
        content = self._read(member, MAX_SAMPLE_ANNOTATION_BYTES)
        if source.annotation_suffix == "json":
            return parse_json_object(content)
        label = parse_utf8(content, member.name).strip()
        is_number = source.annotation_suffix == "cls" and re.fullmatch("-?[0-9]{1,18}", label)
        return {source.label: int(label) if is_number else label}

    def _read(self, member: tarfile.TarInfo, max_bytes: int) -> bytes:
        check_size(member.size, max_bytes, member.name)
        self._file.seek(member.offset_data)
        return self._file.read(member.size)


def recognise(view: FolderView) -> Iterator[SourceMatch | Question | str]:
    """Finds tar files whose first members are images and annotations of the same names."""
    files = view.list_candidates(".tar")
    members = _list_members(view, files[0]) if files else []
    suffixes = {name.partition(".")[2].lower() for name, _ in members}
    images = {n.partition(".")[0]: content for n, content in members if is_image_name(n)}
    objects, sizes = [], []
    for name, content in members:
        if name.lower().endswith(".json"):
            with contextlib.suppress(Reject):
                objects.append(parse_json_object(content))
                sizes.append(read_size(io.BytesIO(images.get(name.partition(".")[0], b""))))
    found = Columns(objects, list_names(objects), sizes, view.chosen, "label").find_meaning()
    if isinstance(found, Question):
        yield found._replace(type="webdataset", reason=f"{files[0].key}: {found.reason}")
    elif found or suffixes & {"cls", "txt"}:
        keys: dict[str, Any] = {"task": "classification", "annotation": "txt"}
        if isinstance(found, Meaning) and found.task == "detection":
            keys = make_keys(found)
        elif "cls" in suffixes:
            keys = {"task": "classification"}
        elif isinstance(found, Meaning):
            keys = {**make_keys(found), "annotation": "json"}
        keys |= list_parts(files)
        names = join_names(sorted(suffixes))
        reason = f"{count(len(files), 'tar file')} of samples with the members {names}"
        notes = found.notes if isinstance(found, Meaning) else ()
        yield SourceMatch("webdataset", reason, keys, notes=notes)
    elif members:
        names = join_names([name for name, _ in members])
        need = "each image has a member of the same name with its class or its boxes"
        need = f"In a shard of WebDataset, {need}, .cls, .json or .txt"
        yield f"{files[0].key} begins with {names}. {need}. Unpack an archive of a folder"
    elif files:
        yield f"{files[0].key} is no tar file, or is damaged. Write it again"
    elif packed := view.list_candidates(".tar.gz", ".tgz"):
        yield f"{packed[0].key} is compressed. Use gunzip first"


def _list_members(view: FolderView, file: RawFile) -> list[tuple[str, bytes]]:
    """The base names of the first files in a tar file, each with the start of its content."""
    found = []
    with (
        view.open(file) as opened,
        contextlib.suppress(*_TAR_ERRORS),  # damaged from there on
        tarfile.open(fileobj=opened, mode="r:", tarinfo=_TarInfo) as tar,
    ):
        for member in itertools.islice(tar, _MAX_MEMBERS):
            is_file = member.isfile() and not member.issparse()
            if content := tar.extractfile(member) if is_file else None:
                start = content.read(_MAX_MEMBER_BYTES)
                found.append((posixpath.basename(member.name), start))
    return found
