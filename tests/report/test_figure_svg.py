import json
import re

import pytest

from loopscope.report import figure_svg
from loopscope.report.figure_svg import UnknownDrawingError, page_drawing

SVG = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 10 10">{}</svg>'


def walk(node):
    yield node
    for child in node[2]:
        yield from walk(child)


def drawn(inner):
    return page_drawing(SVG.format(inner).encode(), "f")


@pytest.mark.parametrize(
    "inner",
    [
        "<script>alert(1)</script>",
        '<path d="M 0 0" onclick="alert(1)"/>',
        '<use xlink:href="https://example.org/x.svg#a"/>',
        '<image xlink:href="https://example.org/x.png"/>',
        '<image xlink:href="data:image/svg+xml;base64,AAAA"/>',
        '<path d="M 0 0" style="fill: url(https://example.org/)"/>',
        '<path d="M 0 0" clip-path="url(https://example.org/#a)"/>',
        '<path d="M 0 0" style="background: red"/>',
        "<foreignObject/>",
        '<a xlink:href="javascript:alert(1)"><path d="M 0 0"/></a>',
    ],
)
def test_only_shapes_pass(inner):
    with pytest.raises(UnknownDrawingError):
        drawn(inner)


def test_black_white_and_greys_follow_the_page_and_so_do_outcomes():
    shades = [node[1].get("fill") for node in walk(drawn(
        "".join(f'<path d="M 0 0" style="fill: {colour}"/>' for colour in ("#000000", "#ffffff", "#808080", "#0072b2"))
    ))]  # fmt: skip
    assert shades == [
        "var(--ink)",
        "var(--ink)",
        "var(--surface)",
        "color-mix(in srgb, var(--ink) 50%, var(--surface))",
        "var(--directional)",
    ]


def test_names_of_two_figures_do_not_meet():
    inner = '<defs><path id="m" d="M 0 0"/></defs><g><use xlink:href="#m" x="1" y="2"/></g>'
    for prefix in ("one", "two"):
        text = json.dumps(page_drawing(SVG.format(inner).encode(), prefix))
        assert f'"id": "{prefix}-0"' in text
        assert f'"href": "#{prefix}-0"' in text


def test_matplotlib_figures_pass(monkeypatch):
    """Lines, bars, dots, dashes, text with mathematics: every shape that the studies draw, and no dot is lost."""
    figures = pytest.importorskip("matplotlib.figure")
    import matplotlib

    from loopscope.studies.figures.style import FigureResult, drawing

    with matplotlib.rc_context(drawing().settings()):
        figure = figures.Figure(figsize=(3, 2))
        axes = figure.subplots()
        axes.plot([0, 1], [1, 2], "--")
        axes.bar([0, 1], [1, 2], color="#d55e00", hatch=None)
        axes.scatter(range(900), range(900), s=4, c="#0072b2", alpha=0.4, linewidths=0)
        axes.set_xlabel(r"$\Delta U$")
    svg = FigureResult("x", "t", "c", figure, {"a": 1}, []).drawn("svg", 100)
    drawing = page_drawing(svg, "f")
    dots = [node for node in walk(drawing) if node[1].get("d", "").count("h0")]
    assert sum(node[1]["d"].count("h0") for node in dots) == 900
    assert {node[1]["stroke"] for node in dots} == {"var(--directional)"}
    assert not re.search(r"style|https?:|script", json.dumps(drawing))
    monkeypatch.setattr(figure_svg, "MOST_NODES", 10)
    with pytest.raises(UnknownDrawingError, match="more than 10 shapes"):
        page_drawing(svg, "f")
