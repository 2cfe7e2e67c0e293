import re
import shutil
import subprocess
from importlib.resources import files

import pytest

from loopscope.report import assemble

SOURCES = {
    entry.name.removesuffix(".js"): entry.read_text(encoding="utf-8")
    for entry in files("loopscope.report").joinpath("page").iterdir()
    if entry.name.endswith(".js")
}
BROWSER = """Array Blob Boolean CSS DataView DecompressionStream Float32Array Float64Array Infinity Int32Array
    Int8Array JSON Map Math NaN Node Number Object OffscreenCanvas Promise ResizeObserver Response Set String
    Symbol TextDecoder URLSearchParams Uint16Array Uint32Array Uint8Array addEventListener atob clearTimeout
    devicePixelRatio document getComputedStyle getSelection history localStorage location matchMedia navigator
    parseFloat performance requestAnimationFrame scrollTo scrollY setTimeout undefined"""
"""What the page may use of the browser; a new name here is a decision."""


def imports(source):
    found = re.findall(r'^import \{ (.+) \} from "\./(\w+)\.js";$', source, re.MULTILINE)
    return {(module, name) for names, module in found for name in names.split(", ")}


def exports(source):
    return set(re.findall(r"^export (?:const|class|(?:async )?function) (\w+)", source, re.MULTILINE))


@pytest.mark.parametrize("name", SOURCES)
def test_every_name_of_a_module_is_defined_imported_or_the_browsers(name, javascript):
    assert javascript.names(SOURCES[name]).missing <= set(BROWSER.split())


@pytest.mark.parametrize("name", SOURCES)
def test_nothing_is_defined_or_imported_in_vain(name, javascript):
    assert javascript.names(SOURCES[name]).idle <= exports(SOURCES[name])


def test_every_export_is_imported_and_every_import_exported():
    wanted = set().union(*map(imports, SOURCES.values()))
    assert wanted == {(module, name) for module, source in SOURCES.items() for name in exports(source)}


def test_every_source_of_the_page_is_used():
    bundled = set(re.findall(r"^const \$(\w+) = ", assemble.script(), re.MULTILINE))
    assert bundled == set(SOURCES)
    names = {entry.name for entry in files("loopscope.report").joinpath("page").iterdir()}
    assert names == {*assemble.STYLES, *(f"{name}.js" for name in SOURCES), "page.html"}


@pytest.mark.parametrize("name", [*SOURCES, "the bundle"])
def test_node_can_parse(name, tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("parsing the scripts needs Node: apt-get install nodejs")
    file = tmp_path / ("bundle.cjs" if name == "the bundle" else "module.mjs")
    file.write_text(SOURCES.get(name) or assemble.script(), encoding="utf-8")
    done = subprocess.run([node, "--check", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


BASE = 'export const one = 1;\nconst hidden = "base";\nexport function twice(x) {\n  return 2 * x;\n}\n'


def bundle(**modules):
    return assemble.bundle("main", modules.__getitem__)


def test_a_module_runs_after_what_it_imports_and_once():
    text = bundle(
        main='import { a } from "./left.js";\nimport { b } from "./right.js";\na(b);\n',
        left='import { one } from "./base.js";\nexport const a = one;\n',
        right='import { one, twice } from "./base.js";\nexport const b = twice(one);\n',
        base=BASE,
    )
    assert re.findall(r"^const \$(\w+)", text, re.MULTILINE) == ["base", "left", "right", "main"]


@pytest.mark.parametrize(
    ("main", "said"),
    [
        ('import { hidden } from "./base.js";\n', "main.js imports hidden, which base.js does not export"),
        ('import { b } from "./knot.js";\nexport const a = b;\n', "modules import each other: main → knot → main"),
        ('import * as base from "./base.js";\n', "does not know 'import \\* as base"),
        ('import base from "./base.js";\n', "does not know"),
        ('import "./base.js";\n', "does not know"),
        ('import { one as two } from "./base.js";\n', "imports one as two"),
        ('const base = await import("./base.js");\n', "does not know"),
        ("export let moving = 1;\n", "does not know 'export let moving"),
        ("export default 1;\n", "does not know"),
        ("const x = 1;\nexport { x };\n", "does not know"),
    ],
)
def test_what_the_bundle_cannot_keep_true_is_refused(main, said):
    knot = 'import { a } from "./main.js";\nexport const b = a;\n'
    with pytest.raises(ValueError, match=said):
        bundle(main=main, base=BASE, knot=knot)


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("const a = 1;\nb(a);", {"b"}),
        ("function f(x, { y: z = w, ...rest }) { return x + z + rest + y; }", {"w", "y"}),
        ("const f = (x) => x + y, g = x;", {"x", "y"}),
        ("for (const [k, v] of all) k(v);", {"all"}),
        ("if (a) { const inner = 1; }\ninner;", {"a", "inner"}),
        (
            "const o = { key: value, short, [computed]: 1, method(p) { return p.key + q; } };",
            {"value", "short", "computed", "q"},
        ),
        ("const t = `a ${b + `${c}`} { d }`;", {"b", "c"}),
        ("const r = text.replace(/[/`]e'(f)/g, (found) => found);", {"text"}),
        ("try { a(); } catch (error) { b(error); }\nerror;", {"a", "b", "error"}),
        ("class A extends B { m(x) { return this.x ?? x?.y; } }\nnew A();", {"B"}),
        ("const x = a ? b : c; // d\n/* e */", {"a", "b", "c"}),
    ],
)
def test_names_are_found_by_scope(source, missing, javascript):
    assert javascript.names(source).missing == missing


def test_a_forgotten_import_and_an_idle_one_are_found(javascript):
    source = SOURCES["overview"]
    first = re.search(r"^import \{ (\w+), ", source, re.MULTILINE)[1]
    assert javascript.names(source.replace(f"import {{ {first}, ", "import { ", 1)).missing - set(BROWSER.split()) == {
        first
    }
    assert javascript.names(source.replace("import { ", "import { idleName, ", 1)).idle - exports(source) == {
        "idleName"
    }
