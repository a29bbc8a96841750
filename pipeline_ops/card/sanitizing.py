"""Takes out of an SVG all but shapes, texts, gradients and their style.

The rest of the defence is that a page shows the result as a picture, in which a browser runs no
script and loads nothing, below a policy that forbids both (`pages/page_head.html`).
"""

from __future__ import annotations

import re
from collections import Counter
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

_SVG, _XLINK, _XML = (
    "http://www.w3.org/2000/svg",
    "http://www.w3.org/1999/xlink",
    "http://www.w3.org/XML/1998/namespace",
)
_PREFIXES = {"": "", _SVG: "", _XLINK: "xlink:", _XML: "xml:"}
_ELEMENT_NAMES = """
svg g defs symbol use title desc style path rect circle ellipse line polyline polygon text tspan
image clipPath mask pattern marker linearGradient radialGradient stop
"""
_ATTRIBUTE_NAMES = """
id class style type transform viewBox preserveAspectRatio version width height x y x1 x2 y1 y2
cx cy r rx ry fx fy dx dy d points pathLength offset rotate textLength lengthAdjust xml:space
clip-path clip-rule clipPathUnits mask maskUnits maskContentUnits patternUnits
patternContentUnits patternTransform gradientUnits gradientTransform spreadMethod marker-start
marker-mid marker-end markerWidth markerHeight markerUnits refX refY orient color fill
fill-opacity fill-rule stroke stroke-width stroke-opacity stroke-dasharray stroke-dashoffset
stroke-linecap stroke-linejoin stroke-miterlimit stop-color stop-opacity opacity display
visibility overflow font font-family font-size font-style font-weight font-variant font-stretch
text-anchor text-decoration dominant-baseline alignment-baseline baseline-shift letter-spacing
word-spacing writing-mode direction vector-effect shape-rendering text-rendering image-rendering
paint-order
"""
_ELEMENTS, _ATTRIBUTES = frozenset(_ELEMENT_NAMES.split()), frozenset(_ATTRIBUTE_NAMES.split())
_QUIET = frozenset({"metadata"})
"""What is taken out and was never visible."""
_OWN_PLACE = re.compile(r"#[\w.:-]+|data:image/png;base64,[\w+/=\s]*")
_OTHER_CSS = re.compile(r"@|\\|url\(\s*(?!['\"]?#)|image-set|expression|javascript:|<", re.I)
_MAX_DEPTH, _MAX_NAMED = 100, 20


def sanitize_svg(drawing: str) -> tuple[str, list[str]]:
    """Returns the allowed part of an SVG, and what was taken out: `script`, `onload (2 times)`.

    Raises ValueError if it is not XML with `svg` at its root, or declares entities.
    """
    sanitizer = _Sanitizer()
    parser = expat.ParserCreate("utf-8", namespace_separator=" ")
    parser.StartElementHandler = sanitizer.start
    parser.EndElementHandler = sanitizer.end
    parser.CharacterDataHandler = sanitizer.write_text
    parser.EntityDeclHandler = sanitizer.refuse_entity
    parser.SkippedEntityHandler = sanitizer.refuse_entity
    parser.buffer_text = True
    try:
        parser.Parse(drawing.encode(), True)
    except expat.ExpatError as error:
        raise ValueError(f"is not SVG: {error}") from None
    except UnicodeEncodeError:
        raise ValueError("is not SVG: it has half of a character") from None
    names = sorted(sanitizer.removed.items())[:_MAX_NAMED]
    return "".join(sanitizer.parts), [f"{n} ({c} times)" if c > 1 else n for n, c in names]


class _Sanitizer:
    """Writes the elements that it is told, but for those that are not allowed."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.removed: Counter[str] = Counter()
        self._open: list[str] = []
        self._skipped = 0
        """The number of open elements that are left out."""
        self._style = ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        namespace, _, local = name.rpartition(" ")
        is_ours = namespace in ("", _SVG) and local in _ELEMENTS
        if not self._open and not self._skipped and (not is_ours or local != "svg"):
            raise ValueError(f"is not SVG: its root is {local[:40]}")
        if self._skipped or not is_ours:
            if not self._skipped and local not in _QUIET:
                self.removed[local[:80]] += 1
            self._skipped += 1
            return
        self._open.append(local)
        if len(self._open) > _MAX_DEPTH:
            raise ValueError(f"has more than {_MAX_DEPTH} elements in each other")
        kept = "".join(
            f" {each}={quoteattr(value)}"
            for each, value in map(_shorten_name, attributes.items())
            if self._may_keep(each, value)
        )
        spaces = f' xmlns="{_SVG}" xmlns:xlink="{_XLINK}"' if len(self._open) == 1 else ""
        self.parts.append(f"<{local}{spaces}{kept}>")

    def _may_keep(self, name: str, value: str) -> bool:
        if name in ("href", "xlink:href"):
            is_harmless = bool(_OWN_PLACE.fullmatch(value.strip()))
        else:
            is_harmless = name in _ATTRIBUTES and not _OTHER_CSS.search(value)
        if not is_harmless and "://" not in name:  # of other namespaces, none was visible
            self.removed[name[:80]] += 1
        return is_harmless

    def end(self, name: str) -> None:
        if self._skipped:
            self._skipped -= 1
            return
        local = self._open.pop()
        if local == "style":
            if _OTHER_CSS.search(self._style):
                self.removed["content of style"] += 1
            else:
                self.parts.append(escape(self._style))
            self._style = ""
        self.parts.append(f"</{local}>")

    def write_text(self, content: str) -> None:
        if self._skipped:
            return
        if self._open[-1:] == ["style"]:
            self._style += content
        else:
            self.parts.append(escape(content))

    def refuse_entity(self, name: str, *_: object) -> None:
        raise ValueError(f"declares or names the entity {name[:40]}. Write its text instead")


def _shorten_name(attribute: tuple[str, str]) -> tuple[str, str]:
    """Maps a name with a namespace to one with the usual prefix, or to an unknown one."""
    name, value = attribute
    namespace, _, local = name.rpartition(" ")
    return _PREFIXES.get(namespace, f"{namespace}:") + local, value
