"""Whether a run's condition is the setting of a published number, and the verdict on its number beside that one.

There are three verdicts. Words of agreement and disagreement belong to the same setting alone; of any other run it is
said what differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from loopscope.studies.conditions import Condition, Weights, bare_name
from loopscope.studies.paper import Printed, Quantity, Setting
from loopscope.studies.paper.published_numbers import model_names, templates
from loopscope.studies.result import Value

MOST_NAMED = 4
"""Conditions that the line about what the paper lacks names; the others are counted."""
EXIT_THRESHOLD = 1.0
"""The CDF threshold of the exit gate in the paper, which is that of the published checkpoints."""
PROTOCOL = "paper"
SEED = 20260904
"""Of the draw of H_0, plus the source row."""


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
    if condition.weights is not Weights.PUBLISHED:
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


class Verdict(StrEnum):
    """How a comparison falls out."""

    REPRODUCES = "reproduces"
    DIFFERS = "differs"
    NOT_COMPARABLE = "not comparable"


def not_comparable(reasons: Iterable[str]) -> tuple[Verdict, str]:
    """The verdict on a run in another setting, or without such a number."""
    return Verdict.NOT_COMPARABLE, f"not comparable because {', '.join(reasons)}"


def judge(
    quantity: Quantity, printed: Printed | None, text: str, unit: float, value: Value, number: float | None, states: str
) -> tuple[Verdict, str]:
    """The verdict on a run's number in the paper's setting.

    Args:
        quantity: what the published number is.
        printed: that number; None where it is text.
        text: as printed.
        unit: of the printed number.
        value: the run's own.
        number: the same as a number; None where the run defines none.
        states: dtype of the run's states.
    """
    if printed is None:
        own, paper = value or "none", text.replace("->", "→").replace("---", "none")
        if own == paper:
            return Verdict.REPRODUCES, "reproduces"
        return Verdict.DIFFERS, f"differs by its {quantity.name}: {own}"
    if number is None:
        return not_comparable(["nothing in this run defines such a number"])
    if quantity.reproduces(printed, unit, number, states):
        return Verdict.REPRODUCES, "reproduces"
    target = float(printed.decimal) * unit
    relative = f" ({(number - target) / abs(target):+.1%})" if target else ""
    return Verdict.DIFFERS, f"differs by {quantity.difference(number - target)}{relative}"
