"""Data files of one's own: their bytes, their rows, their kinds, and what is no file at all."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from case import Case, call, command
from flags import LONG_NAME, circle, fifo, link, measure, model_of
from place import OPTIONS, SOLUTIONS, Place

GOOD = '{"prompt": "a", "solution": "b"}'
DEEP = 100_000


def row(**fields: Any) -> str:
    return json.dumps(fields) + "\n"


def option_row(**changes: Any) -> str:
    fields = {"context": "2 plus 2 is", "options": ["4", "5"], "answer": 0} | changes
    return row(**{key: value for key, value in fields.items() if value is not ...})


BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "no rows"),
    "blank lines": ("\n\n  \n", "no rows"),
    "an array": ("[1, 2]\n", "no object"),
    "a number": ("5\n", "no object"),
    "null": ("null\n", "no object"),
    "a text": ('"a"\n', "no object"),
    "not JSON": ("prompt: a\n", "no JSON"),
    "single quotes": ("{'prompt': 'a', 'solution': 'b'}\n", "no JSON"),
    "a trailing comma": ('{"prompt": "a", "solution": "b",}\n', "no JSON"),
    "two objects on a line": (f"{GOOD}{GOOD}\n", "one to a line"),
    "one object on two lines": ('{"prompt": "a",\n"solution": "b"}\n', "one to a line"),
    "a comment": (f"# mine\n{GOOD}\n", "no JSON"),
    "NaN": ('{"prompt": "a", "solution": NaN}\n', "no text"),
    "not UTF-8": (b'{"prompt": "a\xff", "solution": "b"}\n', "no text"),
    "UTF-16": (GOOD.encode("utf-16"), "no UTF-8"),
    "NUL bytes": (b"\x00" * 100, "no JSON"),
    "a raw control character": (b'{"prompt": "a\x01", "solution": "b"}\n', "no JSON"),
    "half a surrogate pair": ('{"prompt": "\\ud800", "solution": "b"}\n', "no character"),
    "half a surrogate pair in an id": ('{"prompt": "a", "solution": "b", "id": "\\udfff"}\n', "no character"),
    "half a surrogate pair in an option": (option_row(options=["\ud800", "b"]), "no character"),
    "deep JSON": ('{"prompt": ' + "[" * DEEP + "]" * DEEP + "}\n", "deeper than any row"),
    "deep JSON in another field": (
        '{"prompt": "a", "solution": "b", "x": ' + '{"y":' * DEEP + "1" + "}" * DEEP + "}\n",
        "deeper than any row",
    ),
    "a number of 5,000 digits": (f'{{"prompt": "a", "solution": "b", "id": {"1" * 5000}}}\n', "no number"),
    "an answer of 5,000 digits": (option_row(answer="1" * 5000), "no number"),
    "a key twice": ('{"prompt": "a", "prompt": "c", "solution": "b"}\n', "which one counts?"),
    "an answer twice": ('{"context": "a", "options": ["b", "c"], "answer": 0, "answer": 1}\n', "which one counts?"),
    "no solution": (row(prompt="a"), "the answer is missing"),
    "no prompt": (row(solution="a"), "the question is missing"),
    "no fields": ("{}\n", "nothing"),
    "other fields": (row(question="a", answer="b"), "a benchmark's fields"),
    "an empty solution": (row(prompt="a", solution=""), "nothing to score"),
    "a blank solution": (row(prompt="a", solution="  \n"), "nothing to score"),
    "an empty prompt": (row(prompt="", solution="b"), "nothing to ask"),
    "a number as prompt": (row(prompt=5, solution="b"), "no text"),
    "a list as solution": (row(prompt="a", solution=["b"]), "no text"),
    "null as solution": (row(prompt="a", solution=None), "no text"),
    "an object as prompt": (row(prompt={"a": 1}, solution="b"), "no text"),
    "true as solution": (row(prompt="a", solution=True), "no text"),
    "an id twice": (
        row(prompt="a", solution="b", id="x") + row(prompt="c", solution="d", id="x"),
        "two rows, one name",
    ),
    "an id that meets a number": (
        row(prompt="a", solution="b", id=1) + row(prompt="c", solution="d", id="1"),
        "the same",
    ),
    "a long id": (row(prompt="a", solution="b", id="i" * 300), "no name"),
    "an empty id": (row(prompt="a", solution="b", id=""), "no name"),
    "a list as id": (row(prompt="a", solution="b", id=[1]), "no name"),
    "a fraction as id": (row(prompt="a", solution="b", id=1.5), "no name"),
    "true as id": (row(prompt="a", solution="b", id=True), "no name"),
    "rows of two kinds": (GOOD + "\n" + option_row(), "the second has no prompt"),
    "a bad row far below": (SOLUTIONS * 200 + '{"prompt": "a"}\n', "line 401"),
    "one option": (option_row(options=["4"]), "nothing to choose from"),
    "no options": (option_row(options=[]), "nothing to choose from"),
    "options as text": (option_row(options="45"), "no list"),
    "options as numbers": (option_row(options=[4, 5]), "no texts"),
    "an empty option": (option_row(options=["4", ""]), "nothing to score"),
    "a blank option": (option_row(options=["4", " "]), "nothing to score"),
    "a null option": (option_row(options=["4", None]), "no text"),
    "options as an object": (option_row(options={"a": "4", "b": "5"}), "no list"),
    "no answer": (option_row(answer=...), "the answer is missing"),
    "a null answer": (option_row(answer=None), "the answer is missing"),
    "an answer too large": (option_row(answer=2), "no such option"),
    "a negative answer": (option_row(answer=-1), "no such option"),
    "an answer as a letter": (option_row(answer="A"), "no number"),
    "an answer as a fraction": (option_row(answer=0.5), "no whole number"),
    "an answer as a float": (option_row(answer=1.0), "no whole number"),
    "an answer as true": (option_row(answer=True), "no number"),
    "an answer as a list": (option_row(answer=[0]), "no number"),
    "an answer as text of an option": (option_row(answer="4x"), "no number"),
    "no context": (option_row(context=...), "the question is missing"),
    "an empty context": (option_row(context=""), "nothing to ask"),
    "a long prompt": (row(prompt="word " * 20_000, solution="b"), "longer than the model allows"),
    "a long solution": (row(prompt="a", solution="word " * 20_000), "longer than the model allows"),
}


def given(name: str, content: str | bytes, file: str = "my.jsonl", *flags: str) -> Callable[[Place], str]:
    return lambda place: f"--tasks=mine={place.file(file, content)}"


def cases() -> Iterator[Case]:
    for name, (content, why) in BAD.items():
        yield command(f"data: {name}", why, *measure(tasks=None, limit=None), model_of, given(name, content))
    yield from _kinds()
    yield from _not_files()
    yield from _large()
    yield from _benchmarks()
    yield from _generated()
    yield from _near_misses()


def _kinds() -> Iterator[Case]:
    packed = gzip.compress(SOLUTIONS.encode())
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 0xFF
    kinds: dict[str, tuple[str, bytes, str]] = {
        "a gzip file cut off": ("my.jsonl.gz", packed[:-6], "its end is missing"),
        "a gzip file cut in half": ("my.jsonl.gz", packed[: len(packed) // 2], "its end is missing"),
        "a flipped gzip file": ("my.jsonl.gz", bytes(flipped), "damaged"),
        "a wrong gzip sum": ("my.jsonl.gz", packed[:-8] + b"\0" * 4 + packed[-4:], "damaged"),
        "plain text called gzip": ("my.jsonl.gz", SOLUTIONS.encode(), "no gzip"),
        "gzip called plain": ("my.jsonl", packed, "no text"),
        "an empty gzip file": ("my.jsonl.gz", b"", "nothing"),
        "gzip of nothing": ("my.jsonl.gz", gzip.compress(b""), "no rows"),
        "rubbish after gzip": ("my.jsonl.gz", packed + b"rubbish", "damaged"),
        "text called Parquet": ("my.parquet", SOLUTIONS.encode(), "no Parquet"),
        "an empty Parquet file": ("my.parquet", b"", "nothing"),
        "Parquet's marks alone": ("my.parquet", b"PAR1" * 3, "no footer"),
        "a CSV file": ("my.csv", b"prompt,solution\na,b\n", "a kind that is not read"),
        "a JSON file": ("my.json", f"[{GOOD}]".encode(), "a kind that is not read"),
        "a text file": ("my.txt", SOLUTIONS.encode(), "a kind that is not read"),
        "no ending": ("mine", SOLUTIONS.encode(), "a kind that is not read"),
    }
    for name, (file, content, why) in kinds.items():
        yield command(f"data: {name}", why, *measure(tasks=None), model_of, given(name, content, file))
    for name, cut in {"cut": slice(0, -20), "without its head": slice(40, None)}.items():
        yield command(
            f"data: a Parquet file {name}",
            "damaged",
            *measure(tasks=None),
            model_of,
            lambda p, cut=cut: f"--tasks=mine={parquet(p, cut)}",
        )
    yield command(
        "data: Parquet without the fields",
        "no prompt",
        *measure(tasks=None),
        model_of,
        lambda p: f"--tasks=mine={parquet(p, columns={'a': [1, 2]})}",
    )
    yield command(
        "data: Parquet with numbers for texts",
        "no text",
        *measure(tasks=None),
        model_of,
        lambda p: f"--tasks=mine={parquet(p, columns={'prompt': [1], 'solution': [2]})}",
    )
    yield command(
        "data: Parquet without rows",
        "no rows",
        *measure(tasks=None),
        model_of,
        lambda p: f"--tasks=mine={parquet(p, columns={'prompt': [], 'solution': []})}",
    )
    yield command(
        "data: Parquet with nulls",
        "no text",
        *measure(tasks=None),
        model_of,
        lambda p: f"--tasks=mine={parquet(p, columns={'prompt': ['a', None], 'solution': ['b', 'c']})}",
    )


def parquet(place: Place, cut: slice = slice(None), columns: dict[str, list[Any]] | None = None) -> str:
    """A Parquet file in the case's folder, some of its bytes left out."""
    import polars

    path = place.here / "my.parquet"
    polars.DataFrame(columns or {"prompt": ["a"], "solution": ["b"]}).write_parquet(path)
    path.write_bytes(path.read_bytes()[cut])
    return str(path)


