from __future__ import annotations

from typing import Any

import pytest

from loopscope.errors import LoopscopeError
from loopscope.tasks.known_tasks import BENCHMARKS
from loopscope.tasks.load import TextRows
from loopscope.tasks.source_rows import Item, SourceRow
from loopscope.tasks.template import builtin_template


def normalised(name: str, row: SourceRow) -> Item:
    return BENCHMARKS[name].read(row, "x")


def row(**fields: Any) -> SourceRow:
    return SourceRow(6, "x.jsonl, line 7", fields)


def same(first: Item, second: Item) -> bool:
    return (first.fields, first.options, first.answer) == (second.fields, second.options, second.answer)


CHOICES = {"label": ["A", "B", "C"], "text": ["red", "green", "blue"]}
HELLASWAG = {"activity_label": "Dyeing", "ctx_a": "She stirs.", "ctx_b": "", "endings": ["a", "b", "c", "d"]}
PIQA = {"goal": "dye wool", "sol1": "stir", "sol2": "shake"}
BOOLQ = {"passage": "Wool is dyed.", "question": "is wool dyed"}


def test_gsm8k_keeps_the_answer_as_published() -> None:
    answer = "4+4=<<4+4=8>>8 \n#### 8"
    item = normalised("gsm8k", row(question="How many?", answer=answer))
    assert item.fields == {"question": "How many?", "solution": answer}
    assert item.answer is None
    assert item.index == 6


def test_math500_takes_the_solution_and_not_the_boxed_answer() -> None:
    item = normalised("math500", row(problem="x?", solution="So $\\boxed{2}$.", answer="2", unique_id="test/a/1.json"))
    assert item.fields == {"problem": "x?", "solution": "So $\\boxed{2}$."}
    assert item.metadata == {"source_id": "test/a/1.json"}


def test_hellaswag_labels_as_number_and_as_text_are_the_same() -> None:
    assert same(
        normalised("hellaswag", row(**HELLASWAG, label=3)), normalised("hellaswag", row(**HELLASWAG, label="3"))
    )


def test_arc_with_letters_and_with_numbers_is_the_same() -> None:
    letters = normalised("arc_challenge", row(question="Hue?", choices=CHOICES, answerKey="B"))
    numbers = normalised(
        "arc_challenge", row(question="Hue?", choices={**CHOICES, "label": ["1", "2", "3"]}, answerKey="2")
    )
    assert same(letters, numbers)
    assert letters.answer == 1
    assert letters.options == ("red", "green", "blue")


def test_commonsense_qa_flat_and_nested_is_the_same() -> None:
    listed = [{"label": label, "text": text} for label, text in zip(CHOICES["label"], CHOICES["text"], strict=True)]
    nested = row(question={"stem": "Hue?", "choices": listed}, answerKey="C", id="q1")
    flat = row(question="Hue?", choices=CHOICES, answerKey="C", id="q1")
    assert same(normalised("commonsense_qa", nested), normalised("commonsense_qa", flat))


def test_boolq_answer_and_label_are_the_same() -> None:
    assert same(normalised("boolq", row(**BOOLQ, answer=True)), normalised("boolq", row(**BOOLQ, label=1)))
    assert normalised("boolq", row(**BOOLQ, answer=False)).answer == 0


@pytest.mark.parametrize(
    ("function", "fields", "complaint"),
    [
        ("gsm8k", {"question": "q"}, "field 'solution' is missing; the row has: question"),
        ("gsm8k", {"question": "q", "answer": " \n"}, "field 'solution' is empty"),
        ("gsm8k", {"question": "q", "answer": "a\ud83d"}, r"field 'solution' holds a broken character \(\\ud83d\)"),
        ("hellaswag", {**HELLASWAG, "endings": ["a", "\ude00"], "label": 0}, "'endings' holds a broken character"),
        ("gsm8k", {"question": 3, "answer": "a"}, "field 'question' must be text, not a number"),
        ("hellaswag", {**HELLASWAG, "label": 4}, r"field 'label' is 4, but the row has 4 options \(0 to 3\)"),
        ("hellaswag", {**HELLASWAG, "label": True}, "not true/false"),
        ("hellaswag", {**HELLASWAG, "endings": [], "label": 0}, "field 'endings' has 0 entries"),
        ("hellaswag", {**HELLASWAG, "endings": ["a", " "], "label": 0}, "option 1 of 'endings' is empty"),
        ("hellaswag", {**HELLASWAG, "endings": "a", "label": 0}, "must be a list of texts, not text"),
        ("boolq", {**BOOLQ, "answer": "yes"}, "must be the number of the right option"),
        ("arc_challenge", {"question": "q", "choices": CHOICES, "answerKey": "D"}, "answer 'D' is not one of"),
        ("arc_challenge", {"question": "q", "choices": "A", "answerKey": "A"}, "must hold 'label' and 'text'"),
        (
            "arc_challenge",
            {"question": "q", "choices": {"label": ["A", "B"], "text": ["a", "b", "c"]}, "answerKey": "A"},
            "3 choices with the labels A, B",
        ),
        (
            "arc_challenge",
            {"question": "q", "choices": [{"label": "A"}] * 2, "answerKey": "A"},
            "'choices.text' must be a list",
        ),
        ("arc_challenge", {"question": "q", "choices": CHOICES, "answerKey": "A", "id": "\ud800"}, "broken character"),
    ],
)
def test_a_bad_row_names_its_place(function: str, fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(LoopscopeError, match=f"^x.jsonl, line 7: .*{complaint}"):
        normalised(function, row(**fields))


def test_the_data_hash_covers_what_is_asked_and_what_is_right() -> None:
    def hashed(*rows: SourceRow) -> str:
        reader = TextRows(builtin_template("piqa"), lambda row: normalised("piqa", row))
        for each in rows:
            reader.read(each)
        return reader.data_hash

    one, again = row(**PIQA, label=0), SourceRow(6, "elsewhere", {**PIQA, "label": "0", "extra": 1})
    assert hashed(one) == hashed(again)
    others = row(**PIQA, label=1), row(**{**PIQA, "sol2": "spin"}, label=0)
    assert len({hashed(one), *map(hashed, others), hashed(one, again)}) == 4
