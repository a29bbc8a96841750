"""Parser for XML from outside. It refuses everything that an annotation does not need."""

from __future__ import annotations

import contextlib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import NoReturn

from beam_jobs.stages.stage import Reject

_BLOCK_BYTES = 1 << 18
_MAX_CHILD_BYTES = 32 << 20
"""The limit of one element below the root. In memory, elements take up to 30 times their text."""


def parse_xml(content: bytes, root_tag: str) -> ElementTree.Element:
    """The root element, which must have this tag.

    Raises Reject: malformed. It is not well-formed, declares a document type, or has another root.
    """
    parser = ElementTree.XMLParser(target=_DoctypeRejectingBuilder())  # noqa: S314 (entities need a document type)
    with _translate_errors():
        root: ElementTree.Element = ElementTree.fromstring(content, parser)  # noqa: S314
    _check_root(root.tag, root_tag)
    return root


def iterate_children(content: bytes, root_tag: str) -> Iterator[ElementTree.Element]:
    """Yields the elements directly below the root. Only a few of them are in memory at a time.

    Raises Reject as `parse_xml` does, or because one of the elements is too large.
    """
    builder = _ChildBuilder(root_tag)
    parser = ElementTree.XMLParser(target=builder)  # noqa: S314 (entities need a document type)
    last = 0
    for start in range(0, len(content), _BLOCK_BYTES):
        with _translate_errors():
            parser.feed(content[start : start + _BLOCK_BYTES])
        if builder.children:
            last = start
        elif start - last > _MAX_CHILD_BYTES:
            raise Reject("malformed", f"an element has more than {_MAX_CHILD_BYTES} bytes")
        yield from builder.take_children()
    with _translate_errors():
        parser.close()
    yield from builder.take_children()


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    # ValueError, LookupError: an encoding that does not exist
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise Reject("malformed", f"not well-formed XML: {error}") from None


def _check_root(tag: str, root_tag: str) -> None:
    if tag != root_tag:
        raise Reject("malformed", f"the XML is a <{tag}> and not an <{root_tag}>")


class _DoctypeRejectingBuilder(ElementTree.TreeBuilder):
    """Refuses a document type in any encoding: it may declare entities, which are not needed."""

    def doctype(self, name: str, public: str | None, system: str | None) -> NoReturn:
        raise Reject("malformed", "declares a document type, which no annotation needs")


class _ChildBuilder(_DoctypeRejectingBuilder):
    """Takes the elements directly below the root out of it as soon as they are whole."""

    def __init__(self, root_tag: str):
        super().__init__()
        self.children: list[ElementTree.Element] = []
        self._root_tag, self._open = root_tag, list[ElementTree.Element]()

    def start(self, tag: str, attributes: dict[str, str]) -> ElementTree.Element:
        if not self._open:
            _check_root(tag, self._root_tag)
        self._open.append(super().start(tag, attributes))
        return self._open[-1]

    def end(self, tag: str) -> ElementTree.Element:
        element = self._open.pop()
        if len(self._open) == 1:
            self.children.append(element)
            self._open[0].clear()
        return super().end(tag)

    def take_children(self) -> list[ElementTree.Element]:
        taken, self.children = self.children, []
        return taken
