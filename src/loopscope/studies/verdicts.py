"""Whether a run's condition is the setting of a published number, and the verdict on its number.

Counts must be the same, shares and ranks round to the printed digits, measured values round to them or lie as near as
the dtype of the states lets two measurements be, errors of computing be no larger than printed. What is further off may
lie within re-measurement: a count that is no further off than those that the paper itself gives twice (429 and 431, 682
and 683, 102 and 107), and an estimate whose interval overlaps the published one, where all counts of its setting are.
Words of agreement and disagreement belong to the same setting alone; of any other run it is said what differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from loopscope.stats import Estimate
from loopscope.store.schema import update_name
from loopscope.studies.conditions import Condition, Weights, bare_name
from loopscope.studies.declare import Value
from loopscope.studies.paper import AT_MOST, EXACT, MEASURED, PaperCell, Setting, model_names, templates

MOST_NAMED = 4  # conditions that the line about what the paper lacks names; the others are counted
EXIT_THRESHOLD = 1.0  # the CDF threshold of the exit gate in the paper, which is that of the published checkpoints
PROTOCOL = "paper"
SEED = 20260904  # of the draw of H_0, plus the source row
UNVERIFIED = "weights not verified"
# Of these the paper has counts of one condition in two measurements.
COUNTED_TWICE = EXACT - {"depths", "choice", "conditions", "batches", "checks"}
# How near two measurements of a value can be asked to be, relative to it, by the dtype of the states. In the paper the
# mean regret of the same 315 predictions is 1.826e-5 and, measured anew, 1.831e-5: 0.27% apart, and 2⁻⁸ is 0.39%.
UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
# What float64 sums of some hundred terms of a few nats owe to the order of adding: no error below it counts.
SUMMED = 2.0**-48


class Verdict(StrEnum):
    """How a comparison falls out."""

    REPRODUCES = "reproduces"
    WITHIN = "within re-measurement"
    DIFFERS = "differs"
    NOT_COMPARABLE = "not comparable"

    @property
    def holds(self) -> bool:
        """Whether the published number stands."""
        return self in (Verdict.REPRODUCES, Verdict.WITHIN)


def in_paper(condition: Condition) -> bool:
    """Whether the paper has this model and task at all; weights and questions may be others."""
    return _paper_model(condition) is not None and condition.task in templates()


def absent(conditions: Iterable[Condition]) -> str:
    """One line on conditions that the paper does not have; nothing where there are none."""
    names = list(dict.fromkeys(f"{c.model_title} on {c.set_title}" for c in conditions if not in_paper(c)))
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    known = f"its models are {', '.join(model_names().values())}; its tasks {', '.join(templates())}"
    return f"not in the paper, so not compared: {', '.join([*names[:MOST_NAMED], *more])} ({known})" if names else ""


def _paper_model(condition: Condition) -> str | None:
    return None if condition.weights in (Weights.RANDOM, Weights.TOY) else model_names().get(bare_name(condition.model))


def setting_differences(condition: Condition, setting: Setting) -> tuple[str, ...]:
    """What keeps a run from being the paper's setting, in words; empty for the same setting.

    Hardware is not compared, for the paper does not name its own.
    """
    run, task = condition.manifest, condition.info
    assert run is not None
    assert task is not None
    settings, same_task = run.settings, condition.task == setting.task
    same_split = same_task and condition.split == setting.split
    update = "" if setting.transition is None else update_name(setting.transition)
    threshold = settings.get("exit_threshold")
    # What a run has, what the paper has, and whether it matters here.
    compared: list[tuple[str, object, object, object]] = [
        ("the task is", condition.task, setting.task, True),
        ("the split is", condition.split, setting.split, same_task),
        ("the subset is", condition.subset or "none", setting.subset or "none", same_split),
        ("N is", condition.n, setting.n, True),
        ("the update is", condition.update, update, update),
        ("the protocol is", run.protocol, PROTOCOL, True),
        ("states are", condition.states, setting.states, True),
        # Numbers of the FP64 analysis do not depend on the readout of the pass.
        ("the readout is", condition.readout, "float32", setting.readout == "float32"),
        ("the batch size is", run.batch.size or "by length", setting.batch, setting.batch),
        ("H₀ is drawn by the rule", run.initial_state, setting.initial_state, setting.initial_state),
        ("the seed of H₀ is", run.seeds.get("initial_state"), SEED, setting.initial_state),
        ("the exit threshold is", threshold, EXIT_THRESHOLD, isinstance(threshold, int | float)),
        ("examples before each question are", settings.get("num_fewshot") or 0, 0, True),
    ]
    # Rows that were fetched from the hub at a recorded revision are what they are called.
    other_rows = same_split and task.data_revision is None and task.data_sha256 != setting.data_sha256
    stated = {
        "its data file holds other rows than the published one": other_rows,
        "another template words its questions": same_task and task.template_sha256 != templates()[setting.task],
        "its questions are asked in a chat template": settings.get("apply_chat_template"),
        "long sequences were cut": settings.get("long") == "truncate-left",
        "options share a row": settings.get("share_context"),
        setting.unpublished: setting.unpublished,
    }
    found = [f"{what} {here} (paper: {paper})" for what, here, paper, matters in compared if matters and here != paper]
    return (*_model_differences(condition, setting), *found, *(said for said, so in stated.items() if so))


def _model_differences(condition: Condition, setting: Setting) -> list[str]:
    if condition.weights is Weights.RANDOM:
        return ["its weights are random"]
    if condition.weights is Weights.TOY:
        return [f"{condition.model} is a toy model"]
    if model_names().get(bare_name(condition.model)) != setting.model:
        return [f"the model is {condition.model} (paper: {setting.model})"]
    return ["its weights were not fetched from the hub"] if condition.weights is Weights.OTHER else []


def distance(condition: Condition, setting: Setting) -> tuple[int, ...] | None:
    """How far a condition is from a setting, most important difference first; None where they cannot be compared.

    Another model or another task says nothing of a published number.
    """
    if (_paper_model(condition), condition.task, condition.kind) != (setting.model, setting.task, setting.kind):
        return None
    assert condition.manifest is not None
    return (
        condition.weights is not Weights.PUBLISHED,
        condition.split != setting.split,
        condition.subset != setting.subset,
        setting.transition is not None and condition.transition != setting.transition,
        condition.n != setting.n,
        condition.manifest.protocol != PROTOCOL,
        len(setting_differences(condition, setting)),
    )


def not_comparable(reasons: Iterable[str]) -> tuple[Verdict, str]:
    """The verdict on a run in another setting, or without such a number."""
    return Verdict.NOT_COMPARABLE, f"not comparable because {', '.join(reasons)}"


def judge(cell: PaperCell, value: Value, states: str) -> tuple[Verdict, str]:
    """The verdict on a run's number in the paper's setting; `states` is the dtype of the run's states."""
    same = Verdict.REPRODUCES, "reproduces"
    if cell.printed is None or cell.value is None:
        here, paper = value or "none", cell.text.replace("->", "→").replace("---", "none")
        return same if here == paper else (Verdict.DIFFERS, f"differs by its {cell.quantity}: {here}")
    number = number_of(value)
    if number is None:
        return not_comparable(["nothing in this run defines such a number"])
    difference = number - cell.value
    if cell.relation:
        said = f"is not {cell.relation} {cell.printed.text}: {cell.printed.write(number / cell.unit)}"
        return (
            same if difference * (1 if cell.relation == "above" else -1) > 0 else (Verdict.DIFFERS, f"differs: {said}")
        )
    if reproduces(cell, number):
        return same
    relative = f" ({difference / abs(cell.value):+.1%})" if cell.value else ""
    by = f"{difference / cell.unit:+.3g}{relative}"
    if _near(cell.quantity, cell.value, number, states):
        return Verdict.WITHIN, f"within re-measurement: {by}"
    return Verdict.DIFFERS, f"differs by {by}"