def _not_files() -> Iterator[Case]:
    places: dict[str, tuple[Callable[[Place], str], str]] = {
        "a FIFO": (lambda p: rename(p, fifo(p), "my.jsonl"), "nobody writes to it"),
        "a FIFO called gzip": (lambda p: rename(p, fifo(p), "my.jsonl.gz"), "nobody writes to it"),
        "a FIFO called Parquet": (lambda p: rename(p, fifo(p), "my.parquet"), "nobody writes to it"),
        "a link to an endless device": (lambda p: link(p, "/dev/zero", "my.jsonl"), "it never ends"),
        "a link to random bytes": (lambda p: link(p, "/dev/urandom", "my.jsonl.gz"), "it never ends"),
        "a link to a FIFO": (lambda p: link(p, fifo(p), "my.jsonl"), "nobody writes to it"),
        "a link to nothing": (lambda p: link(p, "nothing", "my.jsonl"), "nothing there"),
        "a link to itself": (lambda p: link(p, "my.jsonl", "my.jsonl"), "nothing there"),
        "a circle of links": (lambda p: f"{circle(p)}/my.jsonl", "nothing there"),
        "a folder": (lambda p: folder(p, "my.jsonl"), "no file"),
        "a file below a file": (lambda p: p.file("f", "") + "/my.jsonl", "no folder"),
        "a name that is too long": (lambda p: f"{LONG_NAME}.jsonl", "no file name"),
        "a name with NUL": (lambda p: "a\x00.jsonl", "no file name"),
        "an empty name": (lambda p: "", "no file name"),
    }
    for name, (path, why) in places.items():
        yield command(
            f"data: {name}", why, *measure(tasks=None), model_of, lambda p, path=path: f"--tasks=mine={path(p)}"
        )
        if "NUL" not in name and "empty" not in name:
            yield call(f"load_task: {name}", why, lambda p, path=path: load(path(p)))


