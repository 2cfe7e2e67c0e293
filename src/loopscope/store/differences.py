"""Naming what differs between the manifest of a run and the one of a new command."""

from typing import Any, NamedTuple

from loopscope.store.manifest import PROVENANCE, Manifest


class Difference(NamedTuple):
    """One setting that is not the same, by its dotted name."""

    field: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.field} was {_short(self.old)}, is now {_short(self.new)}"


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def differences(old: Manifest, new: Manifest) -> list[Difference]:
    """Every field that forbids `new` to continue the run of `old`, in the manifest's order."""
    found: list[Difference] = []
    one, other = (manifest.model_dump(mode="json", exclude=set(PROVENANCE)) for manifest in (old, new))
    # Older manifests name this seed for every model. Whether a model draws a state follows from the model.
    if "initial_state" not in one["seeds"].keys() & other["seeds"].keys():
        for seeds in (one["seeds"], other["seeds"]):
            seeds.pop("initial_state", None)
    _walk("", one, other, found)
    return found


def _walk(field: str, old: Any, new: Any, found: list[Difference]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            name = f"{field}.{key}" if field else str(key)
            _walk(name, old.get(key, ABSENT), new.get(key, ABSENT), found)
    elif field == "tasks":
        # By name rather than by place: a task that was added is then named as such.
        if [*_by_name(old)] != [*_by_name(new)] and sorted(_by_name(old)) == sorted(_by_name(new)):
            found.append(Difference("order of tasks", [*_by_name(old)], [*_by_name(new)]))
        _walk("task", _by_name(old), _by_name(new), found)
    elif old != new:
        found.append(Difference(field, old, new))


def _by_name(tasks: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{task['name']}/{task['split']}": task for task in tasks}


def _short(value: Any) -> str:
    if isinstance(value, dict) and "name" in value:
        return "present"
    text = repr(value)
    return text if len(text) <= 60 else text[:28] + "…" + text[-28:]
