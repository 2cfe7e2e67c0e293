"""`reference="own"`: own answers against greedy decoding written out, own options against stored choices."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import loopscope as ls
from loopscope.errors import LoopscopeError
from loopscope.measuring.own_answers import OwnAnswers
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.settings import BatchPolicy, Settings
from loopscope.models.load import load_model
from loopscope.models.tokenizer import load_tokenizer
from loopscope.models.walk import Walk
from loopscope.store import StoredRun
from loopscope.tasks.load import load_task

TRAINED = 4
"""Loops of the small checkpoints."""


def greedy(model: Any, prompt: tuple[int, ...], count: int, source_row: int) -> list[int]:
    """The whole sequence again for every token."""
    from loopscope.models.batch import Batch

    ids = list(prompt)
    for _ in range(count):
        batch = Batch.from_rows([ids], source_rows=[source_row], prompt_lengths=[len(prompt)])
        with torch.no_grad():
            logits = Walk.of(model, batch).to(TRAINED).read()
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def questions(folder: str, limit: int, task: str = "arithmetic") -> list[Any]:
    loaded = load_task(task, limit=limit)
    return QuestionEncoder(load_tokenizer(folder), None, "error", spans=True).questions(loaded, loaded.rows, 0)


@pytest.mark.parametrize("family", ["ouro", "huginn"])
def test_an_own_answer_is_the_greedy_continuation_at_the_trained_depth(family: str, checkpoint: Any):
    model: Any = load_model(checkpoint(family), device="cpu")
    model.eos_ids = ()
    given = questions(checkpoint(family), 2)
    settings = Settings((2,), (2, 3))
    for old, new in zip(given, OwnAnswers(model, load_tokenizer(checkpoint(family)), settings)(given), strict=True):
        before, after = old.example.sequences[0], new.example.sequences[0]
        prompt = before.token_ids[: before.positions[0] + 1]
        assert len(after.targets) == len(before.targets)
        assert list(after.targets[:12]) == greedy(model, prompt, min(12, len(after.targets)), old.example.source_row)
        assert (after.token_ids[: len(prompt)], after.positions) == (prompt, before.positions)
        assert new.text.texts == [load_tokenizer(checkpoint(family)).decode(after.targets)]
        assert new.spans is not None
        assert new.spans[0][-1].end == len(new.text.texts[0])
        assert new.example.metadata["own_answer_ended"] is False


def test_an_answer_ends_with_the_first_end_of_text(checkpoint: Any):
    model: Any = load_model(checkpoint("ouro"), device="cpu")
    given, tokenizer = questions(checkpoint("ouro"), 3), load_tokenizer(checkpoint("ouro"))
    settings = Settings((2,), (2, 3), batch=BatchPolicy("questions", 2))
    model.eos_ids = ()
    whole = [list(q.example.sequences[0].targets) for q in OwnAnswers(model, tokenizer, settings)(given)]
    stop = whole[0][2]
    model.eos_ids = (stop,)
    for full, cut in zip(whole, OwnAnswers(model, tokenizer, settings)(given), strict=True):
        expected = full[: full.index(stop) + 1] if stop in full else full
        assert list(cut.example.sequences[0].targets) == expected
        assert cut.example.metadata["own_answer_ended"] is (stop in full)


def test_prompts_and_answers_fit_into_the_positions_together(checkpoint: Any):
    model: Any = load_model(checkpoint("ouro"), device="cpu")
    found = [q.example.sequences[0] for q in questions(checkpoint("ouro"), 8)]
    whole = [len(s.token_ids) for s in found]
    # Two of which one has the longer prompt and the other the longer answer: both in one batch would not fit.
    first, second = next(
        (i, j) for i in range(8) for j in range(8)
        if found[i].positions[0] + 1 + len(found[j].targets) > max(whole[i], whole[j])
    )  # fmt: skip
    given = [questions(checkpoint("ouro"), 8)[place] for place in (first, second)]
    tokenizer, settings = load_tokenizer(checkpoint("ouro")), Settings((2,), (2, 3))
    free = OwnAnswers(model, tokenizer, settings)(given)
    model.max_positions = max(whole[first], whole[second])
    tight = OwnAnswers(model, tokenizer, settings)(given)
    assert [q.example.sequences for q in tight] == [q.example.sequences for q in free]


def test_every_own_token_is_the_likeliest_at_the_trained_depth(measured: Any, checkpoint: Any):
    run = measured("ouro", "arithmetic", limit=2, transitions=[TRAINED], depths="", tokens=True, reference="own")
    model: Any = load_model(checkpoint("ouro"), device="cpu")
    for example in run.examples.to_dicts():
        rows = run.tokens.filter(pl.col("row") == example["row"]).sort("token").collect()
        assert rows.height == example["n_tokens"]
        # The likeliest token has a probability of at least one in as many as there are.
        assert (rows["utility_before"] >= -np.log(model.vocabulary_size)).all()


def test_own_options_are_those_chosen_at_the_trained_depth(measured: Any):
    given = measured("ouro", "arithmetic-mc", limit=6, transitions=[TRAINED], depths="", level="quick")
    own = measured("ouro", "arithmetic-mc", limit=6, transitions=[TRAINED], depths="", level="quick", reference="own")
    chosen = given.depths.filter(pl.col("depth") == TRAINED).sort("row")["chosen_option"].to_list()
    assert own.examples.sort("row")["correct_option"].to_list() == chosen
    right = given.examples.sort("row")["correct_option"].to_list()
    assert [json.loads(text)["given_option"] for text in own.examples.sort("row")["metadata"]] == right
    assert chosen != right  # or this test says nothing
    scores = given.depths.filter(pl.col("depth") == TRAINED).sort("row")["option_scores"].to_list()
    expected = [s[k] - np.logaddexp.reduce(s) for s, k in zip(scores, chosen, strict=True)]
    assert own.records.sort("row")["utility_before"].to_list() == pytest.approx(expected, abs=1e-6)


def test_a_run_of_own_answers_is_a_run_of_its_own(measured: Any, contents: Any):
    run = measured(limit=2, level="quick", reference="own", unit_size=1)
    assert run.manifest.settings["reference"] == "own"
    assert ls.Run(run.path).verify(replay=True).ok
    with pytest.raises(LoopscopeError, match=r"settings\.reference was 'own', is now absent"):
        measured(limit=2, level="quick", unit_size=1, output=run.path)
    again = measured(limit=2, level="quick", reference="own", unit_size=1)
    assert contents(again.path) == contents(run.path)
    assert StoredRun(run.path).finished


def test_what_has_no_trained_depth_has_no_own_answer(tmp_path: Any):
    words, turn = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 8)
    model = ls.wrap(embed=words, step=lambda h: h + torch.tanh(turn(h)), readout=lambda h: h @ words.weight.T)
    task = ls.Task.from_rows([{"prompt_ids": [1, 2], "solution_ids": [3, 4]}])
    with pytest.raises(LoopscopeError, match="wrapped does not say for how many loops it was trained"):
        ls.measure(model, task, output=tmp_path / "no", transitions=1, reference="own")
    assert not (tmp_path / "no").exists()
    with pytest.raises(LoopscopeError, match="reference='mine' is not known: choose given, own"):
        ls.measure(model, task, output=tmp_path / "no", transitions=1, reference="mine")
    model.trained_depth = 2
    run = ls.measure(model, task, output=tmp_path / "ids", transitions=2, reference="own", tokens=True, level="quick")
    (example,) = run.examples.to_dicts()
    answer = json.loads(example["metadata"])["continuation_ids"][0]
    assert answer == run.tokens.sort("token").collect()["token_id"].to_list()
    assert example["reference"] == "".join(f"[{token}]" for token in answer)
