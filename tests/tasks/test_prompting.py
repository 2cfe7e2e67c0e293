"""Few-shot examples and chat templates: what stands before a question, in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

import loopscope as ls
from loopscope import load_tokenizer
from loopscope.models.registry import EMBEDDED

ROWS = [{"prompt": f"{n} plus {n} is\n", "solution": f"{2 * n}."} for n in range(8)]
CHOICES = [{"prompt": f"{n} plus 1 is", "options": [str(n + 1), "none"], "answer": n % 2} for n in range(6)]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def fast() -> Any:
    made = PreTrainedTokenizerFast(
        tokenizer_file=str(EMBEDDED / "toy-ouro" / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    made.chat_template = TEMPLATE
    return made


def test_examples_stand_before_the_question_as_written() -> None:
    train = [{"prompt": "1 plus 2 is\n", "solution": "3."}]
    (row, *_) = ls.load_task(ls.Task.from_rows(ROWS, train=train), num_fewshot=1).rows
    assert row.context == "1 plus 2 is\n3.\n\n0 plus 0 is\n"
    assert row.continuations == ("0.",)


def test_an_option_task_shows_the_right_option() -> None:
    train = [{"prompt": "5 plus 5 is", "options": ["9", "10", "11"], "answer": 1}]
    (row, *_) = ls.load_task(ls.Task.from_rows(CHOICES, train=train), num_fewshot=1).rows
    assert row.context == "5 plus 5 is 10\n\n0 plus 1 is"
    assert row.continuations == (" 1", " none")


def test_never_the_question_itself_and_the_same_examples_whatever_is_chosen() -> None:
    task = ls.Task.from_rows([*ROWS, {"prompt": ROWS[3]["prompt"], "solution": "other."}])
    loaded = ls.load_task(task, num_fewshot=4)
    seen = set()
    for row in loaded.rows:
        *examples, question = row.context.split("\n\n")
        assert len(set(examples)) == 4
        assert not any(example.startswith(question) for example in examples)
        seen.add(tuple(examples))
    assert len(seen) > 4, "each question has its own"
    chosen = ls.load_task(task, num_fewshot=4, ids=[5, 7])
    assert [row.context for row in chosen.rows] == [loaded.rows[5].context, loaded.rows[7].context]
    other = ls.load_task(task, num_fewshot=4, fewshot_seed=1)
    assert [row.context for row in other.rows] != [row.context for row in loaded.rows]
    assert len({loaded.template_hash, other.template_hash, ls.load_task(task).template_hash}) == 3
    assert loaded.data_hash == other.data_hash


def test_examples_of_an_embedded_task_come_from_its_train_split() -> None:
    (row,) = ls.load_task("arithmetic", limit=1, num_fewshot=2).rows
    train = {row.context for row in ls.load_task("arithmetic:train", limit=10_000).rows}
    *examples, question = row.context.split("\n\nProblem: ")
    assert len(examples) == 2
    assert all(any(f"Problem: {e.removeprefix('Problem: ')}".startswith(t) for t in train) for e in examples)
    assert ls.load_task("arithmetic", limit=1).rows[0].context == f"Problem: {question}"


def test_examples_of_a_file(tmp_path: Path) -> None:
    for name, rows in (("a", ROWS), ("b", [{"prompt": "b\n", "solution": "B"}])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = ls.load_task(str(tmp_path / "a.jsonl"), num_fewshot=2)
    assert own.rows[0].context.count("plus") == 3
    other = ls.load_task(str(tmp_path / "a.jsonl"), num_fewshot=1, fewshot_split=str(tmp_path / "b.jsonl"))
    assert other.rows[0].context == "b\nB\n\n0 plus 0 is\n"


@pytest.mark.parametrize("shots", [0, 2])
def test_chat_agrees_with_transformers(fast: Any, shots: int) -> None:
    """Ids of the prompt are those of transformers' own `apply_chat_template`, tokenized by itself."""
    tokenizer = load_tokenizer(fast)
    train = [{"prompt": f"{n} times 2 is", "options": ["no", str(2 * n)], "answer": 1} for n in range(2)]
    task = ls.load_task(ls.Task.from_rows(CHOICES, train=train), num_fewshot=shots, chat=tokenizer.chat_template)
    for row, source, example in zip(task.rows, CHOICES, task.encode(tokenizer), strict=True):
        examples = row.context.split("<|user|>")[1:-1]
        drawn = [next(t for t in train if e.startswith(t["prompt"])) for e in examples]
        messages = [
            {"role": role, "content": text}
            for t in drawn
            for role, text in (("user", t["prompt"]), ("assistant", t["options"][1]))
        ]
        messages.append({"role": "user", "content": source["prompt"]})
        assert len(drawn) == shots
        assert row.context == fast.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = fast.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        for sequence, option in zip(example.sequences, source["options"], strict=True):
            assert list(sequence.token_ids[: len(ids)]) == ids
            assert tokenizer.decode(sequence.targets) == option
            assert sequence.positions[0] == len(ids) - 1


def test_a_chat_adds_no_second_beginning(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import processors

    backend = Backend.from_file(str(EMBEDDED / "toy-ouro" / "tokenizer.json"))
    backend.add_special_tokens(["<s>"])
    begin = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    tokenizer = load_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>",
                                                       chat_template=TEMPLATE))  # fmt: skip
    plain = next(ls.load_task(ls.Task.from_rows(ROWS)).encode(tokenizer)).sequences[0].token_ids
    chat = next(ls.load_task(ls.Task.from_rows(ROWS), chat=tokenizer.chat_template).encode(tokenizer))
    assert plain.count(begin) == 1
    assert chat.sequences[0].token_ids.count(begin) == 1


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (lambda: ls.Task.from_rows(ROWS[:2]), {"num_fewshot": 2}, "only 1 other rows for question row-0"),
        (lambda: ls.Task.from_rows(ROWS), {"num_fewshot": 1, "fewshot_split": "test"}, "has no split 'test'"),
        (lambda: ls.Task.from_ids([[1]], [[2]]), {"num_fewshot": 1}, "token ids, which stay as they are"),
        (lambda: "arithmetic", {"num_fewshot": 1, "limit": 1, "fewshot_split": "none"}, "no split 'none' for examples"),
    ],
)
def test_what_is_refused(make: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ls.LoopscopeError, match=said):
        ls.load_task(make(), **options)


def test_a_benchmark_without_train_rows_says_so(data_dir: Path) -> None:
    with pytest.raises(ls.LoopscopeError, match=r"piqa has no split 'train' for examples.*fewshot_split=.*validation"):
        ls.load_task("piqa", data_dir=data_dir, limit=1, num_fewshot=1)
    (row,) = ls.load_task("piqa", data_dir=data_dir, limit=1, num_fewshot=1, fewshot_split="validation").rows
    assert row.context.count("Question:") == 2
