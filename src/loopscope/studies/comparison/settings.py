"""Whether a run's condition is the setting of a published number, and what differs if it is not."""

from loopscope.studies.conditions import Condition, Weights, bare_name
from loopscope.studies.paper import Setting
from loopscope.studies.paper.load import model_names, models


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

    Solutions and options have different utilities, so one is never shown beside the other.
    """
    if condition.kind != setting.kind:
        return None
    published = condition.weights is Weights.PUBLISHED
    return (
        not (published and model_names().get(bare_name(condition.model)) == setting.model),
        condition.family != models()[setting.model].family,
        condition.task != setting.task,
        condition.split != setting.split,
        condition.subset != setting.subset,
        setting.transition is not None and condition.transition != setting.transition,
        condition.n != setting.n,
        condition.states != setting.states,
    )
