from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.tasks.known_tasks import BENCHMARKS
from loopscope.tasks.source_rows import Item
from loopscope.tasks.template import (
    MOST_TEMPLATE_BYTES,
    Wording,
    builtin_template,
    clean,
    parse_template,
    read_template,
)


def item(options: tuple[str, ...] = (), answer: int | None = None, **fields: str) -> Item:
    return Item(4, "mine.jsonl, line 5", fields, options, answer, "row-4")


def test_a_solution_is_kept_whole() -> None:
    solution = "It is 2*3=<<2*3=6>>6.\n#### 6"
    row = builtin_template("gsm8k").word(item(question="How many?", solution=solution))
    assert row.context == "Question: How many?\nAnswer:\n"
    assert row.continuations == (solution,)
    assert (row.id, row.source_row, row.answer) == ("row-4", 4, None)


def test_hellaswag_brackets_go_and_the_second_half_is_capitalised() -> None:
    row = builtin_template("hellaswag").word(
        item(
            (" [substeps] dry it.", "fold  it [title] away"),
            1,
            activity_label="Washing",
            ctx_a="Wet it.",
            ctx_b="she IS",
        )
    )
    assert row.context == "Washing: Wet it. She is"
    assert row.continuations == ("  dry it.", " fold it. away")


@pytest.mark.parametrize(
    ("name", "fields", "options", "context", "continuations"),
    [
        ("hellaswag", {"activity_label": "A", "ctx_a": "b.", "ctx_b": ""}, ("c",), "A: b.", (" c",)),
        (
            "commonsense_qa",
            {"question": " Where? "},
            ("bed", "sea", "sky"),
            "Question: Where?\nA. bed\nB. sea\nC. sky\nAnswer:",
            (" A", " B", " C"),
        ),
        ("boolq", {"passage": "P.", "question": "q"}, ("no", "yes"), "P.\nQuestion: q?\nAnswer:", (" no", " yes")),
        ("arc_challenge", {"question": "Why?"}, ("one", "two"), "Question: Why?\nAnswer:", (" one", " two")),
        ("piqa", {"goal": "Why?"}, ("one", "two"), "Question: Why?\nAnswer:", (" one", " two")),
    ],
)
def test_the_wording_of_options(
    name: str, fields: dict[str, str], options: tuple[str, ...], context: str, continuations: tuple[str, ...]
) -> None:
    row = builtin_template(name).word(item(options, 0, **fields))
    assert (row.context, row.continuations, row.answer) == (context, continuations, 0)


def test_blanks_and_line_ends_after_an_options_context_go_to_the_options() -> None:
    row = builtin_template("own_options").word(item(("a",), 0, context="Say \n "))
    assert row.context == "Say"
    assert row.continuations == (" \n  a",)


def test_every_benchmark_has_a_template_of_its_kind() -> None:
    for name, benchmark in BENCHMARKS.items():
        assert builtin_template(name).kind == benchmark.kind


def test_the_hash_depends_on_the_wording_and_not_on_comments(tmp_path: Path) -> None:
    lines = [f"{key} = {json.dumps(text)}" for key, text in builtin_template("piqa").content.items()]
    (tmp_path / "same.toml").write_text("\ufeff# mine\n" + "\n".join(reversed(lines)))  # after a byte-order mark
    (tmp_path / "other.toml").write_text("\n".join(lines).replace("Answer:", "Reply:"))
    original = builtin_template("piqa").hash
    assert read_template(tmp_path / "same.toml").hash == original
    assert read_template(tmp_path / "other.toml").hash != original


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({}, "'kind' must be"),
        ({"kind": "poem"}, "'kind' must be"),
        ({"kind": [1]}, "'kind' must be"),
        ({"kind": {"a": 1}}, "'kind' must be"),
        (
            {"kind": "options", "context": "x", "clean": [{"pattern": "a", "with": "\\9"}]},
            "is not a regular expression",
        ),
        ({"kind": "solution", "prompt": "{a}"}, "'solution' is missing"),
        ({"kind": "options"}, "'context' is missing"),
        ({"kind": "options", "context": "{a}", "prompt": "x"}, "unknown key 'prompt'"),
        ({"kind": "options", "context": 3}, "'context' must be a text"),
        ({"kind": "options", "context": "x", "options": "no"}, "'options' must be a list"),
        ({"kind": "options", "context": "x", "options": ["", "a"]}, "'options' must be a list of non-empty texts"),
        ({"kind": "options", "context": "x", "option": "{question}"}, r"names \{question\}"),
        ({"kind": "options", "context": "x", "clean": [{"cut": 1}]}, "clean step"),
        ({"kind": "solution", "prompt": "{a", "solution": "x"}, "not a template"),
    ],
)
def test_a_bad_template_is_refused(content: dict, complaint: str) -> None:
    with pytest.raises(LoopscopeError, match=complaint) as caught:
        parse_template(content, "mine.toml")
    assert "mine.toml" in str(caught.value)


