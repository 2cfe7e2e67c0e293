"""What `plan` counts and says; that its times come near is for the machine it runs on to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import loopscope as ls
from loopscope.measuring import calibration
from loopscope.measuring.batch_costs import BatchSize
from loopscope.measuring.calibration import LEAST_TIMED, LONGEST_PART, LONGEST_TOGETHER, Planned, Timer, _shortened
from loopscope.measuring.compile_clock import CompileClock
from loopscope.measuring.layout import Question
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


class Simulated:
    """A clock by which a batch takes the longer of the host's time and the device's, whatever it takes here."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        host: float,
        per_token: float = 0.0,
        per_scored: float = 0.0,
        loading: float = 0.0,
        per_batch: float = 0.0,
    ) -> None:
        self.seconds, self.ran = 0.0, []  # type: float, list[int]
        measured = Timer.measured

        def timed(timer: Timer, batches: Any) -> Any:
            sizes = [BatchSize.of(questions, timer.policy) for _, questions in batches]
            self.seconds += 0.0 if self.ran else loading
            self.seconds += sum(max(host, per_token * size.tokens + per_scored * size.scored) for size in sizes)
            self.seconds += per_batch * len(sizes)
            self.ran += [size.tokens for size in sizes]
            return measured(timer, batches)

        monkeypatch.setattr(Timer, "measured", timed)
        monkeypatch.setattr(CompileClock, "now", lambda _: self.seconds)


LONG = {**ASKED, "limit": 64, "unit_size": 64, "batch_size": "32", "seconds": 0.1}


