"""Templates: TOML files that word a question."""

from __future__ import annotations

import random
from collections.abc import Iterator

from case import Case, command
from flags import LONG_NAME, fifo, link, measure, model_of
from place import OPTIONS, SOLUTIONS

SOLUTION = 'kind = "solution"\nprompt = "Q: {prompt}\\n"\nsolution = "{solution}"\n'
CHOICE = 'kind = "options"\ncontext = "{context}"\n'

BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "no kind"),
    "no TOML": ("kind: solution\n", "YAML"),
    "not UTF-8": (b'kind = "\xff"\n', "no text"),
    "a NUL byte": (b'kind = "solution\x00"\n', "no TOML"),
    "kind as a list": ("kind = [1]\n", "no text"),
    "kind as a table": ("[kind]\na = 1\n", "no text"),
    "kind as a number": ("kind = 1\n", "no text"),
    "another kind": ('kind = "essay"\n', "no such kind"),
    "an unknown key": (SOLUTION + 'extra = "x"\n', "no such key"),
    "a key of options": (SOLUTION + 'delimiter = " "\n', "no key of solutions"),
    "no prompt": ('kind = "solution"\nsolution = "{solution}"\n', "the question is missing"),
    "no solution": ('kind = "solution"\nprompt = "{prompt}"\n', "the answer is missing"),
    "prompt as a number": ('kind = "solution"\nprompt = 1\nsolution = "{solution}"\n', "no text"),
    "prompt as a list": ('kind = "solution"\nprompt = ["a"]\nsolution = "{solution}"\n', "no text"),
    "a key twice": (SOLUTION + 'prompt = "x"\n', "no TOML"),
    "a brace without its end": ('kind = "solution"\nprompt = "{prompt"\nsolution = "{solution}"\n', "no place"),
    "a brace too many": ('kind = "solution"\nprompt = "prompt}"\nsolution = "{solution}"\n', "no place"),
    "empty braces": ('kind = "solution"\nprompt = "{}"\nsolution = "{solution}"\n', "no field"),
    "a number in braces": ('kind = "solution"\nprompt = "{0}"\nsolution = "{solution}"\n', "no field"),
    "an unknown field": ('kind = "solution"\nprompt = "{nothing}"\nsolution = "{solution}"\n', "no field of the rows"),
    "an attribute": ('kind = "solution"\nprompt = "{prompt.__class__}"\nsolution = "{solution}"\n', "no field"),
    "an index": ('kind = "solution"\nprompt = "{prompt[0]}"\nsolution = "{solution}"\n', "no field"),
    "a format": ('kind = "solution"\nprompt = "{prompt:>99999999}"\nsolution = "{solution}"\n', "no field"),
    "an unknown conversion": (
        'kind = "solution"\nprompt = "{prompt!z}"\nsolution = "{solution}"\n',
        "there are t and c",
    ),
    "a solution without a field that is empty": (
        'kind = "solution"\nprompt = "{prompt}"\nsolution = ""\n',
        "nothing to score",
    ),
    "deep TOML": ("kind = " + "[" * 5000 + "]" * 5000 + "\n", "deeper than any template"),
    "deep keys": ("a" + ".a" * 5000 + " = 1\n", "deeper than any template"),
    "an integer of 5,000 digits": (SOLUTION + f"n = {'1' * 5000}\n", "no number"),
    "a date": (SOLUTION + "made = 2001-01-01\n", "no such key"),
    "a template for options": (CHOICE, "the rows have solutions"),
}
BAD_OPTIONS: dict[str, tuple[str, str]] = {
    "no context": ('kind = "options"\n', "the question is missing"),
    "options as text": (CHOICE + 'options = "yes"\n', "no list"),
    "options as numbers": (CHOICE + "options = [1, 2]\n", "no texts"),
    "an empty option": (CHOICE + 'options = ["yes", ""]\n', "nothing to score"),
    "three options for two": (CHOICE + 'options = ["a", "b", "c"]\n', "the rows have two"),
    "one option": (CHOICE + 'options = ["a"]\n', "the rows have two"),
    "delimiter as a number": (CHOICE + "delimiter = 1\n", "no text"),
    "an option with a field": (CHOICE + 'option = "{context}"\n', "only option and letter"),
    "a choice with a field": (CHOICE + 'choice = "{answer}"\n', "only option and letter"),
    "an option that is empty": (CHOICE + 'option = ""\n', "nothing to score"),
    "clean as text": (CHOICE + 'clean = "trim"\n', "no list"),
    "clean with text": (CHOICE + 'clean = ["trim"]\n', "no step"),
    "clean with trim = false": (CHOICE + "clean = [{ trim = false }]\n", "no step"),
    "clean with an unknown step": (CHOICE + "clean = [{ upper = true }]\n", "no step"),
    "clean without with": (CHOICE + 'clean = [{ replace = "a" }]\n', "no step"),
    "clean with an empty text": (CHOICE + 'clean = [{ replace = "", with = "a" }]\n', "no step"),
    "clean with a number": (CHOICE + 'clean = [{ replace = 1, with = "a" }]\n', "no step"),
    "a broken pattern": (CHOICE + 'clean = [{ pattern = "(", with = "" }]\n', "no regular expression"),
    "a pattern that repeats nothing": (CHOICE + 'clean = [{ pattern = "*a", with = "" }]\n', "no regular expression"),
    "a replacement with an unknown group": (CHOICE + "clean = [{ pattern = \"a\", with = '\\9' }]\n", "no such group"),
    "a replacement with an unknown name": (
        CHOICE + "clean = [{ pattern = \"a\", with = '\\g<x>' }]\n",
        "no such group",
    ),
    "a replacement with a bad escape": (CHOICE + "clean = [{ pattern = \"a\", with = '\\q' }]\n", "no escape"),
    "a replacement with half a group": (CHOICE + "clean = [{ pattern = \"a\", with = '\\g<' }]\n", "no group"),
    "a pattern of nested groups": (
        CHOICE + f"clean = [{{ pattern = '{'(' * 3000}{')' * 3000}', with = '' }}]\n",
        "too deep",
    ),
    "a pattern that removes everything": (CHOICE + "clean = [{ pattern = '(?s).*', with = '' }]\n", "nothing is left"),
    "a template for solutions": (SOLUTION, "the rows have options"),
}
SLOW_ROW = '{"context": "' + "a" * 60 + '!", "options": ["4", "5"], "answer": 0}\n'


