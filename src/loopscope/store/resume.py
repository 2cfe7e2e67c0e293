"""Whether a command may write into a directory: a new run, the same run again, or refused with the difference named."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from loopscope.errors import LoopscopeError, setting
from loopscope.store.events import read_events
from loopscope.store.hashing import read_bounded
from loopscope.store.manifest import PROVENANCE, Manifest, ManifestDamageError, OtherVersionError, decode_manifest
from loopscope.store.records import sound_records
from loopscope.store.run_directory import RunLayout


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
    """Every field that forbids `new` to continue the run of `old`, the protocol first, then in the manifest's order."""
    found: list[Difference] = []
    one, other = (manifest.model_dump(mode="json", exclude=set(PROVENANCE)) for manifest in (old, new))
    # Older manifests name this seed for every model. Whether a model draws a state follows from the model.
    if "initial_state" not in one["seeds"].keys() & other["seeds"].keys():
        for seeds in (one["seeds"], other["seeds"]):
            seeds.pop("initial_state", None)
    # Older manifests do not name the rule of its draw where the specification does.
    if "initial_state=" in old.model.spec:
        one["settings"].pop("initial_state", None)
        other["settings"].pop("initial_state", None)
    for manifest, payload in ((old, one), (new, other)):
        payload["settings"]["protocol"] = manifest.protocol
    _walk("", one, other, found)
    # Other differences may follow from that of the protocols.
    return sorted(found, key=lambda entry: entry.field != "settings.protocol")


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
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        return f"{value[:12]}…"
    text = repr(value)
    return text if len(text) <= 60 else text[:28] + "…" + text[-28:]


_NAMED = 3
"""How many differences a refusal spells out."""


def agreed_manifest(layout: RunLayout, wanted: Manifest) -> Manifest:
    """The manifest under which `wanted` may be measured in this directory, without touching it.

    That is the one that the commit records name, where `wanted` is it up to provenance: a manifest that was deleted,
    damaged or altered since is then restored. Without a record it is the stored one, which may differ in provenance.

    Raises:
        LoopscopeError: the directory holds another run, or something that is no run at all.
    """
    agreed = _agreed(layout, wanted)
    # Only now, so that a run with other settings is refused for those and not for the files that they bring.
    layout.require_no_strangers(agreed.shards, agreed.units())
    return agreed


def _agreed(layout: RunLayout, wanted: Manifest) -> Manifest:
    try:
        data: bytes | None = read_bounded(layout.manifest)
    except (FileNotFoundError, NotADirectoryError):
        data = None
    except OSError as error:
        raise LoopscopeError(
            f"cannot read {layout.manifest} ({error.strerror}): mend that or choose another {setting('output')}"
        ) from error
    digests = {record.manifest_sha256 for record in sound_records(layout)}
    stored: Manifest | None = None
    reason: Exception | None = None
    try:
        stored = None if data is None else decode_manifest(data, str(layout.path))
    except (ManifestDamageError, OtherVersionError) as error:
        reason = error
    if stored is not None and (stored.digest in digests or not digests):
        _refuse_differences(layout, stored, wanted, begun=bool(digests))
        return stored
    # The stored manifest is not the one that the records were measured under: it was lost, damaged or altered.
    for candidate in _same_settings(layout, stored, wanted):
        if candidate.digest in digests:
            return candidate
    if data is None:
        layout.require_free()
        return wanted
    if isinstance(reason, OtherVersionError):
        raise reason
    if stored is None:
        raise LoopscopeError(f"{layout.manifest} is damaged ({reason}): {_restore(layout, None)}") from reason
    named = _named(stored, wanted) or "its command line"
    raise LoopscopeError(f"{layout.manifest} was altered after the run began ({named}): {_restore(layout, stored)}")


def _same_settings(layout: RunLayout, stored: Manifest | None, wanted: Manifest) -> Iterator[Manifest]:
    """`wanted` as it may have been written: with its own command line, the stored one, and every one of the log."""
    yield wanted
    for command_line in ([] if stored is None else [stored.command_line]) + _logged_commands(layout):
        # Built anew: a copy would keep the digest that `wanted` has worked out already.
        yield Manifest(**{**wanted.model_dump(), "command_line": command_line})


def _logged_commands(layout: RunLayout) -> list[tuple[str, ...]]:
    try:
        events = read_events(layout.events)
    except LoopscopeError:
        return []
    logged = (event.get("command_line") for event in events)
    return [tuple(line) for line in logged if isinstance(line, list) and all(isinstance(part, str) for part in line)]


def _refuse_differences(layout: RunLayout, stored: Manifest, wanted: Manifest, *, begun: bool) -> None:
    named = _named(stored, wanted)
    if not named:
        return
    if not begun:
        remedy = f"choose another {setting('output')} or remove {layout.path}, which holds no sound unit"
    elif stored.command_line and stored.command_line != wanted.command_line:
        remedy = f"choose another {setting('output')} or repeat: {shlex.join(stored.command_line)}"
    else:
        # The same command with other code, data or weights: to repeat it would end here again.
        remedy = f"choose another {setting('output')}"
    raise LoopscopeError(f"{layout.path} holds another run ({named}): {remedy}")


def _restore(layout: RunLayout, stored: Manifest | None) -> str:
    logged = _logged_commands(layout)
    began = logged[0] if logged else stored.command_line if stored is not None else ()
    typed = f" ({shlex.join(began)})" if began else ""
    other = f"or put back a copy of it, or choose another {setting('output')}"
    return f"the command that began the run restores it{typed}; {other}"


def _named(stored: Manifest, wanted: Manifest) -> str:
    found = differences(stored, wanted)
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return "; ".join(str(difference) for difference in found[:_NAMED]) + more
