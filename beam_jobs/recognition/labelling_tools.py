"""Recognises the exports of labelling tools: Label Studio's JSON and CVAT's XML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from beam_jobs.recognition.folder_view import MAX_CANDIDATES, FolderView
from beam_jobs.recognition.source_match import Certainty, SourceMatch

_LABEL_STUDIO = ((b'"annotations"', b'"data"'), (b'"annotator"', b'"annotation_id"'))
"""Keys of an export: of the full JSON, and of JSON-MIN."""
_SHAPES = (b"rectanglelabels", b"polygonlabels")
_CVAT_IMAGE = re.compile(rb"""<image\s[^>]{0,500}?name=["']([^"'<>]{1,500})["']""")
_CVAT_SHAPES = (b"<box", b"<polygon", b"<mask")


def recognise_label_studio(view: FolderView) -> Iterator[SourceMatch]:
    """Finds JSON files that are a list of tasks."""
    for file in view.list_candidates(".json")[:MAX_CANDIDATES]:
        start = view.read_start(file)
        if start.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"[") and any(
            all(key in start for key in keys) for keys in _LABEL_STUDIO
        ):
            has_shapes = any(shape in start for shape in _SHAPES)
            reason = f"{file.key} is a list of tasks as Label Studio exports them"
            keys = {
                "export": file.key,
                "task": "detection" if has_shapes else "classification",
            }
            yield SourceMatch("label_studio", Certainty.CERTAIN, reason, keys)


def recognise_cvat(view: FolderView) -> Iterator[SourceMatch]:
    """Finds XML files of the format "CVAT for images"."""
    for file in view.list_candidates(".xml")[:MAX_CANDIDATES]:
        start = view.read_start(file)
        if b"<annotations>" not in start or not (names := _CVAT_IMAGE.findall(start)):
            continue
        folder, found = view.find_images_folder(
            [html.unescape(name.decode("utf-8", "replace")) for name in names], file.key
        )
        if not found:
            reason = f"{file.key} is an export of CVAT without its images. Export it with images"
            yield SourceMatch("cvat", Certainty.UNUSABLE, reason)
            continue
        has_shapes = any(shape in start for shape in _CVAT_SHAPES)
        keys = {
            "annotations": file.key,
            "images": folder,
            "task": "detection" if has_shapes else "classification",
        }
        reason = f"{file.key} is an export of CVAT with images in {folder}"
        yield SourceMatch("cvat", Certainty.CERTAIN, reason, keys)
