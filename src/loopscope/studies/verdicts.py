"""Whether a run's condition is the setting of a published number, and the verdict on its number beside that one.

Words of agreement and disagreement belong to the same setting alone. Beside any other run stands what differs.
"""

from collections.abc import Iterable
from enum import StrEnum

from loopscope.studies.conditions import Condition, Weights, bare_name
from loopscope.studies.paper import PaperCell, Setting
from loopscope.studies.paper.published_numbers import model_names, templates
from loopscope.studies.result import Value

MOST_NAMED = 4
"""Conditions that the line about what the paper lacks names; the others are counted."""
EXIT_THRESHOLD = 1.0
"""The CDF threshold of the exit gate in the paper, which is that of the published checkpoints."""


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

    Only a checkpoint of the same name from the hub, the same examples, transition and arithmetic are the same setting.
    Batch composition and hardware are not compared: the paper's own measurements differ in them.
    """
    found = [*_model_differences(condition, setting)]
    if condition.task != setting.task:
        found.append(f"task {condition.task}")
    elif condition.split != setting.split:
        found.append(f"split {condition.split}")
    elif condition.subset != setting.subset:
        found.append(f"subset {condition.subset or 'none'}")
    if condition.n != setting.n:
        found.append(f"N={condition.n}")
    if setting.transition is not None and condition.transition != setting.transition:
        found.append(f"transition {condition.update}")
    if condition.states != setting.states:
        found.append(f"{condition.states} states")
    # Numbers of the FP64 analysis do not depend on the readout of the pass.
    if setting.readout == "float32" and condition.readout != "float32":
        found.append(f"{condition.readout} readout")
    if condition.task == setting.task and condition.template_sha256 != templates()[setting.task]:
        found.append("another template")
    if condition.reference != "given":
        found.append("own answers as references")
    if condition.exit_threshold not in (None, EXIT_THRESHOLD):
        found.append(f"exit threshold {condition.exit_threshold:g}")
    return tuple(found)


def _model_differences(condition: Condition, setting: Setting) -> list[str]:
    if condition.weights is Weights.RANDOM:
        return ["random weights"]
    if condition.weights is Weights.TOY:
        return [f"toy model {condition.model}"]
    if model_names().get(bare_name(condition.model)) != setting.model:
        return [f"model {condition.model}"]
    if condition.weights is not Weights.PUBLISHED:
        return ["weights not fetched from the hub"]
    return []


def caveat(setting: Setting) -> str:
    """What cannot be checked even in the same setting."""
    return f"rows of {setting.subset} are not published" if setting.subset else ""


def distance(condition: Condition, setting: Setting) -> tuple[bool, ...] | None:
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
        condition.states != setting.states,
    )


class Verdict(StrEnum):
    """How a comparison falls out."""

    DIGITS = "digits"
    """Same setting, equal to the printed digits."""
    COVERED = "covered"
    """Same setting, the run's interval covers the published number."""
    OUTSIDE = "outside"
    """Same setting, the published number lies outside the run's interval."""
    DIFFERS = "differs"
    """Same setting, another number or text, and no interval to judge by."""
    UNDEFINED = "undefined"
    """The run defines no such number: an empty population, a lower level of measurement."""
    OTHER = "other"
    """Another setting."""


def verdict_of(
    cell: PaperCell,
    value: Value,
    number: float | None,
    covers: bool | None,
    differences: tuple[str, ...],
    caveat: str,
) -> tuple[Verdict, str]:
    """The verdict and its sentence."""
    if differences:
        return Verdict.OTHER, f"not comparable because of {', '.join(differences)}: shown beside it only"
    outcome, sentence = _same_setting(cell, value, number, covers)
    return outcome, f"{sentence}; {caveat}" if caveat else sentence


def _same_setting(cell: PaperCell, value: Value, number: float | None, covers: bool | None) -> tuple[Verdict, str]:
    if cell.printed is None:
        same = (value or "---") == cell.text.replace("->", "→")
        return (Verdict.DIGITS, "reproduced") if same else (Verdict.DIFFERS, f"differs: {value or '—'}")
    if number is None:
        return Verdict.UNDEFINED, "not defined in this run"
    if cell.printed.agrees(number / cell.unit):
        return Verdict.DIGITS, "reproduced to the printed digits"
    if covers:
        return Verdict.COVERED, "consistent: the run's interval covers it"
    printed = float(cell.printed.decimal)
    relative = f" ({(number / cell.unit - printed) / abs(printed):+.1%})" if printed else ""
    off = f"{number / cell.unit - printed:+.3g}{relative}"
    if covers is None:
        return Verdict.DIFFERS, f"differs by {off}"
    return Verdict.OUTSIDE, f"not reproduced: outside the run's interval, {off}"