def test_batches_that_take_long_are_timed_in_parts_and_one_of_them_whole(
    checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that a device runs faster than the host launches them all take the same, and whole batches longer."""
    clock = Simulated(monkeypatch, host=0.3, per_token=0.001)
    cost = ls.plan(checkpoint("ouro"), "arithmetic", **LONG)
    assert cost.batches == 2
    assert 1.0 < 0.001 * cost.padded / cost.batches < LONGEST_PART
    assert sum(size < cost.padded / 8 for size in clock.ran) > LEAST_TIMED, "parts of them"
    assert cost.seconds == pytest.approx(0.001 * cost.padded, rel=0.05)
    assert cost.starting == pytest.approx(0.0, abs=0.35)
    assert (cost.shortened, "at the largest batch" in str(cost)) == (False, True)


def test_batches_that_take_too_long_are_not_thought_short(
    checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Simulated(monkeypatch, host=0.3, per_token=0.001)
    monkeypatch.setattr(calibration, "LONGEST_PART", 0.0)
    cost = ls.plan(checkpoint("ouro"), "arithmetic", **LONG)
    assert max(clock.ran) < cost.padded / 8
    assert cost.seconds > 0.9 * 0.001 * cost.padded
    assert (cost.shortened, "at parts of batches, whole ones take more" in str(cost)) == (True, True)


def test_of_a_batch_that_takes_too_long_as_much_as_time_allows_is_timed(
    checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single question takes what the host does, and has no padding: what a scored token takes a longer part tells."""
    clock = Simulated(monkeypatch, host=2.5, per_scored=0.04)
    cost = ls.plan(checkpoint("ouro"), "arithmetic", **{**LONG, "level": "grid"})
    seconds = 0.04 * BatchSize.of(_questions(64)).scored
    assert seconds / cost.batches > 2 * LONGEST_PART
    assert max(clock.ran) < cost.padded / cost.batches
    assert cost.shortened
    assert cost.seconds == pytest.approx(seconds, rel=0.15)


@pytest.mark.parametrize(("per_scored", "timed"), [(0.2, 2), (1.2, 1)])
def test_of_questions_that_take_long_each_a_few_are_timed(
    checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, per_scored: float, timed: int
) -> None:
    """At level full it is the scored tokens that take time: batches with much padding take no more."""
    clock = Simulated(monkeypatch, host=0.0, per_scored=per_scored, loading=8.0)
    cost = ls.plan(checkpoint("ouro"), "arithmetic", **{**LONG, "level": "full"})
    assert (len(clock.ran), cost.timed) == (1 + timed, timed), "the shortest question runs once more, to load kernels"
    assert cost.padded > 1.2 * cost.tokens
    assert cost.seconds == pytest.approx(per_scored * BatchSize.of(_questions(64)).scored)
    assert cost.starting == pytest.approx(8.0)
    assert cost.shortened


def test_a_slow_batch_that_is_short_enough_is_timed_whole(
    checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two questions of about the same length cannot tell what both together take."""
    clock = Simulated(monkeypatch, host=0.0, per_scored=0.2, per_batch=8.0)
    cost = ls.plan(checkpoint("ouro"), "arithmetic", **{**LONG, "level": "full", "limit": 2})
    assert (cost.batches, clock.ran[-1], cost.shortened) == (1, cost.padded, False)
    assert cost.seconds == pytest.approx(8.0 + 0.2 * BatchSize.of(_questions(2)).scored)


def test_a_few_slow_questions_that_do_not_fill_a_device_are_followed_by_more(
    checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Simulated(monkeypatch, host=12.0, per_scored=0.1)
    cost = ls.plan(checkpoint("ouro"), "arithmetic", **{**LONG, "level": "full"})
    seconds = 0.1 * BatchSize.of(_questions(64)).scored
    assert seconds / cost.batches > LONGEST_TOGETHER
    assert clock.seconds < 3 * LONGEST_TOGETHER
    assert cost.seconds == pytest.approx(seconds, rel=0.1)


def test_slow_questions_tell_what_a_batch_takes(
    checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of many rounds takes as long for one question as for many."""
    Simulated(monkeypatch, host=0.0, per_scored=0.2, per_batch=8.0)
    cost = ls.plan(checkpoint("ouro"), "arithmetic", **{**LONG, "level": "full"})
    assert cost.timed == 2
    assert cost.seconds == pytest.approx(8.0 * cost.batches + 0.2 * BatchSize.of(_questions(64)).scored)


def test_short_batches_are_timed_whole(checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Simulated(monkeypatch, host=0.01, per_token=1e-5, loading=8.0)
    cost = ls.plan(checkpoint("ouro"), "arithmetic", **{**LONG, "batch_size": "2"})
    assert cost.starting == pytest.approx(8.0, abs=0.1), "kernels that take long to be loaded make no slow questions"
    assert cost.batches == 32
    assert len(clock.ran) < 32, "not all of them"
    assert cost.seconds == pytest.approx(0.32, rel=0.05)
    assert not cost.shortened


@pytest.mark.parametrize(("batches", "told"), [(4, True), (2, False)])
def test_few_batches_are_foretold_from_each_other(
    checkpoint: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, batches: int, told: bool
) -> None:
    """Where the host takes as long for any batch, three or more say so; of two, one tells nothing of the other."""
    Simulated(monkeypatch, host=0.1)
    cost = ls.plan(checkpoint("ouro"), "arithmetic", **{**ASKED, "limit": 2 * batches, "batch_size": "2"})
    assert cost.seconds == pytest.approx(0.1 * batches)
    assert ("foretold" in str(cost), cost.error < 1e-6) == (told, told)


def _questions(count: int) -> list[Question]:
    task = ls.load_task("arithmetic", limit=count)
    encoder = QuestionEncoder(ls.load_tokenizer(str(EMBEDDED / "toy-ouro")), None, "error")
    return encoder.questions(task, task.rows, 0)


def test_parts_are_the_first_questions_within_the_tokens() -> None:
    questions = _questions(12)
    unit = WorkUnit(0, "arithmetic", "test", 0, 12)
    batches = [Planned.of(unit, questions[:8], POLICY), Planned.of(unit, questions[8:], POLICY)]
    assert _shortened(batches, POLICY, float("inf")) == batches
    long, short = _shortened(batches, POLICY, batches[1].size.tokens)
    assert short == batches[1]
    assert long.questions == questions[: len(long.questions)]
    assert 1 <= len(long.questions) < 8
    assert long.size.tokens <= batches[1].size.tokens
    assert [len(batch.questions) for batch in _shortened(batches, POLICY, 0)] == [1, 1], "one question is always timed"
