"""One question of a run at one update: its words, its path, its scales and its tokens, as `run.question` gives them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from loopscope.display import with_outcome_names
from loopscope.errors import LoopscopeError, setting, shown, whole
from loopscope.path import GRID, PATH_NODES, Outcome, beneficial_range, classify, grid_optimum, quadratic_root
from loopscope.store.manifest import DEEPEST
from loopscope.store.schema import CHORD, ends_of, parse_transitions, update_name
from loopscope.studies.conditions import printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from loopscope.store import StoredRun

    Floats = NDArray[np.float64]


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, *, sign: bool = False) -> str:
    """A number with three significant digits, a true minus, and a power of ten where it is very small or large.

    >>> number(-0.01234), number(0.000017, sign=True), number(0.0), number(0.0009996), number(1234.6), number(123456.0)
    ('−0.0123', '+1.7×10⁻⁵', '0', '1×10⁻³', '1235', '1.23×10⁵')
    """
    if value == 0:
        return "0"
    size = abs(value)
    mark = "−" if value < 0 else "+" if sign else ""
    if 1e-3 <= size < 1e4:
        decimals = max(0, 2 - int(f"{size:.2e}".partition("e")[2]))
        return f"{mark}{size:.{decimals}f}"
    mantissa, _, power = f"{size:.2e}".partition("e")
    shortened = mantissa.rstrip("0").rstrip(".")
    return f"{mark}{shortened}×10{str(int(power)).translate(_SUPERSCRIPT)}"


def signed(value: float) -> str:
    """The same with a plus sign."""
    return number(value, sign=True)


def scale(value: float) -> str:
    """A scale α.

    >>> scale(0.25), scale(1.0), scale(0.12345), scale(math.nan)
    ('0.25', '1', '0.123', '—')
    """
    return f"{round(value, 3):g}" if math.isfinite(value) else "—"


def of_update(outcome: Outcome, slope: float, gain: float, predicted: float, best: float) -> str:
    """What one update did to one question; the page of the report says the same.

    Args:
        outcome: its class.
        slope: A.
        gain: ΔU.
        predicted: α̂.
        best: the best scale; NaN where it is not known.
    """
    match outcome:
        case Outcome.PROGRESSING:
            more = f" It would have gained most at scale {scale(best)}." if best < 1 else ""
            return f"Progress: the update raises the utility by {number(gain)} nats.{more}"
        case Outcome.NEUTRAL:
            return "Neutral: the utility is the same at both ends."
        case Outcome.DIRECTIONAL_FAILURE:
            start = "downhill" if slope < 0 else "level"
            return (
                f"Directional failure: the update starts {start} and ends {number(-gain)} nats lower. "
                "The direction was wrong from the first step."
            )
        case _:
            known = f"; the best scale is {scale(best)}." if math.isfinite(best) else "."
            return (
                f"Finite-step failure: the update starts uphill and ends {number(-gain)} nats lower. The direction was "
                "right, the step too long. The quadratic model, computed with the reference, would have "
                f"stopped at {scale(predicted)}{known}"
            )


TOKEN_COLUMNS = ("option", "token", "text", "utility_before", "gain", "slope", "quadratic", "outcome")
BARS = "▁▂▃▄▅▆▇█"
SHOWN = 600
"""Characters of a prompt in plain text."""


@dataclass(frozen=True)
class QuestionView:
    """One update of one question. A notebook draws it; `print` describes it; the numbers are attributes."""

    run: StoredRun
    example: Mapping[str, Any]
    """The row of `examples`: prompt, reference or options, difficulty, …"""
    transition: int
    """t of the update t → t+1."""
    alpha: float = 1.0
    """The scale at which tokens are coloured."""

    @property
    def id(self) -> str:
        """Identifier within its task."""
        return str(self.example["example_id"])

    @cached_property
    def updates(self) -> pl.DataFrame:
        """The rows of `questions`, one per measured update, outcomes by name."""
        return with_outcome_names(self.rows_of(self.run.records.lazy()).sort("transition").collect())

    @cached_property
    def record(self) -> dict[str, Any]:
        """The row of `questions` of this update."""
        return self.updates.row(by_predicate=pl.col("transition") == self.transition, named=True)

    @property
    def slope(self) -> float:
        """A, nats."""
        return float(self.record["slope"])

    @property
    def quadratic(self) -> float:
        """Q, nats."""
        return float(self.record["quadratic"])

    @property
    def gain(self) -> float:
        """ΔU of the full step, nats."""
        return float(self.record["gain"])

    @property
    def outcome(self) -> Outcome:
        """What the full step did."""
        found: Outcome = classify(self.slope, self.gain)
        return found

    @cached_property
    def path(self) -> tuple[Floats, Floats]:
        """Scales α and gains φ(α): the stored FP64 path, the 21 grid scales, or both ends."""
        if self.run.manifest.paths:
            row = self._here(self.run.scan("paths"))
            return np.linspace(0.0, 1.0, PATH_NODES), row["gain"][0].to_numpy()
        if self.record["grid_gain"] is not None:
            return np.array(GRID), np.array(self.record["grid_gain"])
        return np.array([0.0, 1.0]), np.array([0.0, self.gain])

    @cached_property
    def scales(self) -> dict[str, float]:
        """The scales that matter, NaN where one is not known.

        `predicted` α̂; `best` α* (of the FP64 path where it was analysed, else on the grid); `root` of the quadratic
        model; `boundary` r₁; `safe`, the end of the range in which every scale helps.
        """
        record = self.record
        best = middle((record["fp64_optimum_low"], record["fp64_optimum_high"]))
        if math.isnan(best) and record["grid_gain"] is not None:
            best = float(grid_optimum(GRID, record["grid_gain"]).alpha)
        bound = record["fp64_L_D"]
        return {
            "predicted": float(record["quadratic_scale"]),
            "best": best,
            "root": float(quadratic_root(self.slope, self.quadratic)),
            "boundary": middle(record["fp64_boundary"]),
            "safe": math.nan if bound is None else float(beneficial_range(record["fp64_slope"], bound)),
        }

    @cached_property
    def utilities(self) -> dict[int, float]:
        """Reference utility by depth, nats."""
        rows = self.rows_of(self.run.depths.lazy()).sort("depth").collect()
        return dict(zip(rows["depth"].to_list(), rows["utility"].to_list(), strict=True))

    @cached_property
    def token_rows(self) -> pl.DataFrame | None:
        """The rows of `tokens` at this update; None where the run was measured without them."""
        return self._here(self.run.scan("tokens")).sort("option", "token") if self.run.manifest.tokens else None

    @property
    def tokens(self) -> pl.DataFrame:
        """The reference tokens with their own gain, slope and outcome, nats; an error in a run without tokens."""
        rows = self.token_rows
        if rows is None:
            raise LoopscopeError(f"{self.run.path} has no tokens: measure again with {setting('tokens', True)}")
        spans = rows.select("option", "text_start", "text_end").iter_rows()
        words = [None if start is None else self.texts[option][start:end] for option, start, end in spans]
        return with_outcome_names(rows.with_columns(text=pl.Series(words, dtype=pl.String))).select(TOKEN_COLUMNS)

    @property
    def texts(self) -> list[str]:
        """The reference solution, or the options."""
        options = self.example["options"]
        return [self.example["reference"] or ""] if options is None else list(options)

    @property
    def verdict(self) -> str:
        """What the update did, in a sentence."""
        scales = self.scales
        return of_update(self.outcome, self.slope, self.gain, scales["predicted"], scales["best"])

    def at(self, transition: int | str | None = None, alpha: float | None = None) -> QuestionView:
        """The same question at another update, or coloured at another scale."""
        return replace(
            self,
            transition=self.transition if transition is None else chosen_transition(self.run, transition),
            alpha=self.alpha if alpha is None else chosen_alpha(alpha),
        )

    @property
    def title(self) -> str:
        """Model, task, identifier and update."""
        model, task = printable(self.run.manifest.model.name), printable(self.example["task"])
        return f"{model} · {task} · {printable(self.id)} · loop {update_name(self.transition)}"

    def __repr__(self) -> str:
        return f"<Question {self.title}: {self.outcome}, A {signed(self.slope)}, ΔU {signed(self.gain)}>"

    def __str__(self) -> str:
        alphas, gains = self.path
        bars = np.interp(np.linspace(0, 1, 41), alphas, gains)
        low, span = float(bars.min()), float(np.ptp(bars)) or 1.0
        drawn = "".join(BARS[int((value - low) / span * (len(BARS) - 1))] for value in bars)
        known = ", ".join(f"{name} {scale(value)}" for name, value in self.scales.items() if math.isfinite(value))
        prompt, right = self.example["prompt"], self.example["correct_option"]
        marks = ["reference:"] if right is None else ["option:"] * len(self.texts)
        if right is not None:
            marks[right] = "right option:"
        return "\n".join([
            self.title,
            self.verdict,
            f"A {signed(self.slope)}, Q {signed(self.quadratic)}, ΔU {signed(self.gain)} nats; scales: {known}",
            f"φ(α), α from 0 to 1: {drawn} (from {signed(float(gains.min()))} to {signed(float(gains.max()))})",
            "",
            prompt if len(prompt) <= SHOWN else prompt[:SHOWN] + "…",
            *(f"{mark} {text}" for mark, text in zip(marks, self.texts, strict=True)),
        ])  # fmt: skip

    def _repr_html_(self) -> str:
        from loopscope.report.notebook import question_html

        return question_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython in a terminal

    def rows_of(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """The rows of a table that are about this question."""
        return frame.filter(
            pl.col("task") == self.example["task"],
            pl.col("split") == self.example["split"],
            pl.col("row") == self.example["row"],
        )

    def _here(self, frame: pl.LazyFrame) -> pl.DataFrame:
        return self.rows_of(frame.filter(pl.col("transition") == self.transition)).collect()


def middle(bracket: Sequence[float | None] | None) -> float:
    """The middle of a stored bracket; NaN where there is none."""
    low, high = bracket or (None, None)
    return math.nan if low is None or high is None else (low + high) / 2


def question(run: StoredRun, id: str, transition: int | str | None, task: str | None, alpha: float) -> QuestionView:
    """A question of a run by its identifier; the last update unless one is named."""
    if not run.manifest.transitions:
        raise LoopscopeError(f"{run.path} has no update: measure again with {setting('transitions')}")
    examples = run.examples
    names = examples["task"].unique(maintain_order=True).to_list()
    if task is not None and task not in names:
        raise LoopscopeError(f"{setting('task', task)} is not in this run: choose {', '.join(names)}")
    examples = examples.filter(pl.col("task").is_in(names if task is None else [task]))
    found = examples.filter(pl.col("example_id") == str(id))
    if not found.height:
        ids = examples["example_id"].to_list()
        close = difflib.get_close_matches(str(id)[:80], ids, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(ids[:3])}, …"
        raise LoopscopeError(f"{run.path} has no question {shown(id)}: {hint}")
    if found.height > 1:
        places = ", ".join(f"task={name!r}" for name in found["task"].to_list())
        raise LoopscopeError(f"{shown(id)} is in {found.height} tasks of {run.path}: add one of {places}")
    at = run.manifest.transitions[-1] if transition is None else chosen_transition(run, transition)
    return QuestionView(run, found.row(0, named=True), at, chosen_alpha(alpha))


def chosen_transition(run: StoredRun, transition: int | str) -> int:
    """A transition that the run has; `1>3` names a chord."""
    known = run.manifest.transitions
    if isinstance(transition, str):
        (transition, *_) = parse_transitions(transition, largest=DEEPEST)
    at = whole("transition", transition, min(known), max(known))
    if at not in known:
        names = ", ".join(str(t) if t < CHORD else "{}>{}".format(*ends_of(t)) for t in known)
        raise LoopscopeError(f"{setting('transition', at)} was not measured: choose {names}")
    return at


def chosen_alpha(alpha: float) -> float:
    """A scale from 0 to 1."""
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
        raise LoopscopeError(f"{setting('alpha', alpha)} is not a scale: give a number from 0 to 1")
    return float(alpha)
