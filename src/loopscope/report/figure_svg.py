"""Figures as drawings in the page's colours: what matplotlib draws as SVG, reduced to shapes with plain attributes.

The page's policy forbids styles on elements and its scripts make every element themselves, so a drawing is handed to
the page as nested lists `[tag, attributes, children]`. Only the elements and attributes named here pass; anything else
is refused, and the caller draws pixels instead. Black, white and greys become shades between the page's ink and its
surface, so that a figure is legible on a dark page too.
"""

import re
from typing import Any
from xml.etree import ElementTree

from loopscope.path import Outcome

Node = list[Any]
"""`[tag, attributes, children]`."""

ELEMENTS = frozenset({"svg", "g", "path", "use", "defs", "clipPath", "rect", "image"})
SKIPPED = frozenset({"metadata", "style", "title", "desc"})
"""Elements that draw nothing; matplotlib's one style sheet says what `DEFAULTS` say."""
DEFAULTS = {"stroke-linejoin": "round", "stroke-linecap": "butt", "fill": "var(--ink)"}
"""Of a whole drawing; what has no colour of its own is black in SVG."""
NUMBERS = frozenset({"x", "y", "width", "height", "opacity", "fill-opacity", "stroke-opacity", "stroke-width"}) | {
    "stroke-dashoffset",
    "stroke-miterlimit",
}
WORDS = frozenset({"stroke-linejoin", "stroke-linecap", "fill-rule", "image-rendering", "shape-rendering"})
LISTS = frozenset({"d", "transform", "viewBox", "stroke-dasharray"})
COLOURS = frozenset({"fill", "stroke"})
IGNORED = frozenset({"version", "font", "text-anchor", "mix-blend-mode"})
GREY = 12
"""Largest difference between the channels of a colour that counts as grey."""
MOST_NODES = 12_000
"""A drawing of more shapes is slower than a picture of it."""
MERGED = 400
"""From this many dots of one colour on, a scatter plot is drawn as one line of round ends for every `PER_LINE` dots."""
PER_LINE = 50

_NUMBER = re.compile(r"-?\d*\.?\d+(?:[eE][-+]?\d+)?")
_LIST = re.compile(r"[-+.,\s\dA-Za-z()]*")
_LOCAL = re.compile(r"#([\w.:-]+)")
_CLIP = re.compile(r"url\(#([\w.:-]+)\)")
_HEX = re.compile(r"#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})")
_ROUND = re.compile(r"M 0 (\d+\.?\d*) C")
_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=\s]+")


class UnknownDrawingError(ValueError):
    """A drawing that holds something the page does not draw."""


def page_drawing(svg: bytes, prefix: str) -> Node:
    """A figure's SVG as nested lists in the page's colours.

    Args:
        svg: what matplotlib wrote.
        prefix: begins the names that shapes of this drawing refer to each other by; one for each figure of a page.

    Raises:
        UnknownDrawingError: for elements, attributes or references that do not pass, and for too many shapes.
    """
    names: dict[str, str] = {}
    drawing = _node(ElementTree.fromstring(svg), prefix, names)
    assert drawing is not None
    _merge_dots(drawing)
    if _count(drawing) > MOST_NODES:
        raise UnknownDrawingError(f"more than {MOST_NODES} shapes")
    drawing[1] |= DEFAULTS
    return drawing


def page_colour(colour: str) -> str:
    """The page's shade for a colour of a figure.

    >>> page_colour("#000000"), page_colour("#ffffff"), page_colour("#d55e00")
    ('var(--ink)', 'var(--surface)', 'var(--finite)')
    >>> page_colour("#808080")
    'color-mix(in srgb, var(--ink) 50%, var(--surface))'
    """
    if colour == "none":
        return colour
    channels = _HEX.fullmatch(colour.lower())
    if channels is None:
        raise UnknownDrawingError(f"the colour {colour!r}")
    values = [int(channel, 16) for channel in channels.groups()]
    if max(values) - min(values) <= GREY:
        weight = round(100 - sum(values) / 7.65)
        ends = {100: "var(--ink)", 0: "var(--surface)"}
        return ends.get(weight, f"color-mix(in srgb, var(--ink) {weight}%, var(--surface))")
    token = _outcome_tokens().get(colour.lower())
    return f"var(--{token})" if token else f"color-mix(in oklab, {colour.lower()} var(--figure-tone), white)"


def _outcome_tokens() -> dict[str, str]:
    from loopscope.studies.figures.style import OUTCOME_COLOURS

    tokens = {Outcome.DIRECTIONAL_FAILURE: "directional", Outcome.FINITE_STEP_FAILURE: "finite"}
    return {OUTCOME_COLOURS[outcome].lower(): token for outcome, token in tokens.items()}


