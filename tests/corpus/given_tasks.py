"""Tasks made in Python, token ids in files, tokenizers as objects and files, few-shot examples and chat templates."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from calls import measure as measured
from case import Case, call, command
from flags import measure, model_of
from place import Place


def row(**fields: Any) -> str:
    return json.dumps(fields) + "\n"


GOOD = {"prompt_ids": [1, 2], "solution_ids": [3]}
CHOICE = {"prompt_ids": [1, 2], "options_ids": [[3], [4, 5]], "answer": 1}

BAD_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "a negative id": ({**GOOD, "prompt_ids": [1, -1]}, "ids count from 0"),
    "an id beyond the vocabulary": ({**GOOD, "solution_ids": [1024]}, "the model has 1024 tokens"),
    "an id beyond 32 bits": ({**GOOD, "solution_ids": [2**40]}, "no id"),
    "an id of 100 digits": ({**GOOD, "solution_ids": [10**99]}, "no id"),
    "a fraction": ({**GOOD, "solution_ids": [1.0]}, "no id"),
    "true": ({**GOOD, "solution_ids": [True]}, "no id"),
    "text": ({**GOOD, "solution_ids": ["3"]}, "no id"),
    "null": ({**GOOD, "solution_ids": [None]}, "no id"),
    "a text of ids": ({**GOOD, "prompt_ids": "1 2"}, "no list"),
    "a nested list": ({**GOOD, "prompt_ids": [[1], [2]]}, "no ids"),
    "an object": ({**GOOD, "prompt_ids": {"0": 1}}, "no list"),
    "an empty prompt": ({**GOOD, "prompt_ids": []}, "nothing to predict from"),
    "an empty solution": ({**GOOD, "solution_ids": []}, "nothing to predict"),
    "no solution": ({"prompt_ids": [1]}, "the answer is missing"),
    "no prompt": ({"solution_ids": [1]}, "the question is missing"),
    "ids without an answer": ({"prompt_ids": [1], "options_ids": [[1], [2]]}, "which option is right?"),
    "an answer beyond the options": ({**CHOICE, "answer": 2}, "no option"),
    "an answer that is text": ({**CHOICE, "answer": "b"}, "no number"),
    "one option": ({**CHOICE, "options_ids": [[1]], "answer": 0}, "no choice"),
    "ragged options": ({**CHOICE, "options_ids": [[3], 4]}, "options are lists"),
    "an empty option": ({**CHOICE, "options_ids": [[3], []]}, "nothing to predict"),
    "options that are one list": ({**CHOICE, "options_ids": [3, 4]}, "options are lists"),
    "an id twice": ({**GOOD, "id": "a"}, "two rows of one name"),
    "more tokens than positions": ({**GOOD, "prompt_ids": [1] * 3000}, "the model takes 2048"),
    "a million ids": ({**GOOD, "prompt_ids": [1] * 1_000_001}, "more than a question may have"),
}


def bad_tasks() -> dict[str, tuple[Callable[[Any], Any], str]]:
    """Calls of `Task` that cannot be measured."""
    text = {"prompt": "a", "solution": "b"}
    return {
        "from_rows([])": (lambda t: t.from_rows([]), "no rows"),
        "from_rows(5)": (lambda t: t.from_rows(5), "no list"),
        "from_rows(text)": (lambda t: t.from_rows("rows"), "no list"),
        "from_rows(a dict)": (lambda t: t.from_rows(text), "no list"),
        "from_rows([5])": (lambda t: t.from_rows([5]), "no row"),
        "from_rows([[]])": (lambda t: t.from_rows([["a", "b"]]), "no row"),
        "from_rows(keys of numbers)": (lambda t: t.from_rows([{1: "a"}]), "no field"),
        "from_rows(no solution)": (lambda t: t.from_rows([{"prompt": "a"}]), "the answer is missing"),
        "from_rows(an empty solution)": (lambda t: t.from_rows([{"prompt": "a", "solution": ""}]), "nothing to read"),
        "from_rows(a number)": (lambda t: t.from_rows([{"prompt": 5, "solution": "b"}]), "no text"),
        "from_rows(name='')": (lambda t: t.from_rows([text], name=""), "no name"),
        "from_rows(name=5)": (lambda t: t.from_rows([text], name=5), "no name"),
        "from_rows(name='gsm8k')": (lambda t: t.from_rows([text], name="gsm8k"), "another task's"),
        "from_rows(name='a:b')": (lambda t: t.from_rows([text], name="a:b"), "means something else"),
        "from_rows(fields=a missing one)": (lambda t: t.from_rows([text], fields={"prompt": "question"}), "not there"),
        "from_rows(fields=numbers)": (lambda t: t.from_rows([text], fields={"prompt": 5}), "no name"),
        "from_rows(template=a missing file)": (lambda t: t.from_rows([text], template="x.toml"), "nothing there"),
        "from_rows(template=5)": (lambda t: t.from_rows([text], template=5), "no file"),
        "from_rows(template={})": (lambda t: t.from_rows([text], template={}), "no template"),
        "from_rows(train=5)": (lambda t: t.from_rows([text], train=5), "no rows"),
        "from_ids(nothing)": (lambda t: t.from_ids([[1]]), "no answer"),
        "from_ids([])": (lambda t: t.from_ids([], []), "no rows"),
        "from_ids(5, 5)": (lambda t: t.from_ids(5, 5), "no lists"),
        "from_ids(text)": (lambda t: t.from_ids("12", "34"), "no ids"),
        "from_ids(unequal)": (lambda t: t.from_ids([[1], [2]], [[3]]), "a solution is missing"),
        "from_ids(negative)": (lambda t: t.from_ids([[1]], [[-3]]), "ids count from 0"),
        "from_ids(beyond the vocabulary)": (lambda t: t.from_ids([[1]], [[1024]]), "the model has 1024"),
        "from_ids(both)": (lambda t: t.from_ids([[1]], [[2]], options=[[[1], [2]]], answers=[0]), "one or the other"),
        "from_ids(options alone)": (lambda t: t.from_ids([[1]], options=[[[1], [2]]]), "which is right?"),
        "from_ids(ragged options)": (lambda t: t.from_ids([[1]], options=[[[1], 2]], answers=[0]), "options are lists"),
        "from_ids(decode=5)": (lambda t: t.from_ids([[1]], [[2]], decode=5), "no function"),
        "from_ids(decode=print)": (lambda t: t.from_ids([[1]], [[2]], decode=print), "gives no text"),
        "from_ids(decode=too few)": (lambda t: t.from_ids([[1]], [[2]], decode=["a", "b"]), "no text for 2"),
        "from_ids(decode=a dict without it)": (lambda t: t.from_ids([[1]], [[2]], decode={1: "a"}), "no text for 2"),
        "from_ids(decode=fails)": (lambda t: t.from_ids([[1]], [[2]], decode=lambda n: 1 / 0), "the function fails"),
        "from_dataset(a list)": (lambda t: t.from_dataset([text]), "no data set"),
        "from_dataset(no split)": (lambda t: t.from_dataset({"test": []}), "which one?"),
    }  # fmt: skip


def cases() -> Iterator[Case]:
    for name, (fields, why) in BAD_ROWS.items():
        good = row(**(CHOICE if "options_ids" in fields else GOOD), id="a")

        def tasks(place: Place, good: str = good, fields: dict[str, Any] = fields) -> str:
            return f"--tasks={place.file('my.jsonl', good + row(**fields))}"

        yield command(f"ids: {name}", why, *measure(tasks=None, limit=None), model_of, tasks)
    for name, (make, why) in bad_tasks().items():
        yield call(f"Task.{name}", why, lambda p, make=make: task_of(p, make))
    yield from _tokenizers()
    yield from _prompting()
    yield from _lm_eval()
    yield from _near_misses()


def task_of(place: Place, make: Callable[[Any], Any], **more: Any) -> Any:
    import loopscope as ls

    return measured(place, tasks=[make(ls.Task)], limit=None, **more)


def _tokenizers() -> Iterator[Case]:
    files: dict[str, tuple[str, str | bytes]] = {
        "an empty .model": ("x.model", b""),
        "a .model of text": ("x.model", "words"),
        "an empty .json": ("x.json", ""),
        "a .json of something else": ("x.json", '{"a": 1}'),
        "a text file": ("x.txt", "words"),
    }
    for name, (file, content) in files.items():
        yield command(
            f"--tokenizer: {name}",
            "no tokenizer",
            *measure(),
            model_of,
            lambda p, file=file, content=content: f"--tokenizer={p.file(file, content)}",
        )
    yield command("--tokenizer: a missing .model", "no file", *measure(tokenizer="nothing.model"), model_of)
    yield command("--tokenizer: a missing .json", "no file", *measure(tokenizer="nothing.json"), model_of)
    for name, given in {"a list": ["a"], "a function": len, "bytes": b"x"}.items():
        yield call(f"measure(tokenizer={name})", "no tokenizer", lambda p, given=given: measured(p, tokenizer=given))
    yield call(
        "measure(tokenizer=of another model)", "more tokens than embeddings", lambda p: measured(p, tokenizer=wide())
    )


def wide() -> Any:
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel({str(number): number for number in range(600)}, unk_token="0"))


def _prompting() -> Iterator[Case]:
    flags = {"num-fewshot": ("-1", "x", "1.5", "1001", ""), "fewshot-seed": ("-1", "x", "1.5")}
    for flag, values in flags.items():
        for value in values:
            yield command(f"--{flag}={value}", "no such number", *measure(), model_of, f"--{flag}={value}")
    yield command("--fewshot-split alone", "how many?", *measure(fewshot_split="train"), model_of)
    yield command("--fewshot-split of nothing", "no split", *measure(num_fewshot="1", fewshot_split="x"), model_of)
    yield command(
        "--apply-chat-template without one", "the tokenizer has none", *measure(), model_of, "--apply-chat-template"
    )
    yield command(
        "a broken chat template", "no Jinja", *measure(), lambda p: with_chat(p, "{% for %}"), "--apply-chat-template"
    )
    yield command(
        "a chat template that refuses",
        "it says so",
        *measure(),
        lambda p: with_chat(p, "{{ raise_exception('no') }}"),
        "--apply-chat-template",
    )
    yield command(
        "a chat template without end",
        "more than a text may have",
        *measure(),
        lambda p: with_chat(
            p, "{% for a in range(9999) %}{% for b in range(9999) %}{{ 'x' * 99999 }}{% endfor %}{% endfor %}"
        ),
        "--apply-chat-template",
    )
    yield command(
        "few-shot of too few rows",
        "there is one",
        *measure(tasks=None, num_fewshot="2", limit=None),
        model_of,
        lambda p: f"--tasks={p.file('my.jsonl', row(prompt='a', solution='b') * 1)}",
    )
    for given in ({"num_fewshot": 1}, {"apply_chat_template": True}):
        yield call(
            f"token ids with {next(iter(given))}",
            "ids stay as they are",
            lambda p, given=given: task_of(p, lambda t: t.from_ids([[1]], [[2]]), tokenizer=chatting(p), **given),
        )
    for name, value in {
        "num_fewshot": True,
        "fewshot_seed": None,
        "apply_chat_template": "yes",
        "fewshot_split": 5,
    }.items():
        yield call(
            f"measure({name}={value!r})",
            f"no {name}",
            lambda p, name=name, value=value: measured(p, **{"num_fewshot": 1} | {name: value}),
        )


def with_chat(place: Place, template: str) -> str:
    folder = place.own_model()
    (folder / "chat_template.jinja").write_text(template)
    return f"--model={folder}"


def chatting(place: Place) -> Path:
    folder = place.own_model()
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


def _lm_eval() -> Iterator[Case]:
    for name in ("lm_eval:", "lm_eval:nothing.yaml", "lm_eval:folder/nothing.yml"):
        yield command(f"--tasks {name}", "no task", *measure(tasks=name), model_of)
    yield command(
        "lm_eval: with a template",
        "it has its own",
        *measure(tasks="lm_eval:x.yaml"),
        model_of,
        lambda p: f"--template={p.file('t.toml', '')}",
    )


def _near_misses() -> Iterator[Case]:
    good = row(**GOOD) + row(prompt_ids=[0], solution_ids=[511, 0])
    yield command(
        "ids: the first and the last",
        "as many as the model has",
        *measure(tasks=None, limit=None),
        model_of,
        lambda p: f"--tasks={p.file('my.jsonl', good)}",
        accepted=True,
    )
    yield command(
        "ids: options",
        "a choice",
        *measure(tasks=None, limit=None),
        model_of,
        lambda p: f"--tasks={p.file('my.jsonl', row(**CHOICE))}",
        accepted=True,
    )
    yield call(
        "Task.from_ids(without decode)",
        "shown as numbers",
        lambda p: task_of(p, lambda t: t.from_ids([range(1, 3)], ((3,),))),
        accepted=True,
    )
    yield call(
        "Task.from_rows(tuples)",
        "as good as lists",
        lambda p: task_of(p, lambda t: t.from_rows(({"prompt": "a", "options": ("b", "c"), "answer": 1},))),
        accepted=True,
    )
    yield call(
        "Task.from_rows(a generator)",
        "read once",
        lambda p: task_of(p, lambda t: t.from_rows({"prompt": "a", "solution": x} for x in "bc")),
        accepted=True,
    )
    yield command("--num-fewshot=0", "none", *measure(num_fewshot="0"), model_of, accepted=True)
    yield command(
        "--num-fewshot=1",
        "one",
        *measure(num_fewshot="1", tasks=None),
        model_of,
        lambda p: "--tasks=" + p.file("my.jsonl", row(prompt="a", solution="b") + row(prompt="c", solution="d")),
        accepted=True,
    )
    yield command(
        "--apply-chat-template",
        "the template is plain",
        *measure(),
        lambda p: with_chat(p, "{{ messages[0].content }}"),
        "--apply-chat-template",
        accepted=True,
    )
