"""The collector of a card's items, which holds them while the code of a job runs.

The content of these processes counts: the main process of a preprocess job while it reads its
source, and the chief of a training. In all others, such as those that run stages, a call has no
effect, so that the page does not depend on the number of processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pipeline_ops.card.items import CardContent, CardItem, CardText


class CardCollection:
    """The items so far, in the order in which their titles came first."""

    def __init__(self) -> None:
        self.content = CardContent()

    def put(self, item: CardItem) -> None:
        """Adds an item, or replaces that of the same kind and title.

        Raises ValueError for more than a job may show.
        """
        items = {_identify(each): each for each in self.content.items}
        self.content = CardContent(items=[*(items | {_identify(item): item}).values()])


def _identify(item: CardItem) -> tuple[str, str]:
    return item.kind, item.text if isinstance(item, CardText) else item.title


_open: CardCollection | None = None


@contextlib.contextmanager
def collect_card() -> Iterator[CardCollection]:
    """Collects what is shown while the block runs in this process."""
    global _open
    before, _open = _open, CardCollection()
    try:
        yield _open
    finally:
        _open = before


def add(item: CardItem) -> None:
    """Adds an item to the open collection, or checks it if there is none."""
    (_open or CardCollection()).put(item)