def _node(element: ElementTree.Element, prefix: str, names: dict[str, str]) -> Node | None:
    tag = _local(element.tag)
    if tag in SKIPPED:
        return None
    if tag not in ELEMENTS:
        raise UnknownDrawingError(f"the element {tag!r}")
    attributes: dict[str, str] = {}
    for name, value in element.attrib.items():
        for each, text in _declarations(value) if name == "style" else ((_local(name), value),):
            # A drawing is as wide as the page lets it be.
            if each in IGNORED or (tag == "svg" and each in ("width", "height")):
                continue
            attributes[each] = _value(tag, each, text, prefix, names)
    children = [child for child in (_node(each, prefix, names) for each in element) if child is not None]
    if not children and tag in ("g", "defs"):
        return None
    return [tag, attributes, children]


def _value(tag: str, name: str, text: str, prefix: str, names: dict[str, str]) -> str:
    """An attribute's value, checked; numbers with as many digits as a screen shows."""
    if name in COLOURS:
        return page_colour(text)
    if name in NUMBERS and _NUMBER.fullmatch(text):
        return _rounded(text)
    if name in LISTS and _LIST.fullmatch(text):
        return " ".join(_NUMBER.sub(lambda found: _rounded(found[0], 4 if name == "transform" else 2), text).split())
    if name in WORDS and text.replace("-", "").isalpha():
        return text
    if name == "id" and _LOCAL.fullmatch(f"#{text}"):
        return _name(text, prefix, names)
    if name == "href" and tag == "use" and (target := _LOCAL.fullmatch(text)):
        return f"#{_name(target[1], prefix, names)}"
    if name == "href" and tag == "image" and _PICTURE.fullmatch(text):
        return "".join(text.split())
    if name == "clip-path" and (target := _CLIP.fullmatch(text)):
        return f"url(#{_name(target[1], prefix, names)})"
    raise UnknownDrawingError(f"{name}={text[:40]!r} of {tag}")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _declarations(style: str) -> list[tuple[str, str]]:
    pairs = (part.partition(":") for part in style.split(";") if part.strip())
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _name(own: str, prefix: str, names: dict[str, str]) -> str:
    return names.setdefault(own, f"{prefix}-{len(names)}")


def _rounded(text: str, digits: int = 2) -> str:
    return f"{float(text):.{digits}f}".rstrip("0").rstrip(".") if "." in text or "e" in text.lower() else text


def _count(node: Node) -> int:
    return 1 + sum(map(_count, node[2]))


def _merge_dots(drawing: Node) -> None:
    """Thousands of round dots of one colour as few lines with round ends and no length."""
    shapes = {node[1]["id"]: node[1] for node in _walk(drawing) if node[0] == "path" and "id" in node[1]}
    total = sum(1 for node in _walk(drawing) if node[0] == "use" and "x" in node[1])
    if total < MERGED:
        return
    for parent in list(_walk(drawing)):
        merged: list[Node] = []
        open_line: Node | None = None
        for child in parent[2]:
            line = _dot(child, shapes)
            if line is None:
                merged.append(child)
                open_line = None
            elif open_line is not None and open_line[1] | {"d": ""} == line[1] | {"d": ""}:
                open_line[1]["d"] += line[1]["d"]
                if open_line[1]["d"].count("M") >= PER_LINE:
                    open_line = None
            else:
                merged.append(line)
                open_line = line
        parent[2] = merged


def _dot(node: Node, shapes: dict[str, dict[str, str]]) -> Node | None:
    tag, attributes, _ = node
    fill, stroke = attributes.get("fill", "none"), attributes.get("stroke", "none")
    marker = shapes.get(attributes.get("href", "#")[1:])
    if tag != "use" or marker is None or fill == "none" or stroke not in ("none", fill):
        return None
    radius = _ROUND.match(marker.get("d", ""))
    if radius is None or not attributes.keys() <= {"href", "x", "y", "fill", "fill-opacity", "stroke"}:
        return None
    line = {
        "d": f"M{float(attributes['x']):.1f} {float(attributes['y']):.1f}h0",
        "fill": "none",
        "stroke": fill,
        "stroke-width": _rounded(f"{2 * float(radius[1]):.3f}"),
        "stroke-linecap": "round",
    }
    if "fill-opacity" in attributes:
        line["stroke-opacity"] = attributes["fill-opacity"]
    return ["path", line, []]


def _walk(node: Node) -> list[Node]:
    found = [node]
    for child in node[2]:
        found += _walk(child)
    return found