def rename(place: Place, path: str, name: str) -> str:
    import os

    os.rename(path, place.here / name)
    return str(place.here / name)


def folder(place: Place, name: str) -> str:
    (place.here / name).mkdir()
    return str(place.here / name)


def load(spec: Any, **rest: Any) -> Any:
    from loopscope import load_task

    return load_task(spec, **rest)


def _large() -> Iterator[Case]:
    """Little on disk, much in memory."""
    yield command(
        "data: gzip with one line of 3 GB",
        "a bomb",
        *measure(tasks=None),
        model_of,
        lambda p: f"--tasks=mine={bomb(p)}",
    )
    for long in ("error", "skip", "truncate-left"):
        yield command(
            f"data: a line of 10 MB, --long {long}",
            "longer than a question may be",
            *measure(tasks=None),
            model_of,
            given("", row(prompt="word " * 2_000_000, solution="b")),
            f"--long={long}",
        )
    yield command(
        "data: every row too long and skipped",
        "nothing is left",
        *measure(tasks=None),
        model_of,
        given("", row(prompt="word " * 5_000, solution="b")),
        "--long=skip",
    )
    yield command(
        "data: a solution too long to cut",
        "only the context is cut",
        *measure(tasks=None),
        model_of,
        given("", row(prompt="a", solution="word " * 5_000)),
        "--long=truncate-left",
    )


