"""The page of a job's own content, `card.html` in its artifact.

The tab of a run joins the pages of its jobs, by the mark around the content of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline_ops.card.items import CardContent
from pipeline_ops.errors import DataError
from pipeline_ops.pages.page import render_page
from pipeline_ops.storage.local_files import write_atomically

CARD_PAGE = "card.html"
MAX_CARD_PAGE_BYTES = 8 << 20
_MARK = "<!-- own content -->"
"""No text of the page can look like it, because all text is escaped."""


def write_card_page(folder: Path, job: str, content: CardContent) -> None:
    """Writes the page into the folder of an artifact, if there is any content."""
    if content.items:
        write_atomically(folder / CARD_PAGE, render_card_page(job, content).encode())


def render_card_page(job: str, content: CardContent) -> str:
    here = Path(__file__).parent
    template, styles = here / CARD_PAGE, [here / "card.css"]
    return render_page(template, styles, title=f"Own content: {job}", job=job, items=content.items)


def join_card_pages(pages: Sequence[bytes]) -> bytes:
    """Joins the contents of one or more pages in one. Raises DataError for one without marks."""
    parts = [page.split(_MARK.encode()) for page in pages]
    if any(len(each) != 3 for each in parts):
        raise DataError(
            f"a {CARD_PAGE} of this run was not written by this version of Trainyard. Run the task "
            "that makes it again."
        )
    head, _, end = parts[0]
    return head + b"".join(content for _, content, _ in parts) + end
