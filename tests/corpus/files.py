"""Files: every slot where a user names one, filled with what is no such file; then rows, templates, checkpoints."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import (
    EITHER,
    GOOD,
    OPTIONS,
    SOLUTIONS,
    Case,
    Outcome,
    Place,
    call,
    case,
    command,
    measuring,
    model_of,
    run_call,
    run_command,
    shown,
)

DEEP = 100_000
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda b: b"", "NUL bytes": lambda b: bytes(len(b)), "not UTF-8": lambda b: b"\xff\xfe" + b,
    "UTF-16": lambda b: b.decode("latin-1").encode("utf-16"), "cut in half": lambda b: b[: len(b) // 2],
    "cut at the end": lambda b: b[:-3], "deep": lambda b: b'{"a": ' * DEEP + b"[" * DEEP, "a list": lambda b: b"[]",
    "null": lambda b: b"null", "an empty object": lambda b: b"{}", "a pickle": lambda b: b"\x80\x04\x95" + b"x" * 100,
    "a number of 5,000 digits": lambda b: b'{"a": ' + b"1" * 5000 + b"}",
    "a page of errors": lambda b: b"<!DOCTYPE html><html>error</html>\n" * 10,
}  # fmt: skip
PLACES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None, "a folder": Path.mkdir, "a FIFO": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to an endless device": lambda path: path.symlink_to("/dev/zero"),
}  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """A file that loopscope reads: how a sound one is made, and what reads it."""

    name: str
    make: Callable[[Place], Path]
    read: Callable[[Place, Path], Outcome]
    either: tuple[str, ...] = ()
    """What may be there without harm."""


def slots() -> Iterator[Slot]:
    from run_folders import MANIFEST, RECORD, SHARD, read_everything

    import loopscope as ls
    from loopscope.control.heads import load_head
    from loopscope.monitor_log import read_monitor_log

    def of(what: str, file: str) -> Callable[[Place], Path]:
        return lambda place: place.copy(what) / file

    def chat(place: Place) -> Path:
        return with_file(place, "chat_template.jinja", lambda _: b"{{ messages[0].content }}") / "chat_template.jinja"

    def task(place: Place, path: Path) -> Outcome:
        return run_call(lambda: ls.load_task(f"mine={path}"))

    def template(place: Place, path: Path) -> Outcome:
        return run_call(lambda: ls.load_task(f"mine={place.file('my.jsonl', SOLUTIONS)}", template=path))

    def chatting(place: Place, path: Path) -> Outcome:
        return run_command([*measuring(), f"--model={path.parent}", "--apply-chat-template"])

    def flags(place: Place, path: Path) -> Outcome:
        return run_command([*measuring(), model_of(place), f"--config={path}"])

    for file in ("config.json", WEIGHTS):
        yield Slot(file, of("model", file), lambda p, f: run_call(lambda: ls.load_model(f.parent)))
    yield Slot("tokenizer", of("model", "tokenizer.json"), lambda p, f: run_call(lambda: ls.load_tokenizer(f.parent)))
    yield Slot("chat template", chat, chatting)
    # Half of the two lines is one whole line.
    yield Slot("rows", lambda p: p.file("my.jsonl", SOLUTIONS), task, ("cut in half",))
    yield Slot("packed rows", lambda p: p.file("my.jsonl.gz", gzip.compress(SOLUTIONS.encode())), task)
    yield Slot("Parquet rows", parquet, task)
    yield Slot("template", lambda p: p.file("mine.toml", SOLUTION), template)
    yield Slot(
        "--config",
        lambda p: p.file("flags.yaml", "batch_size: 2\n"),
        flags,
        ("empty", "null", "an empty object", "cut at the end"),
    )
    yield Slot("head", a_head, lambda p, f: run_call(lambda: load_head(f)))
    yield Slot("monitor's log, read", a_log, lambda p, f: run_call(lambda: read_monitor_log(f)), ("cut at the end",))
    for file in (MANIFEST, RECORD, SHARD):
        yield Slot(
            f"verify: {file}", of("run", file), lambda p, f: run_command(["verify", str(p.here / "run"), "--no-replay"])
        )
    for file in (MANIFEST, SHARD, "vocabulary.json", "events.jsonl"):
        free = (*CONTENTS, *PLACES) if file == "events.jsonl" else ("missing",) if file == "vocabulary.json" else ()
        yield Slot(
            f"read: {file}", of("run", file), lambda p, f: run_call(lambda: read_everything(p.here / "run")), free
        )


def a_head(place: Place) -> Path:
    from declared import head

    card = {"kind": "exit", "model": "m", "boundary": "b"}
    head(place, json.dumps(card))
    return place.here / "head.safetensors"


def a_log(place: Place, *lines: dict[str, Any]) -> Path:
    header = {"format": "loopscope-monitor", "version": 1, "loopscope": "1", "tasks": ["a"], "model": {"name": "m"}}
    good = {"kind": "depth", "step": 1, "task": "a", "depth": 1, "utility": -1.0, "utility_se": 0.1}
    rows = [header, good, *lines]
    return place.file("monitor.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def parquet(place: Place) -> Path:
    import polars

    polars.DataFrame({"prompt": ["a"], "solution": ["b"]}).write_parquet(place.here / "my.parquet")
    return place.here / "my.parquet"


def cases() -> Iterator[Case]:
    for slot in slots():
        for name in (*CONTENTS, *PLACES):
            wanted = EITHER if name in slot.either else ("line",)
            yield case(f"{slot.name}: {name}", lambda p, s=slot, n=name: spoiled(p, s, n), wanted)
        yield case(slot.name, lambda p, s=slot: s.read(p, s.make(p)), GOOD)
    yield from _rows()
    yield from _templates()
    yield from _weights()
    yield from _tokenizers()
    yield from _logs()


def spoiled(place: Place, slot: Slot, name: str) -> Outcome:
    """What comes of a file that holds something else, or is something else."""
    path = slot.make(place)
    if name in CONTENTS:
        path.write_bytes(CONTENTS[name](path.read_bytes()))
    else:
        path.unlink()
        PLACES[name](path)
    return slot.read(place, path)


def row(**fields: Any) -> str:
    return json.dumps(fields) + "\n"


def option(**changes: Any) -> str:
    fields = {"context": "2 plus 2 is", "options": ["4", "5"], "answer": 0} | changes
    return row(**{key: value for key, value in fields.items() if value is not ...})


def ids(**changes: Any) -> str:
    return row(**{"prompt_ids": [1, 2], "solution_ids": [3]} | changes)


def ask(**changes: Any) -> str:
    return row(**{"prompt": "a", "solution": "b"} | changes)


ROWS: list[str] = [
    "\n\n  \n", "{'prompt': 'a', 'solution': 'b'}\n", ask().strip() * 2 + "\n", '{"prompt": "a",\n"solution": "b"}\n',
    '{"prompt": "a", "solution": NaN}\n', '{"prompt": "a\x01", "solution": "b"}\n',
    '{"prompt": "\\ud800", "solution": "b"}\n', '{"prompt": "a", "solution": "b", "id": "\\udfff"}\n',
    '{"prompt": "a", "solution": "b", "x": ' + '{"y":' * DEEP + "1" + "}" * DEEP + "}\n",
    f'{{"prompt": "a", "solution": "b", "id": {"1" * 5000}}}\n', '{"prompt": "a", "prompt": "c", "solution": "b"}\n',
    row(prompt="a"), row(solution="a"), row(question="a", answer="b"), ask(solution=""), ask(solution="  \n"),
    *(ask(prompt=value) for value in ("", 5, None, ["b"], {"a": 1}, True)),
    *(ask(id=value) for value in ("", [1], 1.5, True, "i" * 300)), ask(id="x") + ask(id="x"), ask(id=1) + ask(id="1"),
    ask() + option(), SOLUTIONS * 200 + row(prompt="a"), option(context=...),
    *(option(options=value) for value in (["4"], [], "45", [4, 5], ["4", ""], ["4", None], {"a": "4"})),
    *(option(answer=value) for value in (..., None, 2, -1, "A", 0.5, True, [0], "1" * 5000)),
    ask(prompt="word " * 20_000), ask(solution="word " * 20_000),
    *(ids(solution_ids=value) for value in
      ([-1], [1024], [2**40], [10**99], [1.0], [True], ["3"], [None], "1 2", [[1]], {"0": 1}, [])),
    row(prompt_ids=[1], options_ids=[[1], [2]]), row(prompt_ids=[1], options_ids=[[3], 4], answer=0),
    ids(prompt_ids=[1] * 3000), ids(prompt_ids=[1] * 1_000_001),
]  # fmt: skip
GOOD_ROWS = [
    SOLUTIONS.replace("\n", "\r\n"), SOLUTIONS.rstrip("\n"), '{"prompt": "a\u2028b", "solution": "c"}\n',
    '{"prompt": "\\ud83d\\ude00", "solution": "c"}\n', ask(id=0) + ask(id="x"), ask(source={"url": [1, 2]}),
    option(answer="1"), option(options=["4", "4"]), ask(prompt="{x} $5$ {{y}}", solution="\\frac{1}{2}"),
    ids(prompt_ids=[0], solution_ids=[1023]),
]  # fmt: skip


def asking(
    name: str, content: str | bytes, *flags: str, file: str = "my.jsonl", wanted: tuple[str, ...] = ("line",)
) -> Case:
    """Measuring a data file."""
    words = measuring(tasks=None, limit=None)
    return command(name, *words, model_of, lambda p: f"--tasks=mine={p.file(file, content)}", *flags, wanted=wanted)


def _rows() -> Iterator[Case]:
    for number, content in enumerate(ROWS):
        yield asking(f"rows {number}: {shown(content)}", content)
    for number, content in enumerate(GOOD_ROWS):
        yield asking(f"rows {number}: {shown(content)}", content, wanted=GOOD)
    packed = gzip.compress(SOLUTIONS.encode())
    damaged = (packed[:-8] + b"\0" * 4 + packed[-4:], packed + b"rubbish")
    for file, data in (*(("my.jsonl.gz", data) for data in damaged), ("my.jsonl", packed), ("my.csv", SOLUTIONS)):
        yield asking(f"rows: {file} of {shown(data)}", data, file=file)
    yield command(
        "rows: gzip with one line of 3 GB", *measuring(tasks=None), model_of, lambda p: f"--tasks=mine={bomb(p)}"
    )
    for long in ("error", "skip", "truncate-left"):
        yield asking(f"rows: a line of 10 MB, --long {long}", ask(prompt="word " * 2_000_000), f"--long={long}")
    yield asking("rows: all too long and skipped", ask(prompt="word " * 5_000), "--long=skip")
    yield asking("rows: a solution too long to cut", ask(solution="word " * 5_000), "--long=truncate-left")
    yield asking("rows: cut", ask(prompt="word " * 20_000), "--long=truncate-left", wanted=GOOD)


def bomb(place: Place) -> Path:
    """Three thousand million bytes without a line end, in three megabytes: one member of a gzip file, repeated."""
    return place.file("my.jsonl.gz", gzip.compress(b"x" * (64 << 20), compresslevel=1) * 48)


SOLUTION = 'kind = "solution"\nprompt = "Q: {prompt}\\n"\nsolution = "{solution}"\n'
CHOICE = 'kind = "options"\ncontext = "{context}"\n'
TEMPLATES = [
    "kind = [1]\n", 'kind = "essay"\n', SOLUTION + 'extra = "x"\n', 'kind = "solution"\nsolution = "{solution}"\n',
    SOLUTION.replace('"Q: {prompt}\\n"', "1"), SOLUTION + 'prompt = "x"\n', SOLUTION.replace("{solution}", ""),
    "a" + ".a" * 5000 + " = 1\n", CHOICE,
    *(SOLUTION.replace("{prompt}", place) for place in
      ("{prompt", "prompt}", "{}", "{0}", "{nothing}", "{prompt.__class__}", "{prompt[0]}", "{prompt:>99999999}",
       "{prompt!z}")),
]  # fmt: skip
OF_OPTIONS = [
    'options = "yes"', "options = [1, 2]", 'options = ["yes", ""]', 'options = ["a", "b", "c"]', "delimiter = 1",
    'option = "{context}"', 'choice = "{answer}"', 'option = ""', 'clean = "trim"', 'clean = ["trim"]',
    "clean = [{ trim = false }]", "clean = [{ upper = true }]", 'clean = [{ replace = "a" }]',
    'clean = [{ replace = "", with = "a" }]', 'clean = [{ replace = 1, with = "a" }]',
    'clean = [{ pattern = "(", with = "" }]', "clean = [{ pattern = 'a', with = '\\9' }]",
    "clean = [{ pattern = 'a', with = '\\g<x>' }]", "clean = [{ pattern = 'a', with = '\\q' }]",
    f"clean = [{{ pattern = '{'(' * 3000}{')' * 3000}', with = '' }}]", "clean = [{ pattern = '(?s).*', with = '' }]",
    "clean = [{ pattern = '(a+)+$', with = '' }]", "clean = [{ pattern = '(a|aa)+$', with = '' }]",
]  # fmt: skip
CHATS = [
    "{% for %}", "{{ raise_exception('no') }}", "hello", "{{ 10 ** (10 ** 8) }}", "{{ 'x' * 10 ** 10 }}",
    "{% for a in range(9999) %}{% for b in range(9999) %}{{ 'x' * 99999 }}{% endfor %}{% endfor %}",
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "{{ messages.__class__.__mro__[1].__subclasses__() }}",
]  # fmt: skip


def _templates() -> Iterator[Case]:
    def asked(name: str, rows: str, template: str, wanted: tuple[str, ...] = ("line",)) -> Case:
        return command(
            name, *measuring(tasks=None), model_of, lambda p: f"--tasks=mine={p.file('my.jsonl', rows)}",
            lambda p: f"--template={p.file('mine.toml', template)}", wanted=wanted,
        )  # fmt: skip

    for number, template in enumerate(TEMPLATES):
        yield asked(f"template {number}", SOLUTIONS, template)
    for line in OF_OPTIONS:
        yield asked(f"template: {line[:60]}", option(context="a" * 60 + "!"), CHOICE + line + "\n")
    yield asked("template: braces", SOLUTIONS, SOLUTION.replace("Q:", "{{Q}}:"), GOOD)
    yield asked("template: letters", OPTIONS, CHOICE + 'option = "{letter}"\nchoice = "{letter}) {option}"\n', GOOD)
    for chat in CHATS:
        model = partial(lambda text, p: f"--model={with_file(p, 'chat_template.jinja', lambda _: text)}", chat.encode())
        yield command(f"chat template {shown(chat)}", *measuring(), model, "--apply-chat-template")


def with_file(place: Place, file: str, change: Callable[[bytes], bytes]) -> Path:
    """A copy of the checkpoint with one file changed or added."""
    path = place.copy("model") / file
    path.write_bytes(change(path.read_bytes() if path.exists() else b""))
    return path.parent


def headed(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """Weights under another header: the bytes that a function makes of it, or the entries that it changed."""

    def apply(data: bytes) -> bytes:
        end = 8 + int.from_bytes(data[:8], "little")
        table = json.loads(data[8:end])
        made = change(table)
        text = made if isinstance(made, bytes) else json.dumps(table).encode()
        return len(text).to_bytes(8, "little") + text + data[end:]

    return apply


def first(table: dict[str, Any]) -> str:
    """The name of the first tensor."""
    return next(name for name in table if name != "__metadata__")


def described(**fields: Any) -> Callable[[bytes], bytes]:
    """The first tensor described in another way."""
    return headed(lambda table: table[first(table)].update(fields))


def twice(last: bool = False, **changes: Any) -> Callable[[bytes], bytes]:
    """The first tensor described once more, with changes: before the true description, or after it."""

    def change(table: dict[str, Any]) -> bytes:
        name = first(table)
        pair = json.dumps({name: table[name] | changes})[1:-1], json.dumps(table)[1:-1]
        return f"{{{', '.join(pair[::-1] if last else pair)}}}".encode()

    return headed(change)


def _weights() -> Iterator[Case]:
    import loopscope as ls

    def as_text(table: dict[str, Any]) -> str:
        return json.dumps(table)

    extra = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    edits: dict[str, Callable[[bytes], bytes]] = {
        "a byte too many": lambda b: b + b"\0",
        "a header without end": lambda b: b"\xff" * 8 + b[8:],
        "a header of length 0": lambda b: bytes(8) + b[8:],
        "a deep header": headed(lambda table: b'{"a": ' + b"[" * DEEP + b"]" * DEEP + b"}"),
        "a byte-order mark": headed(lambda table: b"\xef\xbb\xbf" + as_text(table).encode()),
        "a header in UTF-16": headed(lambda table: as_text(table).encode("utf-16")),
        "a name of a million characters": headed(lambda table: json.dumps({"x" * 10**6: table}).encode()),
        "no tensors": headed(dict.clear),
        "a name for two places": twice(last=True, data_offsets=[4, 8]),
        "a tensor removed": headed(lambda table: table.pop(list(table)[-1])),
        "a tensor too many": headed(lambda table: table.update({"x" * 5000: extra})),
        "a tensor transposed": headed(lambda table: table["lm_head.weight"]["shape"].reverse()),
        **{f"dtype {dtype!r}": described(dtype=dtype) for dtype in ("F12", 5, "I32", "F8_E4M3")},
        **{f"shape {shape!r}": described(shape=shape) for shape in ("16", [1.5], [-1, 16], [2**40, 2**40], None)},
        **{f"offsets {at!r}": described(data_offsets=at) for at in ("0-16", [64, 0], [-64, 0], [10**12, 10**12 + 64])},
    }
    good = {
        "no metadata": headed(lambda table: table.pop("__metadata__")),
        "a name twice": twice(),
        "a name twice, the last counts": twice(shape=[7]),
    }
    for several, wanted in ((edits, ("line",)), (good, GOOD)):
        for name, change in several.items():
            yield call(f"weights: {name}", lambda p, c=change: ls.load_model(with_file(p, WEIGHTS, c)), wanted)

    def linked(place: Place) -> Any:
        """As the hub's cache lays a checkpoint out."""
        folder, blob = place.copy("model"), place.here / "blob"
        (folder / WEIGHTS).rename(blob)
        (folder / WEIGHTS).symlink_to(blob)
        return ls.load_model(folder)

    yield call("weights: a link to another folder", linked, GOOD)

    def renamed(place: Place, to: str, index: Any) -> Any:
        folder = place.copy("model")
        (folder / WEIGHTS).rename(folder / to)
        (folder / INDEX).write_text(json.dumps(index))
        return ls.load_model(folder)

    names = ["b.safetensors", "../model/a.safetensors", "/etc/passwd", "a.bin", 5, None, "a\0.safetensors", "a" * 5000]
    maps = [*({"weight_map": {"x": name}} for name in names), [1], {}, {"weight_map": {}}, {"weight_map": [1]}]
    for index in maps:
        yield call(f"index: {shown(index)}", lambda p, i=index: renamed(p, "a.safetensors", i))
    yield call("checkpoint: pickled weights", lambda p: renamed(p, "pytorch_model.bin", {}))
    yield call("checkpoint: an empty folder", lambda p: ls.load_model(p.here))


