"""Some questions of a run measured again: what `loopscope verify` compares with the records.

A few questions of every task go through `measure` into a scratch directory, with the sources and settings of the run.
Texts and tokens must be equal, utilities and coefficients as far as the arithmetic lets them: the questions stand in
other batches, and device, code and libraries may be others.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from loopscope.errors import LoopscopeError
from loopscope.measuring.rerun import OTHER_SOURCES, Named, may_differ, request_of
from loopscope.measuring.run import run_request
from loopscope.models.in_memory import borrowed
from loopscope.store.manifest import Manifest, differences
from loopscope.store.run import StoredRun
from loopscope.store.verification import Finding
from loopscope.tasks.encoding import LoadedTask

_QUESTIONS = 4
"""Questions of each task, where batches are not larger."""
_EXACT = ("prompt", "reference", "options", "correct_option", "option", "token", "position", "token_id")
_NUMBERS = (
    "utility", "option_scores", "option_logliks", "utility_before", "utility_after", "gain", "slope", "quadratic",
    "grid_gain", "fp64_slope", "fp64_quadratic", "fp64_gain", "fp64_quarter_gain", "log_prob", "entropy", "state_norm",
    "step_norm",
)  # fmt: skip
"""What follows smoothly from the states; a bracket, a class or a rank may jump by a rounding error."""
_KEYS = ("task", "split", "example_id", "transition", "depth", "option", "token")
_TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 5e-2, "float16": 5e-2}
"""By arithmetic, relative to 1 + |value|."""
_OF_ROWS = ("rows", "ids_sha256", "skipped")
"""What the manifest says of a task's rows; of a sample they are compared themselves."""


class _OtherSourcesError(LoopscopeError):
    """Weights, tokenizer or settings are not those of the run."""


def replay(
    run: StoredRun,
    named: Named = Named(),  # noqa: B008
    gaps: list[float] | None = None,
) -> list[Finding]:
    """Measure a sample of every task again and report what came out otherwise.

    Args:
        run: the run, whose records are sound.
        named: what the user names of its sources.
        gaps: takes the largest difference of a utility.
    """
    try:
        with borrowed(named.model):
            return list(_replay(run, named, [] if gaps is None else gaps))
    except _OtherSourcesError as error:
        return [Finding("replay", str(run.path), str(error))]
    except LoopscopeError as error:
        return [Finding("replay", str(run.path), f"cannot be measured again: {error}")]


def _replay(run: StoredRun, named: Named, gaps: list[float]) -> Iterator[Finding]:
    samples = _samples(run)
    request = request_of(run, named)
    rows = {key: frozenset(frame["source_row"]) for key, frame in samples.items()}
    request = replace(request, data=replace(request.data, sample=rows))
    given = {task.name for task in request.data.tasks if isinstance(task, LoadedTask)}  # from the run itself

    def check(wanted: Manifest) -> None:
        for entry in differences(run.manifest, wanted):
            kind, _, rest = entry.field.partition(".")
            of_rows = kind == "task" and (rest.endswith(_OF_ROWS) or rest.partition("/")[0] in given)
            if not of_rows and not entry.field.startswith((*may_differ(run.manifest), "batch.")):
                raise _OtherSourcesError(f"{OTHER_SOURCES}: {entry}")

    chosen = pl.concat(samples.values()).select("task", "split", "example_id")
    with tempfile.TemporaryDirectory() as scratch:
        again = StoredRun(run_request(request, scratch, check=check))
        for table in run.manifest.tables():
            stored = run.scan(table.name).join(chosen.lazy(), ["task", "split", "example_id"], "semi").collect()
            yield from _differences(table.name, stored, again.read(table.name), _tolerance(run.manifest), gaps)


def _samples(run: StoredRun) -> dict[tuple[str, str], pl.DataFrame]:
    """Neighbouring questions of every task, the same for the same run; whole batches where these have a fixed size."""
    chance = random.Random(run.manifest.digest)
    found = {}
    size = run.manifest.batch.size or _QUESTIONS
    size *= -(-_QUESTIONS // size)
    for task in run.manifest.tasks:
        examples = run.examples.filter(pl.col("task") == task.name, pl.col("split") == task.split).sort("row")
        start = chance.randrange(0, len(examples), size)
        found[task.name, task.split] = examples[start : start + size]
    return found


def _tolerance(manifest: Manifest) -> float:
    return max(_TOLERANCES[manifest.dtypes.states], _TOLERANCES[manifest.dtypes.readout])


def _differences(
    table: str, stored: pl.DataFrame, measured: pl.DataFrame, tolerance: float, gaps: list[float]
) -> Iterator[Finding]:
    """One finding for each column whose cells do not agree."""
    keys = [name for name in _KEYS if name in stored.columns]
    if len(stored) != len(measured):
        yield Finding("replay", table, f"{len(measured)} rows instead of {len(stored)}")
        return
    stored, measured = stored.sort(keys), measured.sort(keys)
    for name in stored.columns:
        if name in _EXACT and not stored[name].equals(measured[name]):
            yield Finding("replay", f"{table}.{name}", "other values")
        if name not in _NUMBERS:
            continue
        old, new = (
            frame[name].explode() if frame[name].dtype == pl.List else frame[name] for frame in (stored, measured)
        )
        if len(old) != len(new) or not old.is_null().equals(new.is_null()):
            yield Finding("replay", f"{table}.{name}", "other cells are empty")
            continue
        gap = (new - old).abs().fill_null(0.0)
        if (table, name) == ("depths", "utility"):
            gaps.append(float(gap.max() or 0.0))  # type: ignore[arg-type]
        worst = (gap / (1.0 + old.abs().fill_null(0.0))).arg_max()
        if worst is not None and not gap[worst] <= tolerance * (1.0 + abs(old[worst] or 0.0)):
            yield Finding("replay", f"{table}.{name}", f"{new[worst]!r} instead of {old[worst]!r}")
