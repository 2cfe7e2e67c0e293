"""A run as others can read it: without the folders, arguments and persons that its manifest names.

The copy is a whole run directory. Shards are byte for byte those of the run; records are sealed again under the
manifest that is left, so every hash of the copy can be verified without the run it was made from.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path, PurePath
from typing import Any

from loopscope.errors import LoopscopeError
from loopscope.store.files import clear_write_errors
from loopscope.store.manifest import Manifest
from loopscope.store.run import RunLayout, StoredRun, event_line
from loopscope.store.verification import records_sha256, stored_verification, verify
from loopscope.training_steps import training_step

_HUB_NAME = re.compile(r"(loop:)?[\w.-]+(/[\w.-]+)?(@[\w./-]+)?(:[\d-]+)?")
_FOLDERS = re.compile(r"(?<![\w.])(~\w*|\.\.?)?/([^\s\"',:=/]+/)+")
"""The folders of a path inside a text."""


def public_manifest(manifest: Manifest) -> Manifest:
    """The manifest without the command line, arguments of the model, and folders: of a path its last name stays."""
    payload = _without_folders(manifest.model_dump(mode="json", exclude={"tasks"}))
    payload["tasks"] = manifest.model_dump(mode="json")["tasks"]  # names that the shards hold, too
    model, settings = payload["model"], payload["settings"]
    for name, value in (("initial_state", manifest.initial_state), ("training_step", training_step(manifest))):
        if value not in (None, "question"):
            settings[name] = value  # it may stand in the specification alone
    settings.pop("model_args", None)
    if "fewshot_split" in settings:
        settings["fewshot_split"] = PurePath(str(settings["fewshot_split"])).name
    known = manifest.model.toy or manifest.model.revision is not None
    if not (known and _HUB_NAME.fullmatch(manifest.model.spec)):
        model["spec"] = model["name"]
    return Manifest.model_validate_json(json.dumps(payload), strict=True)


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_folders(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_without_folders(entry) for entry in value]
    if not isinstance(value, str):
        return value
    if value.startswith(("/", "~", "./", "../")):
        return PurePath(value).name
    return _FOLDERS.sub("", value)


def write_public_copy(run: StoredRun, folder: Path) -> StoredRun:
    """Write a finished, sound run into an empty folder as others can read it.

    Raises:
        LoopscopeError: the run is unfinished or damaged, or its tasks are named by a folder of this machine.
    """
    found = verify(run)
    if not found.ok:
        first = found.findings[0]
        raise LoopscopeError(f"{run.path} is not whole: {first.where}: {first.message}; {found.advice}")
    run, manifest, layout = StoredRun(run.path), public_manifest(run.manifest), RunLayout(folder)
    with clear_write_errors(folder):
        for name in ("units", *(table.name for table in manifest.tables())):
            (folder / name).mkdir(parents=True)
        layout.manifest.write_bytes(manifest.encode())
        for unit, record in zip(run.units, run.unit_records.values(), strict=True):
            for table in manifest.tables():
                shutil.copyfile(run.layout.shard(table.name, unit), layout.shard(table.name, unit))
            sealed = record.model_copy(update={"manifest_sha256": manifest.digest})
            layout.record(unit).write_bytes(sealed.encode())
        if run.vocabulary is not None:
            shutil.copyfile(run.layout.vocabulary, layout.vocabulary)
        logged = (event for event in run.events if event["event"] == "ways")
        kept = ({name: event[name] for name in ("event", "unit", "names")} for event in logged)
        layout.events.write_bytes(b"".join(map(event_line, kept)))
        copy, compared = StoredRun(folder), stored_verification(run)
        if compared is not None:
            sealed_again = compared.model_copy(update={"records_sha256": records_sha256(copy)})
            layout.verification.write_bytes(sealed_again.encode())
    places = {str(place) for place in (Path.home(), Path.home().resolve(), Path.cwd(), run.path.resolve().parent)}
    named = [place for place in places - {"/"} if place in layout.manifest.read_text(encoding="utf-8")]
    if named:
        raise LoopscopeError(f"the manifest of {run.path} names {named[0]}: measure its tasks again under other names")
    return copy
