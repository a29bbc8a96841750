"""Parser for XML from outside. It refuses everything that an annotation does not need."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import NoReturn

from beam_jobs.stages.stage import Reject


def parse_xml(content: bytes, root_tag: str) -> ElementTree.Element:
    """The root element, which must have this tag.

    Raises Reject: malformed. It is not well-formed, declares a document type, or has another root.
    """
    try:
        parser = ElementTree.XMLParser(target=_DoctypeRejectingBuilder())  # noqa: S314 (entities need a document type)
        root: ElementTree.Element = ElementTree.fromstring(content, parser)  # noqa: S314
    # ValueError, LookupError: an encoding that does not exist
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise Reject("malformed", f"not well-formed XML: {error}") from None
    if root.tag != root_tag:
        raise Reject("malformed", f"the XML is a <{root.tag}> and not an <{root_tag}>")
    return root


class _DoctypeRejectingBuilder(ElementTree.TreeBuilder):
    """Refuses a document type in any encoding: it may declare entities, which are not needed."""

    def doctype(self, name: str, public: str | None, system: str | None) -> NoReturn:
        raise Reject("malformed", "declares a document type, which no annotation needs")
