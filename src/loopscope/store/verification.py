"""`loopscope verify`: does a run directory still hold, byte for byte and row for row, what its records say?

Here: hashes, schema, counts, identifiers. What measures some rows or everything again is given as `replay`, and what
it compared is kept in `verification.json`, for studies to read.

`write_public_copy` makes of a sound run one that others can read: without the folders, arguments and persons that its
manifest names. The copy is a whole run directory. Shards are byte for byte those of the run; records are sealed again
under the manifest that is left, so every hash of the copy can be verified without the run it was made from.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from pydantic import ConfigDict, Field

from loopscope.errors import LoopscopeError
from loopscope.limits import read_regular
from loopscope.store.manifest import Manifest, SealedJson, Sha256, Stored, WorkUnit, ids_sha256, sha256_bytes
from loopscope.store.run import (
    PARTIAL,
    REPAIR,
    Count,
    DamageError,
    RunLayout,
    StoredRun,
    event_line,
    read_shard_bytes,
)
from loopscope.store.shards import decode, table_problems
from loopscope.store.writer import clear_write_errors, write_atomically


class Finding(NamedTuple):
    """One thing that is not as it should be."""

    kind: Literal["missing", "damaged", "rows", "examples", "leftover", "stranger", "replay"]
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.message}"


class Comparison(Stored):
    """What was computed again and compared bit for bit with what the run holds, or computed in two ways.

    Attributes:
        largest: The largest difference of two numbers; 0 where all bits are the same, None where shapes or empty
            cells differ.
        first: Where the first difference is.
    """

    what: str
    of: Literal["batches", "values"]
    compared: Count
    differing: Count
    largest: Annotated[float, Field(ge=0)] | None
    first: str | None = None

    def __str__(self) -> str:
        largest = "empty cells differ" if self.largest is None else f"largest difference {self.largest:g}"
        return f"{self.what}: {self.differing:,} of {self.compared:,} {self.of} differ, {largest}"


class StoredVerification(SealedJson):
    """`verification.json`: how everything, measured again, differs from these records.

    Attributes:
        records_sha256: Digest of the commit records in unit order: the result is about these rows alone.
    """

    model_config = ConfigDict(extra="ignore")  # older ones name the version and the device

    records_sha256: Sha256
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class Replayed:
    """What a replay gives: its findings and what it compared.

    Attributes:
        whole: Whether everything was computed again, not a sample.
    """

    findings: tuple[Finding, ...]
    comparisons: tuple[Comparison, ...] = ()
    whole: bool = False


Replay = Callable[[StoredRun], Replayed]


@dataclass(frozen=True)
class Verification:
    """What was checked and what is wrong.

    Attributes:
        rows: Rows read, by table.
    """

    findings: tuple[Finding, ...]
    units_checked: int
    units_planned: int
    rows: dict[str, int]
    replayed: Replayed | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def advice(self) -> str:
        """What mends the findings, as the end of a sentence."""
        kinds = {finding.kind for finding in self.findings}
        if kinds <= {"missing", "damaged", "leftover"}:
            return REPAIR
        if kinds <= {"missing", "damaged", "leftover", "rows"}:
            return "remove the records (units/NNNNNN.json) of the units named here, then " + REPAIR
        return "move these files away" if kinds == {"stranger"} else "measure it again into another folder"

    def __repr__(self) -> str:
        result = "nothing wrong" if self.ok else f"{len(self.findings)} findings; {self.advice}"
        return f"<Verification: {self.units_checked} of {self.units_planned} units checked, {result}>"


def verify(run: StoredRun | str | os.PathLike[str], replay: Replay | None = None) -> Verification:
    """Check hashes, schema, counts, missing and non-finite cells and identifiers again.

    Args:
        run: the run, or its directory.
        replay: called at the end if everything else holds; its findings are added, and what it compared is stored.
    """
    # Opened anew: a run object may be older than what is on disk.
    run = StoredRun(run.path if isinstance(run, StoredRun) else run)
    findings = [
        Finding("damaged", f"unit {unit.name}", run.damage[unit.index])
        if unit.index in run.damage
        else Finding("missing", f"unit {unit.name}", "no record: it is not measured yet")
        for unit in run.missing_units
    ]
    rows = dict.fromkeys((table.name for table in run.manifest.tables()), 0)
    ids: dict[tuple[str, str], list[str]] = {(task.name, task.split): [] for task in run.manifest.tasks}
    for unit in run.present_units:
        findings += _unit(run, unit, rows, ids[unit.task, unit.split])
    findings.sort(key=lambda finding: finding.where)
    if not findings:
        findings += [
            Finding("examples", f"{name} ({split})", "the example identifiers are not those of the manifest")
            for name, split in ids
            if ids_sha256(ids[name, split]) != run.manifest.task(name, split).ids_sha256
        ]
    findings += _other_files(run)
    replayed = replay(run) if replay is not None and not findings else None
    if replayed is not None:
        findings += replayed.findings
        if replayed.whole:
            stored = StoredVerification(records_sha256=records_sha256(run), comparisons=replayed.comparisons)
            write_atomically(run.layout.verification, stored.encode())
    return Verification(tuple(findings), len(run.unit_records), len(run.units), rows, replayed)


def _unit(run: StoredRun, unit: WorkUnit, rows: dict[str, int], ids: list[str]) -> Iterator[Finding]:
    where, record = f"unit {unit.name}", run.unit_records[unit.index]
    for table in run.manifest.tables():
        try:
            data = decode(table, read_shard_bytes(run.layout, unit, record, table.name), run.manifest.schema_version)
        except DamageError as damage:
            yield Finding("damaged", where, str(damage))
            continue
        except (ValueError, pa.ArrowException) as error:
            yield Finding("rows", where, f"{table.name}/{unit.name}.parquet: {error}")
            continue
        for problem in table_problems(run.manifest, unit, table, data):
            yield Finding("rows", where, problem.message)
        rows[table.name] += len(data)
        if table.name == "examples":
            ids += data.column("example_id").to_pylist()


def _other_files(run: StoredRun) -> Iterator[Finding]:
    units = {unit.name for unit in run.units}
    for path in run.layout.unit_files():
        where = path.relative_to(run.path).as_posix()
        if path.name.endswith(PARTIAL):
            yield Finding("leftover", where, "an unfinished write; the next command removes it")
        elif path.suffix in (".json", ".parquet") and path.stem not in units:
            yield Finding("stranger", where, "no unit of the run has this file")
    for path, read in (
        (run.layout.events, lambda: run.events),
        (run.layout.vocabulary, lambda: run.vocabulary),
        (run.layout.verification, lambda: stored_verification(run)),
    ):
        try:
            read()
        except LoopscopeError as error:
            yield Finding("stranger", path.name, str(error))


def records_sha256(run: StoredRun) -> str:
    """The digest of the commit records of the units that count, in their order."""
    return sha256_bytes(b"".join(run.unit_records[unit.index].encode() for unit in run.present_units))


def stored_verification(run: StoredRun) -> StoredVerification | None:
    """What was compared when the run was last verified bit for bit; None where it never was, or held other rows.

    Raises:
        LoopscopeError: the file is damaged.
    """
    path = run.layout.verification
    try:
        stored = StoredVerification.decode(read_regular(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LoopscopeError(f"{path} is damaged: remove it and verify the run again") from error
    return stored if stored.records_sha256 == records_sha256(run) else None


_HUB_NAME = re.compile(r"(loop:)?[\w.-]+(/[\w.-]+)?(@[\w./-]+)?(:[\d-]+)?")
_FOLDERS = re.compile(r"(?<![\w.])(~\w*|\.\.?)?/([^\s\"',:=/]+/)+")
"""The folders of a path inside a text."""


def public_manifest(manifest: Manifest) -> Manifest:
    """The manifest without the command line, arguments of the model, and folders: of a path its last name stays."""
    payload = _without_folders(manifest.model_dump(mode="json", exclude={"tasks"}))
    payload["tasks"] = manifest.model_dump(mode="json")["tasks"]  # names that the shards hold, too
    model, settings = payload["model"], payload["settings"]
    for name, value in (("initial_state", manifest.initial_state), ("training_step", manifest.training_step)):
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
