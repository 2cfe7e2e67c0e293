"""What a pass will take before it starts: tokens, time, memory and disk, from a short calibration on this machine.

All questions are encoded and put into their batches, which needs no device. Some batches that stand for all are then
measured as the pass itself would measure them, short ones a few after the other: the host works on one while a GPU runs
the next. Of long ones a part is timed, and of the largest as much as time allows. A cost for a batch, for a padded
token and for a pair of tokens of a row is fitted to their times and summed over all batches. How far such an estimate
is off is measured on the way: each timed group of batches is predicted from the others. What the first batches take
beyond their rate (kernels are loaded) comes once; compiling them, which a run finds done, is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import torch

from loopscope.measuring.batch_costs import QUICK, SCORED, TOKENS, WHOLE, AnswerSize, Fit, GroupSize, left_out_error
from loopscope.measuring.calibration import Planned, Timer, time_some
from loopscope.measuring.compile_clock import CompileClock
from loopscope.measuring.cost_estimate import CostEstimate
from loopscope.measuring.layout import plan_batches
from loopscope.measuring.loaded_once import LoadedOnce
from loopscope.measuring.own_answers import own_answers
from loopscope.measuring.plan import Encodings, Request
from loopscope.measuring.run import chat_of, prepare
from loopscope.measuring.worker import LocalEngine, Worker

SECONDS = 5.0
"""How long batches are timed by default; some run once before that."""


def estimate(request: Request, seconds: float = SECONDS, once: LoadedOnce | None = None) -> CostEstimate:
    """Load the model, time some batches of the pass, and say what the whole will take; nothing is written.

    Estimates of several runs load `once` what these have in common.
    """
    with CompileClock() as clock:
        return _estimate(request, seconds, clock, once or LoadedOnce(request.encodings or Encodings()))


def _estimate(request: Request, seconds: float, clock: CompileClock, once: LoadedOnce) -> CostEstimate:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    began, spared, encoded = clock.now(), once.spared, once.encodings.tokens
    shared = request.encodings is not None  # by the runs themselves
    request = replace(request, encodings=once.encodings)  # encoded once, as the run's first look does
    as_chat = request.data.prompting.apply_chat_template
    if not as_chat:
        loaded = request.data.load()
        request = request.needing(loaded)
    engine = LocalEngine(request, once.model(request.model))
    if as_chat:  # the template is the tokenizer's, which may be the model's
        loaded = request.data.load(chat_of(engine.tokenizer))
    settings = request.settings_for(engine.facts())
    prepared = prepare(request, loaded, engine.facts(), engine.tokenizer)
    batches: list[Planned] = []
    for unit in prepared.manifest.units():
        planned = prepared.task_of(unit)
        questions = engine.encoder.questions(planned.task, planned.rows[unit.start : unit.stop], unit.start)
        stored = None if engine.stored is None else engine.stored(unit)
        cut = plan_batches(questions, settings.batch) if stored is None else stored.batches(questions)
        batches += [Planned.of(unit, batch, settings.batch) for batch in cut]
    everyone = [question for batch in batches for question in batch.questions]
    tokens = sum(question.positions for question in everyone)
    loading = clock.now() - began + once.spared - spared
    if not shared:
        loading += once.encodings.spared(tokens - (once.encodings.tokens - encoded))
    ready = clock.now()
    engine.wait_for_kernels()  # the pass begins without them, and hides that behind its first batches
    compiling = clock.now() - ready
    answers = own_answers(engine.model, engine.tokenizer, settings)
    timer = Timer(Worker(engine.model, settings, stored=engine.stored), answers, settings.batch, clock, seconds)
    timings = time_some(timer, batches, in_parts=engine.stored is None)  # stored states are those of whole batches
    parts = [timings.passed] if answers is None else [timings.passed, timings.answered]
    short = SCORED if settings.level == "full" else TOKENS
    whole = QUICK if settings.level == "quick" else WHOLE
    in_parts = timings.slow or (timings.in_part and not timings.anchors)
    allowed = (short if in_parts else whole, WHOLE)
    spare = 0 if timings.slow and short == SCORED else 1  # two timings are all there are
    fits = [Fit.of(*part, terms, spare) for part, terms in zip(parts, allowed, strict=False)]
    totals = _totals(fits, batches)
    padded = sum(batch.size.tokens for batch in batches)
    states = int(timings.states / timings.tokens * padded)
    return CostEstimate(
        model=prepared.manifest.model.name,
        tasks={planned.task.name: len(planned.rows) for planned in prepared.tasks},
        tokens=tokens,
        padded=padded,
        batches=len(batches),
        seconds=sum(totals),
        error=left_out_error(parts, allowed, timings.anchors),
        loading=loading,
        starting=timings.loading + max(0.0, timings.starting - sum(_totals(fits, timings.first))),
        memory=timings.memory,
        rates=asdict(fits[0]),
        compiling=clock.compiling + compiling,
        shortened=timings.in_part,
        disk=timings.disk(len(prepared.manifest.units()), len(everyone)) + states,
        timed=sum(len(group.sizes) for group in timings.passed.sizes if isinstance(group, GroupSize)),
        answering=sum(totals[1:]),
        states=states,
        dtypes=f"states in {prepared.manifest.dtypes.states}, readout in {prepared.manifest.dtypes.readout}",
        batching="by length" if settings.batch.size is None else f"of {settings.batch.size}",
    )


def _totals(fits: Sequence[Fit], batches: Sequence[Planned]) -> list[float]:
    """Seconds of the pass over some batches, and of the own answers to them where there is a fit for those."""
    found = [fits[0].seconds([batch.size for batch in batches])]
    found += [fit.seconds([AnswerSize.of(batch.questions) for batch in batches]) for fit in fits[1:]]
    return [float(seconds.sum()) for seconds in found]
