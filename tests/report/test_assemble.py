"""The page's sources: every module is parsed, used, and imports what another exports."""

import re
import shutil
import subprocess
from importlib.resources import files

import pytest

from loopscope.report import write as assemble

FOLDER = files("loopscope.report").joinpath("page")
SOURCES = {
    entry.name.removesuffix(".js"): entry.read_text(encoding="utf-8")
    for entry in FOLDER.iterdir()
    if entry.name.endswith(".js")
}


def imports(source):
    found = re.findall(r'^import \{ (.+) \} from "\./(\w+)\.js";$', source, re.MULTILINE)
    return {(module, name) for names, module in found for name in names.split(", ")}


def exports(source):
    return set(re.findall(r"^export (?:const|class|(?:async )?function) (\w+)", source, re.MULTILINE))


def test_every_export_is_imported_and_every_import_exported_and_used():
    wanted = set().union(*map(imports, SOURCES.values()))
    assert wanted == {(module, name) for module, source in SOURCES.items() for name in exports(source)}
    for source in SOURCES.values():
        body = re.sub(r"^import .*\n", "", source, flags=re.MULTILINE)
        assert [name for _, name in imports(source) if not re.search(rf"\b{name}\b", body)] == []


def test_every_source_of_the_page_is_used_after_what_it_imports():
    bundled = re.findall(r"^const \$(\w+) = ", assemble.script(), re.MULTILINE)
    assert sorted(bundled) == sorted(SOURCES)
    for at, name in enumerate(bundled):
        assert {module for module, _ in imports(SOURCES[name])} <= set(bundled[:at])
    names = {entry.name for entry in FOLDER.iterdir()}
    assert names == {*(f"{name}.css" for name in assemble.STYLES), *(f"{name}.js" for name in SOURCES), "page.html"}


def test_node_can_parse_the_bundle(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("parsing the scripts needs Node: apt-get install nodejs")
    file = tmp_path / "bundle.cjs"
    file.write_text(assemble.script(), encoding="utf-8")
    done = subprocess.run([node, "--check", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "main",
    [
        'import * as base from "./base.js";\n',
        'import "./base.js";\n',
        'const base = await import("./base.js");\n',
        "export let moving = 1;\n",
        "const x = 1;\nexport { x };\n",
    ],
)
def test_module_syntax_that_the_bundle_does_not_know_is_refused(main, monkeypatch):
    monkeypatch.setattr(assemble, "part", {"main.js": main, "base.js": "export const one = 1;\n"}.__getitem__)
    with pytest.raises(ValueError, match="does not know"):
        assemble.script()