def number_of(value: Value) -> float | None:
    """A value as a number."""
    number = value.value if isinstance(value, Estimate) else value
    return None if number is None or isinstance(number, str) else float(number)


def reproduces(cell: PaperCell, value: float) -> bool:
    """Whether a run's value is the printed number."""
    target = cell.value or 0.0
    if cell.quantity in EXACT:
        return abs(value - target) <= 1e-12 * max(abs(target), 1.0)
    no_larger = cell.quantity.endswith(AT_MOST) and abs(value) <= max(abs(target), SUMMED)
    return no_larger or (cell.printed is not None and cell.printed.agrees(value / cell.unit))


def _near(quantity: str, target: float, number: float, states: str) -> bool:
    """Whether the paper's own re-measurements are as far apart: 429/431 and 682/683 of many, 102/107 of few."""
    if quantity in MEASURED:
        return abs(number - target) <= UNIT_ROUNDOFF.get(states, 0.0) * abs(target)
    return quantity in COUNTED_TWICE and abs(number - target) <= (2 if target > 107 else max(1, 5 * target // 107))


def overlaps(value: Value, cell: PaperCell) -> bool:
    """Whether the run's interval and the published one (or whatever rounds to the published number) meet."""
    interval = value.interval if isinstance(value, Estimate) else None
    if interval is None or cell.range is None:
        return False
    low, high = cell.range
    return interval.low <= high and low <= interval.high