def _tokenizers() -> Iterator[Case]:
    """Fields of tokenizer.json that a stranger chose: an answer in time, right or one line."""
    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    after = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "?", "type_id": 0}}], "pair": []}
    plain = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder")) | {"added_tokens": []}
    for name, fields, wanted in (
        ("an unknown model", {"model": {"type": "Nothing"}}, ("line",)),
        ("a token id beyond 32 bits", {**plain, "model": {**words, "vocab": {"?": 99999999999}}}, ("line",)),
        ("a token id beyond the vocabulary", {**plain, "model": {**words, "vocab": {"?": 2**32 - 1}}}, ("line",)),
        (
            "merges of unknown tokens",
            {**plain, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["b c"]}},
            ("line",),
        ),
        ("no words", {**plain, "model": {**words, "vocab": {}}}, ("line",)),
        ("no unknown word", {**plain, "model": words}, ("line",)),
        ("a pattern of repeats", {"pre_tokenizer": {**split, "pattern": {"Regex": "(a+)+$|(\\w+)*!"}}}, EITHER),
        ("a pattern that is none", {"pre_tokenizer": {**split, "pattern": {"Regex": "("}}}, ("line",)),
        ("an unknown token at the end", {"post_processor": {**after, "special_tokens": {}}}, ("line",)),
        ("a normalizer of nothing", {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, ("line",)),
        ("dropout", {"dropout": 0.5}, ("line",)),
    ):

        def model(place: Place, fields: dict[str, Any] = fields) -> str:
            return f"--model={with_file(place, 'tokenizer.json', partial(with_fields, fields))}"

        yield command(f"tokenizer: {name}", *measuring(), model, wanted=wanted)


def with_fields(fields: dict[str, Any], data: bytes) -> bytes:
    content = json.loads(data)
    (content["model"] if "dropout" in fields else content).update(fields)
    return json.dumps(content).encode()


def _logs() -> Iterator[Case]:
    """Lines of a monitor's log."""
    good = {"kind": "depth", "step": 2, "task": "a", "depth": 1, "utility": -1.0}
    for name, value in (
        ("kind", None), ("kind", "x"), ("step", "x"), ("task", None), ("depth", -1),
        *(("utility", value) for value in (float("nan"), 10**400, "x", {"a": 1}, [1.0, [2.0]])),
    ):  # fmt: skip
        for words in ("tables", "report --output=r.html"):
            first, *more = words.split()
            log = partial(lambda name, value, p: a_log(p, good | {name: value}), name, value)
            yield command(f"{first} of a log: {name} {shown(value)}", first, log, *more, wanted=EITHER)
