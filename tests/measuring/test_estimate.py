"""What `plan` counts and says; that its times come near is for the machine it runs on to show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import loopscope as ls
from loopscope.measuring import estimate as module
from loopscope.measuring.estimate import _Planned, _shortened
from loopscope.measuring.loaded_once import LoadedOnce
from loopscope.measuring.model_request import ModelRequest
from loopscope.measuring.plan import QuestionEncoder
from loopscope.measuring.settings import BatchPolicy
from loopscope.models.protocol import LoopedModel
from loopscope.models.registry import EMBEDDED
from loopscope.store.run_directory import WorkUnit

POLICY = BatchPolicy.parse("8")
ASKED = {"transitions": 2, "level": "quick", "limit": 8, "unit_size": 4, "device": "cpu", "seconds": 0.01}


def test_everything_is_counted(checkpoint: Callable[[str], str]) -> None:
    cost = ls.plan(checkpoint("ouro"), ["arithmetic", "arithmetic-mc"], batch_size="2", **ASKED)
    assert cost.tasks == {"arithmetic": 8, "arithmetic-mc": 8}
    assert cost.batches == 8
    assert cost.tokens < cost.padded < 2 * cost.tokens
    assert cost.whole == cost.loading + cost.starting + cost.seconds
    assert cost.loading > 0
    assert cost.starting >= 0
    assert cost.seconds > 0


def test_plans_one_after_the_other_load_once_what_they_share_and_count_it_each_time(
    checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load, once = ModelRequest.load, LoadedOnce()

    def counted(request: ModelRequest) -> LoopedModel:
        loaded.append(request.spec)
        return load(request)

    monkeypatch.setattr(ModelRequest, "load", counted)
    ouro, huginn = checkpoint("ouro"), checkpoint("huginn")
    first = ls.plan(ouro, "arithmetic", once=once, **ASKED)
    encoded, spared = once.encodings.tokens, once.spared
    again = ls.plan(ouro, "arithmetic", once=once, **{**ASKED, "transitions": 3})
    assert (encoded, once.encodings.tokens, spared) == (first.tokens, first.tokens, 0.0)
    assert again.loading > once.spared + once.encodings.spared(first.tokens) > 0.0
    assert (again.tokens, again.batches) == (first.tokens, first.batches)
    ls.plan(huginn, "arithmetic", once=once, **ASKED)
    ls.plan(ouro, "arithmetic", once=once, **ASKED)
    assert loaded == [ouro, huginn, ouro], "one model is kept at a time"


def test_batches_that_take_long_are_timed_in_parts(
    checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {**ASKED, "batch_size": "4"}
    monkeypatch.setattr(module, "LONGEST_TIMED", 1e9)
    whole = ls.plan(checkpoint("ouro"), "arithmetic", **asked)
    monkeypatch.setattr(module, "LONGEST_TIMED", 0.0)
    parts = ls.plan(checkpoint("ouro"), "arithmetic", **{**asked, "seconds": 1e-9})
    assert (whole.shortened, parts.shortened) == (False, True)
    assert "at the largest batch" in str(whole)
    assert "at parts of batches, whole ones take more" in str(parts)
    assert (whole.tokens, whole.padded, whole.batches) == (parts.tokens, parts.padded, parts.batches)


def test_parts_are_the_first_questions_within_the_tokens() -> None:
    task = ls.load_task("arithmetic", limit=12)
    questions = QuestionEncoder(ls.load_tokenizer(str(EMBEDDED / "toy-ouro")), None, "error").questions(
        task, task.rows, 0
    )
    unit = WorkUnit(0, "arithmetic", "test", 0, 12)
    batches = [_Planned.of(unit, questions[:8], POLICY), _Planned.of(unit, questions[8:], POLICY)]
    assert _shortened(batches, POLICY, float("inf")) == batches
    long, short = _shortened(batches, POLICY, batches[1].size.tokens)
    assert short == batches[1]
    assert long.questions == questions[: len(long.questions)]
    assert 1 <= len(long.questions) < 8
    assert long.size.tokens <= batches[1].size.tokens
    assert [len(batch.questions) for batch in _shortened(batches, POLICY, 0)] == [1, 1], "one question is always timed"
