"""Recognises the exports of labelling tools: Label Studio's JSON and CVAT's XML."""

from __future__ import annotations

from collections.abc import Iterator

from beam_jobs.recognition.folder_view import MAX_CANDIDATES, FolderView
from beam_jobs.recognition.source_match import Certainty, SourceMatch

_LABEL_STUDIO = ((b'"annotations"', b'"data"'), (b'"annotator"', b'"annotation_id"'))
"""Keys of an export: of the full JSON, and of JSON-MIN."""


def recognise_label_studio(view: FolderView) -> Iterator[SourceMatch]:
    """Finds JSON files that are a list of tasks."""
    for file in view.list_candidates(".json")[:MAX_CANDIDATES]:
        start = view.read_start(file)
        if start.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"[") and any(
            all(key in start for key in keys) for keys in _LABEL_STUDIO
        ):
            reason = f"{file.key} is a list of tasks as Label Studio exports them"
            yield SourceMatch("label_studio", Certainty.CERTAIN, reason, {"export": file.key})


def recognise_cvat(view: FolderView) -> Iterator[SourceMatch]:
    """Finds XML files of the format "CVAT for images"."""
    for file in view.list_candidates(".xml")[:MAX_CANDIDATES]:
        start = view.read_start(file)
        if b"<annotations>" in start and (b"<image " in start or b"<meta>" in start):
            reason = f"{file.key} is an export of CVAT"
            yield SourceMatch("cvat", Certainty.CERTAIN, reason, {"annotations": file.key})