def bomb(place: Place) -> str:
    """Three thousand million bytes without a line end, in three megabytes: one member of a gzip file, repeated."""
    member = gzip.compress(b"x" * (64 << 20), compresslevel=1)
    path = place.here / "my.jsonl.gz"
    with path.open("wb") as file:
        for _ in range(48):
            file.write(member)
    return str(path)


def _benchmarks() -> Iterator[Case]:
    """A folder of benchmark files that are not what they are called."""

    def of(name: str, content: str | bytes) -> Callable[[Place], str]:
        def make(place: Place) -> str:
            place.file(f"data/{name}", content)
            return f"--data-dir={place.here / 'data'}"

        return make

    flags = measure(tasks="gsm8k")
    question = row(question="a", answer="b")
    for name, make, why in (
        ("an empty folder", of("readme.txt", "x"), "no such file"),
        ("too few rows", of("gsm8k_test.jsonl", question * 3), "not the published number"),
        ("other fields", of("gsm8k_test.jsonl", row(prompt="a", solution="b")), "no question"),
        ("a FIFO for a file", lambda p: f"--data-dir={fifo_folder(p)}", "nobody writes to it"),
        ("numbers for texts", of("gsm8k_test.jsonl", row(question=1, answer=2)), "no text"),
    ):
        yield command(f"--data-dir: {name}", why, *flags, model_of, make)
    yield command("--data-dir: a file", "no folder", *flags, model_of, lambda p: f"--data-dir={p.file('f', '')}")
    hellaswag = {"ind": 1, "activity_label": "a", "ctx_a": "b", "ctx_b": "c", "endings": ["d", "e", "f", "g"]}
    for name, label in {"a label that is no number": "x", "a label too large": "4", "an empty label": ""}.items():
        yield command(
            f"--data-dir: {name}",
            "no option",
            *measure(tasks="hellaswag"),
            model_of,
            of("hellaswag_val.jsonl", row(**hellaswag, label=label)),
        )


def fifo_folder(place: Place) -> str:
    import os

    (place.here / "data").mkdir()
    os.mkfifo(place.here / "data" / "gsm8k_test.jsonl")
    return str(place.here / "data")


