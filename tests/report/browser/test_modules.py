"""The bundle against the browser's own module loader: the same sources, the same page."""

import re
from importlib.resources import files

import pytest

ORIGIN = "http://page.example"


@pytest.mark.slow
def test_the_bundle_shows_what_the_modules_show(visit, chromium, report):
    html = report.read_text(encoding="utf-8")
    html = re.sub(r"<meta http-equiv[^>]*>", "", html)
    html = re.sub(r"<script>.*?</script>", '<script type="module" src="/main.js"></script>', html, flags=re.DOTALL)
    sources = files("loopscope.report").joinpath("page")

    def serve(route):
        name = route.request.url.removeprefix(f"{ORIGIN}/")
        if name.endswith(".js"):
            route.fulfill(body=sources.joinpath(name).read_text(encoding="utf-8"), content_type="text/javascript")
        else:
            route.fulfill(body=html, content_type="text/html")

    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    modules = context.new_page()
    modules.route(f"{ORIGIN}/**", serve)
    for view in (
        "#/overview",
        "#/questions",
        "#/question?run=first&task=riddles/test&id=riddles-4&t=4",
        "#/studies?study=table-mechanism",
    ):
        modules.goto("about:blank")
        modules.goto(f"{ORIGIN}/{view}")
        modules.wait_for_selector("html[data-ready]")
        assert modules.locator("main").inner_text() == visit(report, view).locator("main").inner_text()
    context.close()