def given(rows: str, template: str | bytes) -> tuple:
    return (
        lambda place: f"--tasks=mine={place.file('my.jsonl', rows)}",
        lambda place: f"--template={place.file('mine.toml', template)}",
    )


def cases() -> Iterator[Case]:
    flags = measure(tasks=None)
    for name, (content, why) in BAD.items():
        yield command(f"template: {name}", why, *flags, model_of, *given(SOLUTIONS, content))
    for name, (content, why) in BAD_OPTIONS.items():
        yield command(f"template of options: {name}", why, *flags, model_of, *given(OPTIONS, content))
    for name, pattern in {"repeats of repeats": "(a+)+$", "alternatives": "(a|aa)+$"}.items():
        slow = CHOICE + f"clean = [{{ pattern = '{pattern}', with = '' }}]\n"
        yield command(f"template: a pattern of {name}", "it takes years", *flags, model_of, *given(SLOW_ROW, slow))
    solutions = given(SOLUTIONS, "")[0]
    for name, path, why in (
        ("a folder", lambda p: str(p.here), "no file"),
        ("nothing", lambda p: "nothing.toml", "no file"),
        ("a FIFO", fifo, "nobody writes to it"),
        ("an endless device", lambda p: link(p, "/dev/zero", "t.toml"), "it never ends"),
        ("a name that is too long", lambda p: LONG_NAME, "no file name"),
        ("a name with NUL", lambda p: "a\x00b", "no file name"),
        ("a template of another benchmark", lambda p: p.file("t.toml", CHOICE), "the rows have solutions"),
    ):
        yield command(
            f"template: {name} as a file",
            why,
            *flags,
            model_of,
            solutions,
            lambda p, path=path: f"--template={path(p)}",
        )
    yield from _generated(flags)
    yield from _near_misses(flags)


def _generated(flags: list[str]) -> Iterator[Case]:
    chance = random.Random(20260904)
    for at in sorted(chance.sample(range(1, len(SOLUTION) - 3), 20)):
        yield command(
            f"generated: template cut at {at}", "half a template", *flags, model_of, *given(SOLUTIONS, SOLUTION[:at])
        )


def _near_misses(flags: list[str]) -> Iterator[Case]:
    for name, rows, content, why in (
        ("plain", SOLUTIONS, SOLUTION, "a template"),
        ("braces", SOLUTIONS, SOLUTION.replace("Q:", "{{Q}}:"), "doubled braces"),
        ("trimmed", SOLUTIONS, SOLUTION.replace("{prompt}", "{prompt!t}"), "a conversion"),
        ("options", OPTIONS, CHOICE, "a template"),
        ("letters", OPTIONS, CHOICE + 'option = "{letter}"\nchoice = "{letter}) {option}"\n', "letters are scored"),
        ("a pattern", OPTIONS, CHOICE + "clean = [{ pattern = '(\\d)', with = '\\1' }, { trim = true }]\n", "a group"),
        ("fixed options", OPTIONS, CHOICE + 'options = ["yes", "no"]\n', "two for two"),
        ("a comment", SOLUTIONS, "# mine\n" + SOLUTION, "TOML has comments"),
    ):
        yield command(f"accepted: template: {name}", why, *flags, model_of, *given(rows, content), accepted=True)
