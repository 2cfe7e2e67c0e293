"""`manifest.json`: what was measured, with what, and how; the identity of a run.

Nothing here changes between an undisturbed run and one that was killed and resumed: times and the like go to
`events.jsonl`. Every field but those in `PROVENANCE` must be equal for a later command to continue the run. At the end
of the file: how far another batch layout moves the numbers of a run, which follows from its manifest.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)

from loopscope.errors import LoopscopeError
from loopscope.store.column_types import Level, Table
from loopscope.store.hashing import Sha256, json_bytes, parse_json, sha256_bytes
from loopscope.store.run_directory import STATES, TaskRows, WorkUnit, plan_units
from loopscope.store.tables import SCHEMA_VERSION, TABLES

Depth = Annotated[int, Field(ge=0)]

ASKED_BY = {
    **{"certificates": "certify", "trace": "trace", "longer_steps": "scales_to", "renormalised": "renormalise"},
    **{"trajectories": "trajectories", "as_in_paper": "protocol", "interpolation": "interpolate"},
}
"""Tables that a run has where `settings` holds this; `as_in_paper` if it is about updates, from level grid on."""

PROVENANCE = frozenset({"command_line"})
"""Fields that may differ between the command that began a run and one that continues it."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelInfo(_Frozen):
    """The looped model and the exact weights that were read."""

    spec: str
    """What the user typed: a hub name, a folder, an embedded model."""
    name: str
    """The name that tables show."""
    family: str
    revision: str | None = None
    """Resolved revision on the hub; absent for folders and embedded models."""
    weights: dict[str, Sha256]
    """SHA-256 of every weight file by its name inside the checkpoint; of a model without files, of its tensors and of
    its class's code; empty for random weights."""
    config_sha256: Sha256 | None = None
    dtype: str
    affine_readout: bool
    boundary: str
    """Where the state is taken, in a phrase."""
    trained_depth: int | None = None
    random_weights: bool = False
    toy: bool = False


class TaskInfo(_Frozen):
    """One task of a run: which examples, worded how."""

    name: str
    split: str
    subset: str | None = None
    """Named subset, such as `train256`."""
    kind: Literal["solution", "options"]
    rows: Annotated[int, Field(ge=1)]
    """Examples measured in this run."""
    rows_available: Annotated[int, Field(ge=1)]
    """Examples of the split before any choice."""
    limit: int | None = None
    ids_sha256: Sha256
    """`ids_sha256` of the measured examples, in order."""
    data_sha256: Sha256
    data_revision: str | None = None
    template_sha256: Sha256
    skipped: tuple[str, ...] = ()
    """Identifiers left out by the length policy."""


class Dtypes(_Frozen):
    """The arithmetic of each stage."""

    states: str
    readout: str
    options: str = "float64"
    analysis: str = "float64"
    interventions: str = "bfloat16"


class BatchInfo(_Frozen):
    """How examples are put together into batches."""

    policy: str
    size: int | None = None
    """Examples in a batch, where that is fixed."""
    token_budget: int | None = None
    """Padded tokens in a batch, where that decides."""
    padding: str = "right"


