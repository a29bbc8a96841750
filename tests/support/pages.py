"""Pages as tags and text, and hostile names that look like programs."""

from __future__ import annotations

import html.parser

SCRIPT = "<script>alert(1)</script>"
BREAKOUT = "\"'><img src=x onerror=alert(1)>"
TEMPLATE = "{{ 7 * 7 }}{% raw %}"


class Page(html.parser.HTMLParser):
    """Every start tag of a page with its attributes, and the text."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data
