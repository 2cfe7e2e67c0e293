"""The command line: commands, flags and their values, through `argv`, the environment and a YAML file."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path

from case import Case, command
from place import OPTIONS, SOLUTIONS, Place

MANY_DIGITS = "1" * 5000
LONG_NAME = "m" * 5000


def measure(**changes: str | None) -> list[str]:
    """The arguments of a `measure` that works, some of them changed; None leaves one out."""
    flags = {"tasks": "arithmetic", "transitions": "1", "limit": "1", "level": "quick", "device": "cpu"} | {
        "progress": "none",
        "output": "out",
    }
    merged = {**flags, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return ["measure", *(f"--{name}={value}" for name, value in merged.items() if value is not None)]


def model_of(place: Place) -> str:
    return f"--model={place.model}"


def bad_measure(name: str, why: str, **changes: str | None) -> Case:
    return command(name, why, *measure(**changes), model_of)


def good_measure(name: str, why: str, **changes: str | None) -> Case:
    return command(name, why, *measure(**changes), model_of, accepted=True)


# Values of flags of `measure` and what is wrong with each.
NUMBERS = {
    "4 5": "two numbers without a comma",
    "4;5": "a semicolon is no comma",
    "-1": "before the first loop",
    "x": "no number",
    "1.5": "half a loop",
    "4.0": "a fraction in form",
    "1e3": "a float in form",
    "0x4": "hexadecimal",
    "1_0": "a Python literal",
    "+4": "a sign",
    "1,,2": "nothing between two commas",
    ",": "nothing but a comma",
    "1,": "nothing after the comma",
    " ": "blank",
    "nan": "not a number",
    "inf": "not a number",
    "None": "a Python word",
    "[4]": "a list in form",
    "1-": "a range without its end",
    "-": "a dash alone",
    "--4": "two dashes",
    "1--2": "two dashes",
    "4-2": "runs backwards",
    "1-2-3": "three ends",
    "1:3": "a colon is no range",
    "1..3": "dots are no range",
    "4→5": "an arrow is no range",
    "4\n5": "two lines",
    "4\t5": "a tab is no comma",
    MANY_DIGITS: "5,000 digits",
    "99999999999999999999": "more loops than anything can do",
    "1-1000000000": "a thousand million loops",
    "0-9999999999,4": "ten thousand million loops",
    f"1-{MANY_DIGITS}": "a range with an end of 5,000 digits",
}
ROWS = {
    **{text: why for text, why in NUMBERS.items() if not text.startswith("1-1000") and text != "1:3"},
    "0,0": "row 0 twice",
    "0-5,3": "row 3 twice",
    "0-200000,200000": "a long range and a row twice",
    "0-9999999999": "ten thousand million rows",
    "999999999": "no such row",
    "1:3": "a colon is no range",
}
LIMITS = {
    "0": "no question at all",
    "-1": "fewer than none",
    "1 0": "two numbers without a comma",
    "x": "no number",
    "1.5": "half a question",
    "1e2": "a float in form",
    "0x10": "hexadecimal",
    "arithmetic=": "a task without its number",
    "=5": "a number without its task",
    "arithmetic=0": "no question at all",
    "arithmetic=-1": "fewer than none",
    "arithmetic=x": "no number",
    "arithmetic=1,arithmetic=2": "the same task twice",
    "arithmetic=1,5": "one by name, one for all",
    "5,arithmetic=1": "one for all, one by name",
    "5,6": "two numbers for all",
    "piqa=5": "a task that is not measured",
    ",": "nothing but a comma",
    " ": "blank",
    MANY_DIGITS: "5,000 digits",
    f"arithmetic={MANY_DIGITS}": "5,000 digits",
}
CHOICES = {
    "level": ["ful", "QUICKEST", "grid,full", "1", " ", "None"],
    "long": ["cut", "truncate", "skip,error", "1"],
    "engine": ["dask", "Local-ish", "1"],
    "dtype": ["float12", "int8", "float8", "complex64", "torch", "bool"],
    "device": ["toaster", "meta", "cuda:99", "cpu:x", "gpu", "cuda:-1", "hpu", "xla", "-1"],
    "progress": ["fancy", "Bars", "2"],
    "batch-size": ["many", "0", "-2", "1.5", "paper2", "1e2", MANY_DIGITS, "auto,8", " "],
    "workers": ["-1", "0", "x", "1.5"],
    "model": [
        "toy-uoro",
        LONG_NAME,
        "no/such/folder",
        "./nothing",
        " ",
        "toy-ouro@main",
        "toy-ouro ",
        "org/name/extra",
        "http://example.org/model",
        "..",
        "~nobody-at-all/model",
        "o" * 300 + "/" + "n" * 300,
    ],
    "tasks": [
        "arithmetik",
        " ",
        ",",
        "arithmetic:testt",
        "arithmetic,arithmetic",
        "arithmetic,arithmetic:test",
        "nothing.jsonl",
        "mine=",
        "=x.jsonl",
        "mine=nothing.jsonl",
        "arithmetic=x.jsonl",
        "a/b",
        LONG_NAME,
        f"{LONG_NAME}.jsonl",
        f"mine={LONG_NAME}.jsonl",
        "arithmetic:",
        "arithmetic::test",
        ":test",
        "arithmetic test",
    ],
    "template": ["nothing.toml", ".", LONG_NAME, "/dev/null"],
    "tokenizer": ["nothing", LONG_NAME, "./nothing"],
    "revision": ["main", "0123456"],
    "data-dir": ["nothing", LONG_NAME],
}
WHY = {
    "level": "no such level",
    "long": "no such policy",
    "engine": "no such engine",
    "dtype": "no dtype of weights",
    "device": "no device that can compute here",
    "progress": "no such style",
    "batch-size": "no number of questions",
    "workers": "no number of workers of a local engine",
    "model": "no such model",
    "tasks": "no such task",
    "template": "no template, or none for an embedded task",
    "tokenizer": "no tokenizer there",
    "revision": "a folder has no revisions",
    "data-dir": "no such folder",
}


def shown(value: str) -> str:
    """A value short enough for a name."""
    return repr(value) if len(value) <= 40 else f"{value[:12]!r}… of {len(value)} characters"


def cases() -> Iterator[Case]:
    yield from _values()
    yield from _combinations()
    yield from _other_commands()
    yield from _environment()
    yield from _configuration()
    yield from _outputs()
    yield from _generated()
    yield from _near_misses()


def _values() -> Iterator[Case]:
    for flag in ("transitions", "depths"):
        for value, why in NUMBERS.items():
            yield bad_measure(f"measure --{flag} {shown(value)}", why, **{flag: value})
    for value, why in ROWS.items():
        yield bad_measure(f"measure --ids {shown(value)}", why, ids=value, limit=None)
    for value, why in LIMITS.items():
        yield bad_measure(f"measure --limit {shown(value)}", why, limit=value)
    for flag, values in CHOICES.items():
        for value in values:
            tasks = {"tasks": "gsm8k"} if flag == "data-dir" else {}
            why = WHY[flag]
            changes = {**tasks, flag: value}
            if flag == "model":
                yield command(f"measure --model {shown(value)}", why, *measure(**changes))
            else:
                yield bad_measure(f"measure --{flag} {shown(value)}", why, **changes)


def _combinations() -> Iterator[Case]:
    yield bad_measure("measure nothing", "neither updates nor depths", transitions=None)
    yield bad_measure("measure --paths at level quick", "paths are of level full", paths=None, level="grid --paths")
    yield command("measure --paths without level full", "paths are of level full", *measure(), "--paths", model_of)
    yield command(
        "measure --tokens without updates",
        "tokens are rows of updates",
        *measure(transitions=None),
        "--depths=1",
        "--tokens",
        model_of,
    )
    yield command(
        "measure --batch-size paper, odd units",
        "pairs cannot be cut",
        *measure(),
        "--batch-size=paper",
        "--protocol=loopscope:unit_size=3",
        model_of,
    )
    yield command(
        "measure --batch-size paper --share-context",
        "the paper shares nothing",
        *measure(),
        "--batch-size=paper",
        "--share-context",
        model_of,
    )
    yield bad_measure("measure --address with the local engine", "only Ray has an address", address="auto")
    yield bad_measure("measure --workers with the local engine", "only Ray has workers", workers="2")
    yield command(
        "measure --random-weights with a seed of text",
        "no number",
        *measure(),
        "--random-weights",
        "--seed=abc",
        model_of,
    )
    yield bad_measure("measure a benchmark by a file's name", "the name is taken", tasks="gsm8k=x.jsonl")
    yield bad_measure("measure with a template for an embedded task", "it takes none", template="own.toml")
    yield command("measure without a model", "nothing to measure", *measure())
    yield command("measure without tasks", "nothing to ask", *measure(tasks=None), model_of)
    yield command("measure without output", "nowhere to write", *measure(output=None), model_of)
    yield command("measure with a stray word", "no such argument", *measure(), model_of, "stray")
    yield command("measure --tokens=yes", "a switch takes no value", *measure(), model_of, "--tokens=yes")
    yield command("measure --model twice, second wrong", "the last one counts", *measure(), model_of, "--model=nothing")
    yield command("measure --model without a value", "the value is missing", *measure(), "--model")
    yield command("measure --modle", "a flag that does not exist", *measure(), "--modle=toy-ouro")


def _other_commands() -> Iterator[Case]:
    def run(place: Place) -> str:
        return str(place.run)

    yield command("no such command", "a misspelling", "mesure")
    yield command("an empty command", "nothing", "")
    yield command("a flag of no command", "a misspelling", "--versio")
    yield command("a command in capitals", "commands are lower case", "TABLES")
    yield command("a control character as command", "no command", "\x07")
    for name in ("tables", "figures", "compare", "report", "verify"):
        yield command(f"{name} without a run", "nothing to read", name)
        extra = ["--output=out"] if name in ("figures", "report") else []
        yield command(f"{name} of nothing", "no such folder", name, "nothing", *extra)
        yield command(f"{name} of an empty name", "no folder", name, "", *extra)
        yield command(f"{name} of a long name", "longer than a file name can be", name, LONG_NAME, *extra)
        yield command(f"{name} of a folder that is no run", "no manifest", name, lambda p: str(p.here), *extra)
        yield command(f"{name} of a file", "no folder", name, lambda p: p.file("f", "x"), *extra)
        yield command(f"{name} of a checkpoint", "no manifest", name, lambda p: str(p.model), *extra)
        yield command(f"{name} of a good run and nothing", "one of two is missing", name, run, "nothing", *extra)
        yield command(f"{name} --no-such-flag", "a flag that does not exist", name, run, "--no-such-flag", *extra)
    for name, formats in {
        "tables": ("xml", "TEXT ", "pdf"),
        "compare": ("xml", "pdf"),
        "figures": ("bmp", "gif"),
    }.items():
        for text in formats:
            extra = ["--output=out"] if name == "figures" else []
            yield command(f"{name} --format {text}", "no such format", name, run, f"--format={text}", *extra)
        for text in ("nothing", " ", "mechanism,tokens", LONG_NAME, "$x$", "../mechanism", "mechanism\x00"):
            extra = ["--output=out"] if name == "figures" else []
            yield command(f"{name} --name {shown(text)}", "no such study", name, run, f"--name={text}", *extra)
    yield command(
        "tables --name refined-optima of a grid run", "needs level full", "tables", run, "--name=refined-optima"
    )
    yield command("figures without output", "nowhere to write", "figures", run)
    yield command("figures into a file", "no folder", "figures", run, lambda p: f"--output={p.file('f', 'x')}")
    yield command("report into a folder", "no file", "report", run, lambda p: f"--output={p.here}")
    yield command("report below a file", "no folder", "report", run, lambda p: f"--output={p.file('f', 'x')}/r.html")
    yield command("report into a name that is too long", "no file name", "report", run, f"--output={LONG_NAME}")
    yield command("report into a device", "a device is no file", "report", run, lambda p: f"--output={device(p, 3)}")
    yield command(
        "report into a full device", "a device is no file", "report", run, lambda p: f"--output={device(p, 7)}"
    )
    yield command("report into a FIFO", "a FIFO is no file", "report", run, lambda p: f"--output={fifo(p)}")
    yield command(
        "report of a run twice as output", "the run is a folder", "report", run, lambda p: f"--output={p.run}"
    )
    for questions in ("-1", "x", "1.5", MANY_DIGITS):
        yield command(
            f"demo --questions {shown(questions)}",
            "no number of questions",
            "demo",
            f"--questions={questions}",
            "--output=out",
        )
    yield command("demo --progress fancy", "no such style", "demo", "--progress=fancy", "--output=out", "--questions=1")
    yield command("demo into a file", "no folder", "demo", lambda p: f"--output={p.file('f', '')}", "--questions=1")
    yield command("models with a stray word", "takes no argument", "models", "toy-ouro")
    yield command("studies --json", "a flag that does not exist", "studies", "--json")
    yield command("verify two runs", "one at a time", "verify", run, run)
    yield command("verify --device meta", "computes nothing", "verify", run, "--device=meta")
    yield command("verify --model elsewhere", "no such model", "verify", run, "--model=nothing")


def _environment() -> Iterator[Case]:
    bad = {
        "TRANSITIONS": "4 5",
        "DEPTHS": "1-",
        "LIMIT": "1 0",
        "IDS": "0-9999999999",
        "LEVEL": "ful",
        "TOKENS": "perhaps",
        "BATCH_SIZE": "many",
        "DEVICE": "meta",
        "DTYPE": "float12",
        "LONG": "cut",
        "SHARE_CONTEXT": "2",
        "ENGINE": "dask",
        "WORKERS": "-1",
        "PROGRESS": "fancy",
        "TEMPLATE": "nothing.toml",
    }
    for name, value in bad.items():
        flag = name.lower().replace("_", "-")
        without = {flag: None}
        yield command(
            f"LOOPSCOPE_{name}={value}",
            f"wrong as --{flag} is",
            *measure(**without),
            model_of,
            env={f"LOOPSCOPE_{name}": value},
        )
    yield command(
        "LOOPSCOPE_FORMAT=xml", "no such format", "tables", lambda p: str(p.run), env={"LOOPSCOPE_FORMAT": "xml"}
    )


def _configuration() -> Iterator[Case]:
    aliases = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True):
        aliases += f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    texts: dict[str, tuple[str | bytes, str]] = {
        "not UTF-8": (b"limit: \xff\xfe1\n", "bytes that are no text"),
        "a NUL byte": (b"limit: 1\x00\n", "no YAML character"),
        "nested 3,000 deep": ("limit: " + "[" * 3000 + "]" * 3000 + "\n", "deeper than any flag"),
        "mappings nested deep": ("limit: " + "{a: " * 3000 + "1" + "}" * 3000 + "\n", "deeper than any flag"),
        "an alias bomb": (aliases + "limit: *i\n", "nine to the ninth values"),
        "an alias bomb in a known flag": (aliases.replace("a:", "tasks:", 1), "unknown flags"),
        "no mapping": ("- limit\n- 1\n", "a list"),
        "a text": ("limit\n", "no mapping"),
        "a number": ("5\n", "no mapping"),
        "broken": ("limit: [1\n", "a bracket without its end"),
        "tabs": ("limit:\n\t- 1\n", "YAML has no tabs"),
        "an unknown flag": ("limits: 1\n", "no such flag"),
        "an unknown tag": ("limit: !!python/object/apply:os.system ['true']\n", "code in a configuration"),
        "two documents": ("limit: 1\n---\nlimit: 2\n", "one is enough"),
        "a flag twice": ("limit: 1\nlimit: 2\n", "which one counts?"),
        "a flag twice in two spellings": ("batch-size: 1\nbatch_size: 2\n", "which one counts?"),
        "sexagesimal transitions": ("transitions: 1:30\n", "YAML reads 90"),
        "true as a size": ("batch_size: true\n", "a switch for a number"),
        "true as transitions": ("transitions: true\n", "a switch for a number"),
        "a switch for a list": ("transitions: [true]\n", "a switch for a number"),
        "null in a list": ("transitions: [1, null]\n", "nothing for a number"),
        "a list in a list": ("transitions: [[1], [2]]\n", "a list for a number"),
        "a mapping for a number": ("batch_size: {a: 1}\n", "a mapping for a number"),
        "a mapping in a list": ("tasks: [{a: 1}]\n", "a mapping for a name"),
        "a list for a number": ("batch_size: [1, 2]\n", "two sizes"),
        "a fraction of a question": ("limit: 1.5\n", "half a question"),
        "a fraction of a size": ("batch_size: 1.5\n", "half a question"),
        "a date": ("limit: 2001-01-01\n", "a date"),
        "binary": ("limit: !!binary aGVsbG8=\n", "bytes"),
        "a set": ("transitions: !!set {1, 2}\n", "a set"),
        "text for a switch": ("tokens: perhaps\n", "neither yes nor no"),
        "a number for a switch": ("tokens: 2\n", "neither yes nor no"),
        "progress": ("progress: fancy\n", "no such style"),
        "workers": ("workers: -1\n", "fewer than none"),
        "a negative limit": ("limit: -5\n", "fewer than none"),
        "limit zero": ("limit: 0\n", "no question at all"),
        "a key that is a list": ("? [limit]\n: 1\n", "no flag's name"),
        "a key that is a number": ("1: 2\n", "no flag's name"),
        "a key that is null": ("~: 2\n", "no flag's name"),
        "a merge key": ("<<: 5\n", "no flag's name"),
        "config in config": ("config: other.yaml\n", "a configuration that names another"),
        "many digits": (f"batch_size: {MANY_DIGITS}\n", "5,000 digits"),
        "a range as YAML": ("ids: 0-9999999999\n", "ten thousand million rows"),
        "octal": ("batch_size: 0o17\n", "octal"),
        "a control character": (b"level: qu\x07ick\n", "no YAML character"),
    }
    for name, (content, why) in texts.items():
        keys = content if isinstance(content, str) else content.decode("latin-1")
        omitted = {flag: None for flag in ("transitions", "limit", "level", "progress", "tasks") if f"{flag}:" in keys}
        yield command(
            f"--config: {name}",
            why,
            *measure(**omitted),
            model_of,
            lambda p, content=content: f"--config={p.file('flags.yaml', content)}",
        )
    yield command("--config of nothing", "no such file", *measure(), model_of, "--config=nothing.yaml")
    yield command("--config of a folder", "no file", *measure(), model_of, lambda p: f"--config={p.here}")
    yield command("--config of a FIFO", "nobody writes to it", *measure(), model_of, lambda p: f"--config={fifo(p)}")
    yield command("--config of an endless device", "it never ends", *measure(), model_of, "--config=/dev/zero")
    yield command(
        "--config of a link to an endless device",
        "it never ends",
        *measure(),
        model_of,
        lambda p: f"--config={link(p, '/dev/zero')}",
    )
    yield command(
        "--config with a name that is too long", "no file name", *measure(), model_of, f"--config={LONG_NAME}"
    )
    yield command("--config with a NUL in its name", "no file name", *measure(), model_of, "--config=a\x00b")


def _outputs() -> Iterator[Case]:
    def measured(name: str, why: str, output: str | None, place_output: object = None) -> Case:
        return command(name, why, *measure(output=output), model_of, *([place_output] if place_output else []))  # type: ignore[list-item]

    yield measured("measure into a file", "no folder", None, lambda p: f"--output={p.file('f', 'x')}")
    yield measured("measure below a file", "no folder", None, lambda p: f"--output={p.file('f', 'x')}/run")
    yield measured("measure into a device", "no folder", None, lambda p: f"--output={device(p, 3)}")
    yield measured("measure below a device", "no folder", None, lambda p: f"--output={device(p, 7)}/run")
    yield measured("measure into a FIFO", "no folder", None, lambda p: f"--output={fifo(p)}")
    yield measured("measure into a name that is too long", "no file name", LONG_NAME)
    yield measured("measure into a path that is too long", "no path", "/".join(["d" * 200] * 30))
    yield measured("measure into an empty name", "no folder", "")
    yield measured("measure into a name with NUL", "no file name", "a\x00b")
    yield measured("measure where nobody may write", "a file system of the kernel", "/proc/loopscope-run")
    yield measured(
        "measure into a folder with other files",
        "they are not a run's",
        None,
        lambda p: f"--output={Path(p.file('mine/thesis.tex', 'x')).parent}",
    )
    yield measured(
        "measure into a dangling link", "it leads nowhere", None, lambda p: f"--output={link(p, 'nowhere/x')}"
    )
    yield measured("measure into a circle of links", "it leads nowhere", None, lambda p: f"--output={circle(p)}/run")


def _generated() -> Iterator[Case]:
    """Malformed numbers and ranges made by a program: good pieces with a bad one among them."""
    chance = random.Random(20260904)
    good = ["1", "2-3", "7", "0", "4-4"]
    broken = ["", "a", "-", "1-", "-2", "3-1", "2 3", "1.0", "½", "²", "1-2-3", "4…5", "\u00a04 4", "1e1", "‑1", "0b1"]
    for number in range(30):
        pieces = chance.sample(good, chance.randint(1, 3))
        bad = broken[number % len(broken)]
        pieces.insert(chance.randint(0, len(pieces)), bad)
        flag = ("transitions", "depths", "ids")[number % 3]
        text = ",".join(pieces)
        yield bad_measure(
            f"generated {number}: --{flag} {shown(text)}",
            f"{bad!r} is no number or range",
            **{flag: text, "limit": None if flag == "ids" else "1"},
        )


def _near_misses() -> Iterator[Case]:
    """Unusual and right."""
    yield good_measure("accepted: --transitions ' 1 , 2 '", "blanks around commas", transitions=" 1 , 2 ")
    yield good_measure("accepted: --transitions 2-2", "a range of one", transitions="2-2")
    yield good_measure("accepted: --depths 0", "the state before the first loop", transitions=None, depths="0")
    yield good_measure("accepted: --limit arithmetic=1", "by name", limit="arithmetic=1")
    yield good_measure("accepted: --limit beyond the rows", "at most so many", limit="99999", ids="0")
    yield good_measure("accepted: --ids 3,1", "source order is kept", limit=None, ids="3,1")
    yield good_measure("accepted: --ids '0, 2-3'", "a blank after a comma", limit=None, ids="0, 2-3")
    yield good_measure("accepted: --dtype fp32", "a usual short name", dtype="fp32")
    yield good_measure("accepted: a threshold of 1", "the largest probability", **{"model-args": "exit_threshold=1"})
    yield good_measure("accepted: --batch-size 3", "more than there are", **{"batch-size": "3"})
    yield good_measure("accepted: units of 1", "the smallest", protocol="loopscope:unit_size=1")
    yield good_measure("accepted: --tasks 'arithmetic ,'", "a blank and a last comma", tasks="arithmetic ,")
    yield good_measure("accepted: --tasks ARITHMETIC_MC", "case and dashes do not matter", tasks="ARITHMETIC_MC")
    yield good_measure("accepted: --tasks arithmetic:val", "a split's short name", tasks="arithmetic:val")
    yield good_measure("accepted: an output with brackets and blanks", "a folder's name", output="a [1] *b?")
    yield good_measure("accepted: an output in Unicode", "a folder's name", output="läufe/größe $x$ – 数")
    yield command(
        "accepted: --batch_size", "an underscore is a dash", *measure(), model_of, "--batch_size=2", accepted=True
    )
    yield command(
        "accepted: a link as output",
        "it leads to a folder",
        *measure(output=None),
        model_of,
        lambda p: f"--output={link(p, str(p.here))}/out",
        accepted=True,
    )
    yield command(
        "accepted: random weights of a seed",
        "a configuration is enough",
        *measure(),
        model_of,
        "--model-args=random_weights=true,seed=7",
        accepted=True,
    )
    yield command(
        "accepted: LOOPSCOPE_LIMIT",
        "a flag by the environment",
        *measure(limit=None),
        model_of,
        env={"LOOPSCOPE_LIMIT": "1"},
        accepted=True,
    )
    yield command(
        "accepted: LOOPSCOPE_TOKENS=1",
        "a switch by the environment",
        *measure(),
        model_of,
        env={"LOOPSCOPE_TOKENS": "1"},
        accepted=True,
    )
    for name, text in {
        "plain": "limit: 1\ntransitions: 1\n",
        "lists": "limit: 1\ntransitions: [1, 2]\ntasks: [arithmetic]\n",
        "a quoted range": "limit: 1\ntransitions: '1-2'\n",
        "a range": "limit: 1\ntransitions: 1-2\n",
        "a comment, dashes": "# mine\nlimit: 1\nbatch-size: 2\ntransitions: 1\n",
        "a switch": "limit: 1\ntransitions: 1\ntokens: true\n",
        "empty": "",
    }.items():
        flags = measure(limit=None, transitions=None) if text else measure()
        yield command(
            f"accepted: --config: {name}",
            "good YAML",
            *flags,
            model_of,
            lambda p, text=text: f"--config={p.file('flags.yaml', text)}",
            accepted=True,
        )
    for name in ("models", "tasks", "studies", "--version", "--help"):
        yield command(f"accepted: {name}", "it lists", name, accepted=True)
    yield command(
        "accepted: tables --name Failure_Shares",
        "dashes and case do not matter",
        "tables",
        lambda p: str(p.run),
        "--name=Failure_Shares",
        accepted=True,
    )
    yield command(
        "accepted: tables as JSON",
        "a format",
        "tables",
        lambda p: str(p.run),
        "--format=json",
        "--name=mechanism",
        accepted=True,
    )
    yield command("accepted: verify", "a sound run", "verify", lambda p: str(p.run), "--no-replay", accepted=True)
    yield command(
        "accepted: measure a finished run again",
        "nothing to do",
        *measure(transitions="2", limit="4", level="grid", output=None),
        "--tokens",
        "--protocol=loopscope:unit_size=2",
        model_of,
        lambda p: f"--output={p.own_run()}",
        accepted=True,
    )
    yield command(
        "accepted: solutions of one's own",
        "a data file",
        *measure(tasks=None),
        model_of,
        lambda p: f"--tasks=mine={p.file('my.jsonl', SOLUTIONS)}",
        accepted=True,
    )
    yield command(
        "accepted: options of one's own",
        "a data file",
        *measure(tasks=None),
        model_of,
        lambda p: f"--tasks={p.file('a=b.jsonl', OPTIONS)}",
        accepted=True,
    )


def fifo(place: Place) -> str:
    path = place.here / "fifo"
    os.mkfifo(path)
    return str(path)


def device(place: Place, minor: int) -> str:
    """A device of the case's own (3 swallows all, 7 is full), since a program might replace the system's."""
    path = place.here / "device"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
    except PermissionError:  # only root makes devices
        os.mkfifo(path)
    return str(path)


def link(place: Place, target: str, name: str = "link") -> str:
    path = place.here / name
    path.symlink_to(target)
    return str(path)


def circle(place: Place) -> str:
    (place.here / "a").symlink_to("b")
    (place.here / "b").symlink_to("a")
    return str(place.here / "a")