class Manifest(_Frozen):
    """Everything that identifies a run."""

    schema_version: int = SCHEMA_VERSION
    loopscope_version: str
    code_sha256: Sha256
    model: ModelInfo
    tokenizer_sha256: Sha256 | None = None
    tasks: Annotated[tuple[TaskInfo, ...], Field(min_length=1)]
    transitions: tuple[Depth, ...]
    """Each t of an update t → t+1 that is analysed."""
    depths: Annotated[tuple[Depth, ...], Field(min_length=1)]
    """Depths at which the utility is stored; both ends of every transition are among them."""
    level: Level
    tokens: bool = False
    paths: bool = False
    dtypes: Dtypes
    device: str
    libraries: dict[str, str]
    """Versions of the libraries whose arithmetic or file format enters the run."""
    seeds: dict[str, int]
    """Of what is drawn at random: `initial_state` where the model draws one, `random_weights`."""
    batch: BatchInfo
    unit_size: Annotated[int, Field(ge=1)]
    """Examples in a work unit."""
    settings: dict[str, JsonValue] = {}
    """Any further setting that decides a number: length policy, gate threshold, implementation."""
    command_line: tuple[str, ...] = ()
    """The command that began the run, as typed."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("transitions", "depths"):
            values = getattr(self, name)
            if list(values) != sorted(set(values)):
                raise ValueError(f"{name} must increase without repetition, got {list(values)}")
        ends = {depth for t in self.transitions for depth in (t, t + 1)}
        if not ends <= set(self.depths):
            raise ValueError(f"depths lack the ends {sorted(ends - set(self.depths))} of the transitions")
        tasks = [(task.name, task.split) for task in self.tasks]
        if len(set(tasks)) != len(tasks):
            raise ValueError(f"a task and split may occur once, got {tasks}")
        if self.paths and self.level is not Level.FULL:
            raise ValueError("paths are stored at level full only")
        return self

    def tables(self) -> tuple[Table, ...]:
        """The tables that this run writes."""
        chosen = {"tokens": self.tokens, "paths": self.paths}
        chosen |= {name: bool(self.settings.get(wanted)) for name, wanted in ASKED_BY.items()}
        chosen["as_in_paper"] &= bool(self.transitions) and self.level is not Level.QUICK
        left_out = {name for name, wanted in chosen.items() if not wanted}
        return tuple(table for name, table in TABLES.items() if name not in left_out)

    @property
    def protocol(self) -> str:
        """`paper` or `loopscope`; runs from before there was a choice are loopscope's."""
        return str(self.settings.get("protocol", "loopscope"))

    @property
    def initial_state(self) -> str | None:
        """The rule by which H_0 was drawn, `question` unless the run says otherwise; None where no seed is named."""
        if "initial_state" not in self.seeds:
            return None
        _, _, spelled = self.model.spec.rpartition("initial_state=")
        chosen = spelled.partition(",")[0] if "initial_state=" in self.model.spec else "question"
        return str(self.settings.get("initial_state", chosen))

    @property
    def shards(self) -> tuple[str, ...]:
        """What every unit has a file of: the tables, and the recurrent states where they are kept."""
        kept = () if self.settings.get("keep_states") is None else (STATES,)
        return (*(table.name for table in self.tables()), *kept)

    @property
    def lens(self) -> int:
        """How many of the likeliest tokens every row of `trace` holds; 0 where there is no lens."""
        held = self.settings.get("lens", 0)
        return held if isinstance(held, int) else 0

    def units(self) -> tuple[WorkUnit, ...]:
        """The work units of this run; they follow from the manifest alone."""
        return plan_units((TaskRows(task.name, task.split, task.rows) for task in self.tasks), self.unit_size)

    def task(self, name: str, split: str) -> TaskInfo:
        """The task of that name and split."""
        for task in self.tasks:
            if (task.name, task.split) == (name, split):
                return task
        raise KeyError(f"the run has no task {name} ({split})")

    def encode(self) -> bytes:
        """The one form in which this manifest is written."""
        return json_bytes(self.model_dump(mode="json"))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the encoded manifest, by which every commit record names its run."""
        return sha256_bytes(self.encode())


class ManifestDamageError(Exception):
    """A manifest that this version should be able to read and cannot; the caller decides what that means."""


class OtherVersionError(LoopscopeError):
    """A manifest of another schema version."""


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest.

    Raises:
        OtherVersionError: it was written under another schema version.
        ManifestDamageError: it is not what loopscope writes.
    """
    try:
        payload = parse_json(data)
    except ValueError as error:
        raise ManifestDamageError(f"it is no JSON of a run: {error}") from error
    version = payload.get("schema_version") if isinstance(payload, dict) else None
    if type(version) is not int:
        raise ManifestDamageError("it is no JSON with a schema version")
    if version != SCHEMA_VERSION:
        remedy = (
            "upgrade loopscope to read it"
            if version > SCHEMA_VERSION
            else f"read it with the loopscope that wrote it ({payload.get('loopscope_version', 'unknown')})"
            " or measure again"
        )
        raise OtherVersionError(
            f"{where} has schema version {version} and this loopscope reads version {SCHEMA_VERSION}: {remedy}"
        )
    try:
        manifest = Manifest.model_validate(payload)
        # What cannot be written as JSON again (an infinity, half a surrogate pair) was never written by loopscope.
        _ = manifest.digest
        return manifest
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(name) for name in first["loc"]) or "the whole"
        raise ManifestDamageError(f"{field}: {first['msg']}") from error
    except ValueError as error:
        raise ManifestDamageError("it holds what JSON cannot hold") from error


class LayoutMargin(NamedTuple):
    """How far another batch layout moves a gain or a slope, in nats; an outcome nearer to zero is layout-sensitive.

    Of a reference solution's mean, of a choice between options, of a single token. Each figure is what 99 of 100 values
    of ΔU and of A stayed below in `loopscope verify --layout`, rounded up; docs/measuring.md says where.
    """

    solution: float
    options: float
    token: float


LAYOUT_MARGINS = {
    "float64": LayoutMargin(1e-12, 1e-12, 1e-12),
    "float32": LayoutMargin(1e-6, 2e-6, 1e-5),
    "float16": LayoutMargin(2.5e-4, 2e-3, 8e-3),
    "bfloat16": LayoutMargin(2e-3, 1.5e-2, 6e-2),
}
"""By the arithmetic that depends on the layout; FP16, with three bits more, an eighth of BF16."""
STEADY = frozenset({"ouro", "huginn", "retrofit-llama", "retrofit-olmo", "loop"})
"""Families whose products and attention are loopscope's own; another's code may round as it likes."""
STEADY_DEVICES = ("cpu", "NVIDIA H200")
"""Where their states were seen not to depend on the layout; another GPU's library may take other kernels."""


def layout_margin(manifest: Manifest) -> LayoutMargin:
    """The figures of a run.

    On a CPU and on an H200 the states of loopscope's own model code do not depend on the layout, but for options that
    share a row, so that only the readout's arithmetic counts there.
    """
    dtypes = manifest.dtypes
    steady = manifest.device.startswith(STEADY_DEVICES) and manifest.model.family in STEADY
    # float32 products on a GPU are not padded, and move by no more than the readout's own.
    steady &= not manifest.settings.get("share_context")
    arithmetic = {dtypes.readout} if steady else {dtypes.readout, dtypes.states}
    # An arithmetic that is not in the table is one of a user's model: nothing finer than BF16 is known of it.
    return max(LAYOUT_MARGINS.get(name, LAYOUT_MARGINS["bfloat16"]) for name in arithmetic)