def test_unreadable_template_files(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("kind = ")
    (tmp_path / "latin.toml").write_bytes(b'kind = "\xe9"')
    (tmp_path / "deep.toml").write_text("kind = " + "[" * 20_000)
    (tmp_path / "digits.toml").write_text("kind = " + "9" * 5000)
    (tmp_path / "large.toml").write_bytes(b"#" * (MOST_TEMPLATE_BYTES + 1))
    os.mkfifo(tmp_path / "pipe.toml")
    for name, complaint in [
        ("deep.toml", "not TOML"),
        ("digits.toml", "not TOML"),
        ("large.toml", "is larger than 65536 bytes"),
        ("pipe.toml", "is a pipe or a device"),
        ("absent.toml", "does not exist"),
        ("bad.toml", "not TOML"),
        ("latin.toml", "not UTF-8"),
    ]:
        with pytest.raises(LoopscopeError, match=complaint):
            read_template(tmp_path / name)


def test_nothing_before_or_in_the_answer_is_an_error() -> None:
    with pytest.raises(LoopscopeError, match="line 5: nothing stands before the answer"):
        builtin_template("own_options").word(item(("a",), 0, context=" \n"))
    with pytest.raises(LoopscopeError, match="line 5: the answer is empty"):
        builtin_template("own_solution").word(item(prompt="a", solution=" \n"))
    with pytest.raises(LoopscopeError, match="line 5: the answer is empty"):
        builtin_template("hellaswag").word(item(("[header]", "b"), 0, activity_label="a", ctx_a="b", ctx_b=""))


def test_a_question_is_bounded_with_its_context_once_an_option() -> None:
    template = builtin_template("own_options")
    template.word(item(("a", "b"), 0, context="x" * 400_000))
    with pytest.raises(LoopscopeError, match=r"line 5: 1200006 characters as worded.* at most 1000000"):
        template.word(item(("a", "b", "c"), 0, context="x" * 400_000))
    many = parse_template({"kind": "solution", "prompt": "{a!c}" * 10_000, "solution": "{a}"}, "t")
    with pytest.raises(LoopscopeError, match="at most 1000000"):
        many.word(item(a="x" * 500_000))


def test_fixed_options_must_be_as_many_as_the_rows() -> None:
    with pytest.raises(LoopscopeError, match="names 2 options for a row that has 3"):
        builtin_template("boolq").word(item(("a", "b", "c"), 0, passage="p", question="q"))


def test_steps_run_in_the_order_given() -> None:
    first, second = {"replace": "a", "with": "b"}, {"replace": "b", "with": "c"}
    assert clean("ab", [first, second]) == "cc"
    assert clean("ab", [second, first]) == "bc"
    assert clean("x [title] y", [{"replace": " [title]", "with": ". "}]) == "x.  y"


@pytest.mark.parametrize(
    "step",
    ["trim", {"trim": False}, {"replace": "a"}, {"replace": "", "with": "b"}, {"pattern": 1, "with": ""}, 1,
     {"pattern": "[", "with": ""}],
)  # fmt: skip
def test_an_unknown_step_or_a_bad_pattern_is_refused(step: Any) -> None:
    with pytest.raises(LoopscopeError, match="template x"):
        parse_template({"kind": "options", "context": "{a}", "clean": [step]}, "x")


@given(st.text(), st.text())
def test_values_go_in_as_they_are(first: str, second: str) -> None:
    filled = Wording("<{a}|{b}>{{}}").fill({"a": first, "b": second}, "row")
    assert filled == f"<{first}|{second}>{{}}"


@given(st.text())
def test_conversions_trim_and_capitalise(value: str) -> None:
    assert Wording("{a!t}").fill({"a": value}, "row") == value.strip()
    assert Wording("{a!c}").fill({"a": value}, "row") == value.capitalize()


def test_a_missing_field_names_the_row_and_what_there_is() -> None:
    with pytest.raises(LoopscopeError, match=r"x\.jsonl, line 3: field 'b' is missing.*there is: a, c"):
        Wording("{b}").fill({"a": "", "c": ""}, "x.jsonl, line 3")


@pytest.mark.parametrize("text", ["{a.b}", "{a[0]}", "{}", "{0}", "{a:>10}", "{a!r}", "{a", "a}", "{__class__.x}"])
def test_anything_but_a_plain_field_is_refused(text: str) -> None:
    with pytest.raises(LoopscopeError, match="mine"):
        Wording(text, "mine")
