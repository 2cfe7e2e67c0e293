"""Whether a run's condition is the setting of a published number, and the verdict on its number.

Counts must be the same, shares and ranks round to the printed digits, measured values round to them or lie as near as
the dtype of the states lets two measurements be, errors of computing be no larger than printed. What is further off may
lie within re-measurement: where intervals overlap, or where a count is no further off than those that the paper itself
gives twice (429 and 431, 682 and 683, 102 and 107). Words of agreement and disagreement belong to the same setting
alone; of any other run it is said what differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from loopscope.stats import Estimate
from loopscope.studies.conditions import Condition, Weights, bare_name
from loopscope.studies.declare import Value
from loopscope.studies.paper import Printed, Quantity, Setting, model_names, templates
from loopscope.studies.paper.numbers import AT_MOST, EXACT, MEASURED

MOST_NAMED = 4
"""Conditions that the line about what the paper lacks names; the others are counted."""
EXIT_THRESHOLD = 1.0
"""The CDF threshold of the exit gate in the paper, which is that of the published checkpoints."""
PROTOCOL = "paper"
SEED = 20260904
"""Of the draw of H_0, plus the source row."""
UNVERIFIED = "weights not verified"
UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
"""How near two measurements of a value can be asked to be, relative to it, by the dtype of the states. In the paper the
mean regret of the same 315 predictions is 1.826e-5 and, measured anew, 1.831e-5: 0.27% apart, and 2⁻⁸ is 0.39%."""
SUMMED = 2.0**-48
"""What float64 sums of some hundred terms of a few nats owe to the order of adding: no error below it counts."""
WORDS = {
    **{"share": "percentage points", "part": "percentage points"},
    **{"rank": "of a rank statistic", "ratio": "of a ratio", "steps": "of a step", "choice": "of a step"},
}


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
    if not names:
        return ""
    listed = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
    models = ", ".join(model_names().values())
    return f"not in the paper, so not compared: {listed} (its models are {models}; its tasks {', '.join(templates())})"


def _paper_model(condition: Condition) -> str | None:
    return None if condition.weights in (Weights.RANDOM, Weights.TOY) else model_names().get(bare_name(condition.model))


def setting_differences(condition: Condition, setting: Setting) -> tuple[str, ...]:
    """What keeps a run from being the paper's setting, in words; empty for the same setting.

    Hardware is not compared, for the paper does not name its own.
    """
    found = [*_model_differences(condition, setting), *_question_differences(condition, setting)]
    if setting.transition is not None and condition.transition != setting.transition:
        found.append(f"the update is {condition.update} (paper: {setting.transition}→{setting.transition + 1})")
    return (*found, *_computing_differences(condition, setting))


def _model_differences(condition: Condition, setting: Setting) -> list[str]:
    if condition.weights is Weights.RANDOM:
        return ["its weights are random"]
    if condition.weights is Weights.TOY:
        return [f"{condition.model} is a toy model"]
    if model_names().get(bare_name(condition.model)) != setting.model:
        return [f"the model is {condition.model} (paper: {setting.model})"]
    if condition.weights is Weights.OTHER:
        return ["its weights were not fetched from the hub"]
    return []


def _question_differences(condition: Condition, setting: Setting) -> list[str]:
    """Which questions are asked, and in which words."""
    found = []
    if condition.task != setting.task:
        found.append(f"the task is {condition.task} (paper: {setting.task})")
    elif condition.split != setting.split:
        found.append(f"the split is {condition.split} (paper: {setting.split})")
    else:
        if condition.subset != setting.subset:
            found.append(f"the subset is {condition.subset or 'none'} (paper: {setting.subset or 'none'})")
        # Rows that were fetched from the hub at a recorded revision are what they are called.
        if condition.data_revision is None and condition.data_sha256 != setting.data_sha256:
            found.append("its data file holds other rows than the published one")
    if condition.n != setting.n:
        found.append(f"N is {condition.n} (paper: {setting.n})")
    if condition.task == setting.task and condition.template_sha256 != templates()[setting.task]:
        found.append("another template words its questions")
    if condition.fewshot:
        found.append(f"{condition.fewshot} examples stand before each question (paper: none)")
    if condition.chat_template:
        found.append("its questions are asked in a chat template")
    if condition.long == "truncate-left":
        found.append("long sequences were cut")
    return found


def _computing_differences(condition: Condition, setting: Setting) -> list[str]:
    found = []
    if condition.protocol != PROTOCOL:
        found.append(f"the protocol is {condition.protocol} (paper: {PROTOCOL})")
    if condition.states != setting.states:
        found.append(f"states are {condition.states} (paper: {setting.states})")
    # Numbers of the FP64 analysis do not depend on the readout of the pass.
    if setting.readout == "float32" and condition.readout != "float32":
        found.append(f"the readout is {condition.readout} (paper: float32)")
    if setting.batch is not None and condition.batch_size != setting.batch:
        found.append(f"the batch size is {condition.batch_size or 'by length'} (paper: {setting.batch})")
    if condition.share_context:
        found.append("options share a row")
    if setting.initial_state is not None:
        if condition.initial_state != setting.initial_state:
            found.append(f"H₀ is drawn by the rule {condition.initial_state} (paper: {setting.initial_state})")
        if condition.initial_seed != SEED:
            found.append(f"the seed of H₀ is {condition.initial_seed} (paper: {SEED})")
    if condition.exit_threshold not in (None, EXIT_THRESHOLD):
        found.append(f"the exit threshold is {condition.exit_threshold:g} (paper: {EXIT_THRESHOLD:g})")
    return [*found, setting.unpublished] if setting.unpublished else found


def distance(condition: Condition, setting: Setting) -> tuple[int, ...] | None:
    """How far a condition is from a setting, most important difference first; None where they cannot be compared.

    Another model or another task says nothing of a published number.
    """
    here = (_paper_model(condition), condition.task, condition.kind)
    if here != (setting.model, setting.task, setting.kind):
        return None
    return (
        condition.weights is not Weights.PUBLISHED,
        condition.split != setting.split,
        condition.subset != setting.subset,
        setting.transition is not None and condition.transition != setting.transition,
        condition.n != setting.n,
        condition.protocol != PROTOCOL,
        len(setting_differences(condition, setting)),
    )


def not_comparable(reasons: Iterable[str]) -> tuple[Verdict, str]:
    """The verdict on a run in another setting, or without such a number."""
    return Verdict.NOT_COMPARABLE, f"not comparable because {', '.join(reasons)}"


def judge(
    quantity: Quantity,
    printed: Printed | None,
    text: str,
    unit: float,
    value: Value,
    states: str,
    *,
    within: tuple[float, float] | None = None,
    relation: str = "",
) -> tuple[Verdict, str]:
    """The verdict on a run's number in the paper's setting.

    Args:
        quantity: what the published number is.
        printed: that number; None where it is text.
        text: as printed.
        unit: of the printed number.
        value: the run's.
        states: dtype of the run's states.
        within: the published interval, where there is one.
        relation: `above` or `below` where the published number is a bound.
    """
    if printed is None:
        here, paper = value or "none", text.replace("->", "→").replace("---", "none")
        if here == paper:
            return Verdict.REPRODUCES, "reproduces"
        return Verdict.DIFFERS, f"differs by its {quantity.name}: {here}"
    number = number_of(value)
    if number is None:
        return not_comparable(["nothing in this run defines such a number"])
    target = float(printed.decimal) * unit
    if relation:
        holds = number > target if relation == "above" else number < target
        said = f"is not {relation} {printed.text}: {printed.write(number / unit)}"
        return (Verdict.REPRODUCES, "reproduces") if holds else (Verdict.DIFFERS, f"differs: {said}")
    if reproduces(quantity, printed, unit, number, states):
        return Verdict.REPRODUCES, "reproduces"
    relative = f" ({(number - target) / abs(target):+.1%})" if target else ""
    by = difference_text(quantity, number - target) + relative
    if _near(quantity, target, number, states) or _overlap(value, target, float(printed.half_unit) * unit, within):
        return Verdict.WITHIN, f"within re-measurement: {by}"
    return Verdict.DIFFERS, f"differs by {by}"


def number_of(value: Value) -> float | None:
    """A value as a number."""
    number = value.value if isinstance(value, Estimate) else value
    return None if number is None or isinstance(number, str) else float(number)


def reproduces(quantity: Quantity, printed: Printed, unit: float, value: float, states: str) -> bool:
    """Whether a run's value is the printed number.

    >>> reproduces(Quantity("questions"), Printed("431"), 1.0, 429, "bfloat16")
    False
    """
    target = float(printed.decimal) * unit
    if quantity.name in EXACT:
        return abs(value - target) <= 1e-12 * max(abs(target), 1.0)
    return printed.agrees(value / unit) or (quantity.is_error and abs(value) <= max(abs(target), SUMMED))


def _near(quantity: Quantity, target: float, number: float, states: str) -> bool:
    """Whether the paper's own re-measurements are as far apart: 429/431 and 682/683 of many, 102/107 of few."""
    if quantity.name in MEASURED:
        return abs(number - target) <= UNIT_ROUNDOFF.get(states, 0.0) * abs(target)
    if quantity.name in EXACT - {"depths", "choice", "conditions", "batches", "checks"}:
        return abs(number - target) <= (2 if target > 107 else max(1, 5 * target // 107))
    return False


def _overlap(value: Value, target: float, half_unit: float, within: tuple[float, float] | None) -> bool:
    """Whether the run's interval and the published one (or the published number) have a point in common."""
    interval = value.interval if isinstance(value, Estimate) else None
    low, high = within or (target - half_unit, target + half_unit)
    return interval is not None and interval.low <= high and low <= interval.high


def difference_text(quantity: Quantity, difference: float) -> str:
    """A difference with its unit.

    >>> difference_text(Quantity("questions"), -2.0), difference_text(Quantity("share"), 0.0123)
    ('-2 questions', '+1.23 percentage points')
    """
    name = quantity.name.removesuffix(AT_MOST)
    if name in EXACT and name != "choice":
        return f"{difference:+.0f} {name}"
    percent = 100.0 if name in ("share", "part") else 1.0
    return f"{percent * difference:+.3g} {WORDS.get(name, name)}"
