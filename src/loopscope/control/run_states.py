"""The states of a run's reference positions, computed again from its model and questions, for heads."""

from __future__ import annotations

from collections.abc import Collection

from loopscope.control.cost import Costs
from loopscope.control.gather import Gathered, gather
from loopscope.control.model_cost import costs_of
from loopscope.measuring.replay import Sources, request_of
from loopscope.store.run import StoredRun


def gathered_of(run: StoredRun, task: str, split: str, loops: int, scales: Collection[int] = ()) -> Gathered:
    """States, log probabilities and gains of one task of a run, in the order of its trace.

    Raises:
        LoopscopeError: the model or the questions are not those of the run, or cannot be found.
    """
    sources = Sources.of(run, request_of(run, None, None, None))
    sources.check()
    planned = next(t for t in sources.prepared.tasks if (t.task.name, t.task.split) == (task, split))
    encoder = sources.encoder(spans=False, share=False)
    examples = [question.example for question in encoder.questions(planned.task, planned.rows, 0)]
    return gather(sources.model, examples, loops, scales=scales, signals=())


def costs_of_run(run: StoredRun) -> Costs:
    """What loops and readouts of a run's model cost."""
    return costs_of(request_of(run, None, None, None).model.load())
