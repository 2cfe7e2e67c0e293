"""`lm_eval:NAME`: the requests of a task of an installed lm-evaluation-harness, with its own few-shot and wording.

NAME is one of its tasks or a YAML file of a task. Of its output types, `loglikelihood` becomes reference solutions and
`multiple_choice` options. Context and continuation are encoded as its Hugging Face model class does (`encoding`), so
that log-likelihoods are equal to its own on the same model.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from loopscope.errors import LoopscopeError, setting
from loopscope.limits import TimeLimitError, time_limit
from loopscope.tasks.encoding import Kind, LoadedTask, Row, canonical
from loopscope.tasks.prompting import Chat, render_begun
from loopscope.tasks.source_rows import Selection
from loopscope.tasks.template import check_size

PREFIX = "lm_eval:"
MOST_SECONDS = 600.0
"""Of wording the requests of a task: its YAML holds Jinja."""
KINDS: dict[str, Kind] = {"loglikelihood": "solution", "multiple_choice": "options"}


def is_lm_eval(spec: str) -> bool:
    """Whether a specification names a task of lm-evaluation-harness."""
    return spec.startswith(PREFIX)


def lm_eval_name(spec: str) -> str:
    """What records call the task.

    >>> lm_eval_name("lm_eval:arc_easy"), lm_eval_name("lm_eval:tasks/mine.yaml")
    ('lm_eval:arc_easy', 'lm_eval:mine')
    """
    name = spec.removeprefix(PREFIX)
    return PREFIX + (Path(name).stem if name.endswith((".yaml", ".yml")) else name)


class Requests(NamedTuple):
    """A task of lm-evaluation-harness with its requests built.

    Attributes:
        task: that program's own object; `task.instances` are the requests.
        kind: "solution" or "options".
        total: documents of the split.
        chosen: their numbers, where some were chosen by number.
    """

    task: Any
    kind: Kind
    total: int
    chosen: tuple[int, ...] | None


def build_requests(
    spec: str, selection: Selection, num_fewshot: int | None, seed: int, chat: Chat | None, *, forced: bool = False
) -> Requests:
    """The requests of the chosen documents; `forced` takes a number of examples that the task itself refuses."""
    task = find_task(spec.removeprefix(PREFIX))
    kind = KINDS.get(str(task.OUTPUT_TYPE))
    if kind is None:
        there = " and ".join(KINDS)
        raise LoopscopeError(f"{spec} has the output type {task.OUTPUT_TYPE}: loopscope reads those of {there}")
    own = task.get_config("num_fewshot")
    if not forced and own == 0 and num_fewshot not in (None, 0):
        # As that program's own command does: a task that says 0 itself keeps it.
        given = setting("num_fewshot", num_fewshot)
        raise LoopscopeError(f"{spec} says itself that it takes no examples: leave out {given}")
    task.set_config(key="num_fewshot", value=num_fewshot if num_fewshot is not None or forced else own or 0)
    task.set_fewshot_seed(seed=seed)
    with _one_line(spec):
        total = len(task.eval_docs)
    selection.check(total, spec)
    chosen = None if selection.ids is None else tuple(sorted(selection.ids)[: selection.limit])

    def render(messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        assert chat is not None
        return chat.render(messages) if add_generation_prompt else render_begun(chat, messages)

    with _one_line(spec), time_limit(MOST_SECONDS):
        task.build_all_requests(
            limit=selection.limit if chosen is None else None,
            samples=None if chosen is None else list(chosen),
            apply_chat_template=chat is not None,
            fewshot_as_multiturn=chat is not None,
            chat_template=render if chat is not None else None,
        )
    return Requests(task, kind, total, chosen)


def load_requests(spec: str, selection: Selection, num_fewshot: int | None, seed: int, chat: Chat | None) -> LoadedTask:
    """The chosen documents of a task, as rows.

    Args:
        spec: "lm_eval:NAME".
        selection: which documents.
        num_fewshot: examples before a question; None is what the task itself says.
        seed: what they are drawn from.
        chat: the chat template, where the requests are to be conversations.
    """
    requests = build_requests(spec, selection, num_fewshot, seed, chat)
    config = requests.task.config
    split = str(config.test_split or config.validation_split or "test")
    with _one_line(spec):
        rows = tuple(_rows(requests, split))
    digest = hashlib.sha256()
    for row in rows:
        check_size(sum(len(row.context) + len(text) for text in row.texts), f"{spec}, question {row.id}")
        digest.update(canonical([row.source_row, row.context, row.pairs, row.answer]) + b"\n")
    wording = ["lm_eval", config.num_fewshot, seed, None if chat is None else chat.sha256]
    return LoadedTask(
        name=lm_eval_name(spec),
        spec=spec,
        kind=requests.kind,
        split=split,
        source=f"lm_eval {version('lm_eval')}",
        source_rows=requests.total,
        data_hash=digest.hexdigest(),
        template=spec,
        template_hash=hashlib.sha256(canonical(wording)).hexdigest(),
        encoding="harness",
        rows=rows,
    )


@cache
def _manager(defaults: bool) -> Any:
    """Its index of tasks; that of all its own reads thousands of files."""
    from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]

    return TaskManager(include_defaults=defaults)


def find_task(name: str) -> Any:
    """The task object of lm-evaluation-harness.

    Raises:
        LoopscopeError: it is not installed, has no such task, or cannot have its data.
    """
    if not name:
        raise LoopscopeError(f"{PREFIX} names no task after its colon; write e.g. {PREFIX}arc_easy")
    is_file = name.endswith((".yaml", ".yml"))
    if is_file and not os.path.isfile(name):
        raise LoopscopeError(f"{PREFIX}{name}: the file {name} does not exist; check the path")
    try:
        with _quiet():
            import lm_eval.tasks  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise LoopscopeError(
            f"{PREFIX}{name} needs lm-evaluation-harness: pip install '.[lm-eval]' in loopscope's folder"
        ) from error
    with _one_line(PREFIX + name):
        manager = _manager(not is_file)
    if not is_file and name not in manager.all_subtasks:
        if name in manager.all_tasks:
            raise LoopscopeError(f"{PREFIX}{name} is a group of tasks: name its tasks one by one")
        near = difflib.get_close_matches(name, manager.all_subtasks, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "`lm_eval ls tasks` lists them"
        raise LoopscopeError(f"lm-evaluation-harness has no task {name!r}: {hint}")
    with _one_line(PREFIX + name):
        tasks = manager.load([name])["tasks"]
    if len(tasks) != 1:
        raise LoopscopeError(f"{PREFIX}{name} is {len(tasks)} tasks: name them one by one")
    return next(iter(tasks.values()))


def _rows(built: Requests, split: str) -> Iterator[Row]:
    task, chosen = built.task, built.chosen
    for place, group in groupby(task.instances, key=lambda instance: instance.doc_id):
        requests = list(group)
        number = place if chosen is None else chosen[place]
        name, doc = f"{split}-{number}", requests[0].doc
        pairs = [request.args for request in requests]
        if any(len(pair) != 2 or not all(isinstance(text, str) for text in pair) for pair in pairs):
            raise LoopscopeError(f"question {name} is not made of texts alone")
        if built.kind == "solution":
            ((context, continuation),) = pairs
            yield Row(name, number, context, (continuation,))
            continue
        choices = task.doc_to_choice(doc)
        # Further requests score the options without the question, for another metric.
        pairs = pairs[: len(choices)]
        answer = _answer(task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc), choices, name)
        contexts, continuations = zip(*pairs, strict=True)
        shared = os.path.commonprefix(contexts)  # noqa: RUF071
        leads = tuple(context[len(shared) :] for context in contexts)
        yield Row(name, number, shared, continuations, answer, leads=leads if any(leads) else ())


def _answer(gold: Any, choices: Sequence[str], name: str) -> int:
    if isinstance(gold, list):
        if len(gold) != 1:
            raise LoopscopeError(f"question {name} has {len(gold)} right options; loopscope measures one")
        (gold,) = gold
    if isinstance(gold, str):
        gold = choices.index(gold) if gold in choices else -1
    if not isinstance(gold, int) or not 0 <= gold < len(choices):
        raise LoopscopeError(f"question {name} has no right option among its {len(choices)}")
    return int(gold)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars and warnings of what is being imported or fetched."""
    import warnings

    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _one_line(spec: str) -> Iterator[None]:
    """That program's own errors in one line; most of them are data that cannot be had."""
    try:
        with _quiet():
            yield
    except LoopscopeError as error:
        raise LoopscopeError(f"{spec}: {error}") from error
    except TimeLimitError as error:
        raise LoopscopeError(f"{spec} takes more than {MOST_SECONDS:g} seconds to word its requests") from error
    except Exception as error:  # what a task's file and its data set may raise is anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:240]
        raise LoopscopeError(
            f"lm-evaluation-harness cannot prepare {spec} ({reason}); its data comes from the hub or from files that"
            " its YAML names: is there a network, or a cached copy?"
        ) from error
