"""Source rows of the seven benchmarks as normalised questions: one function a benchmark.

Copies name the same things differently (the hub stores HellaSwag's label as text, older CommonsenseQA files nest
the question under a stem): what comes out is the same for all of them.
"""

from __future__ import annotations

from typing import Any

from loopscope._errors import LoopscopeError
from loopscope.tasks.fields import check_texts, key_index, kind, option_index, text, texts, value
from loopscope.tasks.item import Item
from loopscope.tasks.rows import Row


def gsm8k(row: Row) -> Item:
    """`answer` is the whole published solution, calculator marks (<<…>>) and the `####` line included."""
    return Item(row.index, row.where, {"question": text(row, "question"), "solution": text(row, "answer", "solution")})


def math500(row: Row) -> Item:
    """`solution` is the whole published derivation; `answer` (its boxed end) is not used."""
    fields = {"problem": text(row, "problem", "question"), "solution": text(row, "solution")}
    return Item(row.index, row.where, fields, id=_id(row, "unique_id"))


def hellaswag(row: Row) -> Item:
    """Four endings; `ctx_b` is empty in the WikiHow half."""
    fields = {
        "activity_label": text(row, "activity_label"),
        "ctx_a": text(row, "ctx_a"),
        "ctx_b": text(row, "ctx_b", empty=True),
    }
    endings = texts(row, "endings")
    answer = option_index(row, value(row, "label"), len(endings), "label")
    return Item(row.index, row.where, fields, endings, answer)


def arc(row: Row) -> Item:
    """Three to five options with letters or numbers for labels."""
    question, labels, options = _question_with_choices(row)
    answer = key_index(row, text(row, "answerKey"), labels)
    return Item(row.index, row.where, {"question": question}, options, answer, _id(row, "id"))


def commonsense_qa(row: Row) -> Item:
    """Five lettered options."""
    return arc(row)


def piqa(row: Row) -> Item:
    """Two solutions of one goal."""
    options = (text(row, "sol1"), text(row, "sol2"))
    answer = option_index(row, value(row, "label"), 2, "label")
    return Item(row.index, row.where, {"goal": text(row, "goal")}, options, answer)


def boolq(row: Row) -> Item:
    """A yes/no question about a passage; option 0 is no, option 1 is yes."""
    found = value(row, "answer", "label")
    if not isinstance(found, bool) and found not in (0, 1):
        raise LoopscopeError(f"{row.where}: field 'answer' must be true or false, not {kind(found)}")
    fields = {"passage": text(row, "passage"), "question": text(row, "question")}
    return Item(row.index, row.where, fields, ("no", "yes"), int(found))


def _question_with_choices(row: Row) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    question = value(row, "question")
    if isinstance(question, dict):
        nested = Row(row.index, row.where, question)
        return text(nested, "stem"), *_choices(nested)
    return text(row, "question"), *_choices(row)


def _choices(row: Row) -> tuple[tuple[str, ...], tuple[str, ...]]:
    choices: Any = value(row, "choices")
    if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
        choices = {key: [choice.get(key) for choice in choices] for key in ("label", "text")}
    if not isinstance(choices, dict):
        raise LoopscopeError(f"{row.where}: field 'choices' must hold 'label' and 'text', not {kind(choices)}")
    nested = Row(row.index, row.where, choices)
    labels = check_texts(row, "choices.label", value(nested, "label"))
    options = check_texts(row, "choices.text", value(nested, "text"))
    if len(labels) != len(options):
        raise LoopscopeError(f"{row.where}: {len(labels)} choice labels for {len(options)} choice texts")
    return labels, options


def _id(row: Row, name: str) -> str | None:
    found = row.fields.get(name)
    return None if found is None else str(found)