def _generated() -> Iterator[Case]:
    """A good line cut off at places that a seed chooses, and with a byte of its structure replaced."""
    chance = random.Random(20260904)
    for name, line in {"solution": SOLUTIONS.splitlines()[0], "options": OPTIONS.strip()}.items():
        for at in sorted(chance.sample(range(1, len(line) - 1), 12)):
            yield command(
                f"generated: {name} row cut at {at}",
                "half an object",
                *measure(tasks=None),
                model_of,
                given("", SOLUTIONS * 0 + line[:at] + "\n"),
            )
        structure = [at for at, letter in enumerate(line) if letter in '{}":[]']
        for at in sorted(chance.sample(structure, 10)):
            changed = line[:at] + ";" + line[at + 1 :]
            yield command(
                f"generated: {name} row with ; at {at}",
                "broken JSON, or a field that is not there",
                *measure(tasks=None),
                model_of,
                given("", changed + "\n"),
            )


def _near_misses() -> Iterator[Case]:
    good: dict[str, tuple[str, str | bytes, str]] = {
        "a byte-order mark": ("my.jsonl", b"\xef\xbb\xbf" + SOLUTIONS.encode(), "editors put one there"),
        "CRLF": ("my.jsonl", SOLUTIONS.replace("\n", "\r\n"), "line ends of Windows"),
        "no last line end": ("my.jsonl", SOLUTIONS.rstrip("\n"), "editors leave it out"),
        "blank lines": ("my.jsonl", "\n" + SOLUTIONS + "\n\n", "editors leave them"),
        "gzip in two members": (
            "my.jsonl.gz",
            gzip.compress(SOLUTIONS.encode()) + gzip.compress(OPTIONS[:0].encode()),
            "cat of two files",
        ),
        "U+2028 in a text": ("my.jsonl", '{"prompt": "a\u2028b", "solution": "c"}\n', "no line end of JSON"),
        "an emoji as a surrogate pair": ("my.jsonl", '{"prompt": "\\ud83d\\ude00", "solution": "c"}\n', "a whole pair"),
        "ids as numbers and texts": (
            "my.jsonl",
            row(prompt="a", solution="b", id=0) + row(prompt="c", solution="d", id="x"),
            "both name a row",
        ),
        "other fields": ("my.jsonl", row(prompt="a", solution="b", source={"url": [1, 2]}), "left alone"),
        "a nested field ten deep": (
            "my.jsonl",
            '{"prompt": "a", "solution": "b", "x": ' + "[" * 10 + "]" * 10 + "}\n",
            "left alone",
        ),
        "the answer as digits": ("my.jsonl", option_row(answer="1"), "as the hub stores labels"),
        "two alike options": ("my.jsonl", option_row(options=["4", "4"]), "benchmarks have them"),
        "upper-case ending": ("MY.JSONL", SOLUTIONS, "a file's name"),
        "a dollar sign and braces": ("my.jsonl", row(prompt="{x} $5$ {{y}}", solution="\\frac{1}{2}"), "a text"),
        "a tab and a backslash": ("my.jsonl", row(prompt="a\t\\b", solution="c"), "a text"),
        "a long id": ("my.jsonl", row(prompt="a", solution="b", id="i" * 150), "a name"),
    }
    for name, (file, content, why) in good.items():
        yield command(
            f"accepted: data: {name}", why, *measure(tasks=None), model_of, given("", content, file), accepted=True
        )
    yield command(
        "accepted: data: Parquet",
        "a kind that is read",
        *measure(tasks=None),
        model_of,
        lambda p: f"--tasks=mine={parquet(p)}",
        accepted=True,
    )
    yield command(
        "accepted: data: a link to a file",
        "a file",
        *measure(tasks=None),
        model_of,
        lambda p: f"--tasks=mine={link(p, p.file('x.jsonl', SOLUTIONS), 'my.jsonl')}",
        accepted=True,
    )
    yield command(
        "accepted: data: too long and skipped",
        "one row is left",
        *measure(tasks=None),
        model_of,
        given("", SOLUTIONS + row(prompt="word " * 5000, solution="b")),
        "--long=skip",
        accepted=True,
    )
    yield command(
        "accepted: data: a line of 100 kB, cut at the left",
        "asked for",
        *measure(tasks=None),
        model_of,
        given("", row(prompt="word " * 20_000, solution="b")),
        "--long=truncate-left",
        accepted=True,
    )
