"""What the page decodes when a question is opened: depths, option scores, paths, bounds, tokens, and its lens.

A whole validation set has millions of token paths, so their precision follows from how many there are: 16 or 8 bits of
the token's largest |φ|, or both ends alone. Gains of the full step are kept in 32 bits in any case.

Only the first questions of a set carry a lens (the likeliest tokens at every reference token after every loop), because
one question has a row per option, token and loop. Vocabulary ids are numbered anew by how often they occur, so that
most of them are small numbers; their texts are stored once.

Shapes: N questions, T transitions, J reference tokens of all questions, G = 21 grid scales, D loops and K
candidates of a lens. The question (or the token) is the first axis of every array.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from loopscope.path import EFFECT_MARGIN, beneficial_range, quadratic_root, sampled_crossing
from loopscope.report.evaluation_set import CHUNK, EvaluationSet, Ragged, Single, pack, packed_chunks
from loopscope.studies.records import GRID_SCALES, of_set

ROWS_OF_BITS = {16: 150_000, 8: 1_500_000}
"""Up to how many token rows (tokens × transitions) paths are kept with so many bits: 10 to 20 MB of page."""
_ANALYSED = ("optimum_low", "optimum_high", "safe_scale", "L_D", "mu", "C_upper")
STORED = {"kl_correction": "kl_correction"} | {name: f"fp64_{name}" for name in _ANALYSED}
"""Columns of `questions` by the name that the page gives them; those without any value are left out."""


def path_bits(token_rows: int) -> int:
    """With how many bits token paths are kept, so that the page stays small enough to mail; 0 for both ends alone.

    >>> path_bits(10_000), path_bits(1_000_000), path_bits(50_000_000)
    (16, 8, 0)
    """
    return next((bits for bits, most in ROWS_OF_BITS.items() if token_rows <= most), 0)


def detail_chunks(data: EvaluationSet, bits: int, *, paths: bool) -> Iterator[str]:
    """Packed chunks of `CHUNK` questions; `paths` says whether the stored FP64 paths go along."""
    numbers = scalars(data)
    arrays: dict[str, Any] = {f"scalar_{name}": values.T for name, values in numbers.items()}
    depths = data.depth_rows
    arrays["utility"] = depths["utility"].to_numpy().reshape(len(data), len(data.depths)).astype(np.float32)
    if (grid := data.grid()) is not None:
        arrays["grid"] = grid.astype(np.float32).swapaxes(0, 1)
    if paths:
        arrays["path"] = np.stack([matrix(data.paths(t)["gain"]) for t in data.transitions], axis=1)
    ragged: tuple[Ragged, ...] = ()
    if data.condition.kind == "options" and not depths["option_scores"].null_count():
        scores = depths["option_scores"]
        sizes = scores.list.len().to_numpy().reshape(len(data), -1).sum(axis=1)
        column = scores.explode().to_numpy().astype(np.float32)
        ragged += (Ragged("option_counts", np.append(0, np.cumsum(sizes)), {"option_scores": column}),)
    if data.run.manifest.tokens and (tokens := token_columns(data, bits)):
        ragged += (tokens,)
    yield from packed_chunks(len(data), CHUNK, arrays, ragged)


def scalars(data: EvaluationSet) -> dict[str, Single]:
    """One number per update, [T, N]: stored columns, and what `loopscope.path` says of them."""
    found = {name: data.stacked(column) for name, column in STORED.items() if data.has(column)}
    found["root"] = _each(data, lambda updates: quadratic_root(updates.slope, updates.quadratic))
    if (grid := data.grid()) is not None:
        crossing = sampled_crossing(GRID_SCALES, grid)
        found["crossing_low"] = np.asarray(crossing.lower, dtype=np.float32)
        found["crossing_high"] = np.asarray(crossing.upper, dtype=np.float32)
    if data.has("fp64_boundary"):
        found["boundary"] = _each(
            data, lambda updates: (updates.element("fp64_boundary", 0) + updates.element("fp64_boundary", 1)) / 2
        )
    if data.has("fp64_L_D"):
        found["safe_end"] = _each(data, _safe_end)
    return found


def _each(data: EvaluationSet, number: Any) -> Single:
    return np.stack([number(updates) for updates in data.updates]).astype(np.float32)


def _safe_end(updates: Any) -> NDArray[np.float64]:
    """min{1, 2A/L_D}, the end of the range in which every scale helps; NaN where it is not known."""
    bound = updates.floats("fp64_L_D")
    end = np.full(len(updates), np.nan)
    known = ~np.isnan(bound)
    end[known] = beneficial_range(updates.floats("fp64_slope")[known], bound[known])
    return end


def token_columns(data: EvaluationSet, bits: int) -> Ragged | None:
    """All reference tokens of a set; None where it has none."""
    frames = [data.tokens(transition) for transition in data.transitions]
    first = frames[0]
    if not first.height:
        return None
    columns = token_places(first)
    columns["token_gain"] = np.stack([frame["gain"].to_numpy() for frame in frames], axis=1).astype(np.float32)
    if bits and not any(frame["grid_gain"].null_count() for frame in frames):
        grid = np.stack([matrix(frame["grid_gain"]) for frame in frames], axis=1)
        columns["token_scale"], columns["token_steps"] = quantised(grid, bits)
    return Ragged("token_counts", token_offsets(data.examples["row"], first), columns)


def token_offsets(rows: pl.Series, tokens: pl.DataFrame) -> NDArray[np.int64]:
    """Where the tokens of each question begin, and the end."""
    found: NDArray[np.int64] = np.searchsorted(tokens["row"].to_numpy(), np.append(rows.to_numpy(), rows[-1] + 1))
    return found


def token_places(tokens: pl.DataFrame) -> dict[str, NDArray[Any]]:
    """Option and characters of each token; -1 where the run does not say which characters."""
    return {
        "token_option": tokens["option"].to_numpy().astype(np.uint8),
        "token_start": tokens["text_start"].fill_null(-1).to_numpy().astype(np.int32),
        "token_end": tokens["text_end"].fill_null(-1).to_numpy().astype(np.int32),
    }


def matrix(lists: pl.Series) -> Single:
    """A column of lists of one length as rows."""
    return lists.explode().to_numpy().reshape(len(lists), -1).astype(np.float32)


def quantised(grid: Single, bits: int) -> tuple[Single, NDArray[Any]]:
    """Paths in a few bits: a step size per token, and the difference of each grid point to the one before it.

    Differences wrap around, and sums of them wrap back.

    >>> step, differences = quantised(np.array([[0.0, 0.5, -1.0]], dtype=np.float32), 8)
    >>> (differences.cumsum(axis=-1, dtype=np.int8) * step[:, None]).round(2).tolist()
    [[0.0, 0.5, -1.0]]
    """
    kind = np.dtype(f"i{bits // 8}")
    step = np.abs(grid).max(axis=-1) / np.float32(np.iinfo(kind).max)
    levels = np.rint(np.divide(grid, step[..., None], out=np.zeros_like(grid), where=step[..., None] > 0))
    differences = np.diff(levels.astype(np.int32), axis=-1, prepend=np.int32(0)).astype(kind)
    return step.astype(np.float32), differences


LENS_QUESTIONS = 500
"""Questions of a set that carry their lens unless the writer says otherwise: under 10 MB of page for four options."""
LENS_CHUNK = 16
"""Questions that are decoded together."""
PROBABILITY_STEPS = 65535
"""Probabilities of candidates are kept in 16 bits; those of references as 32-bit logarithms."""


class Lens(NamedTuple):
    """The lens of one evaluation set."""

    vocabulary: str
    """Packed: texts of the vocabulary, and counts by which questions are ordered."""
    described: dict[str, Any]
    """What the page must know of it at once."""
    chunks: Iterator[str]
    """Packed chunks of `LENS_CHUNK` questions, in order."""


def lens_of(data: EvaluationSet, most: int) -> Lens | None:
    """Read the lens of the first questions of a set; None where the run has none."""
    candidates, rows = data.run.manifest.lens, data.examples["row"].head(most)
    if not candidates or not len(rows):
        return None
    trace = data.run.trace.filter(of_set(data.condition), pl.col("row") <= rows[-1])
    frame = trace.collect().sort("row", "option", "token", "depth")
    first = frame.filter(pl.col("depth") == 1)
    depths = frame.height // first.height

    def by_depth(column: pl.Series, *more: int) -> NDArray[Any]:
        return column.to_numpy().reshape(first.height, depths, *more)

    log_prob, rank = by_depth(frame["log_prob"]), by_depth(frame["rank"]).astype(np.int32)
    gains = np.stack([by_depth(frame["gains"].list.get(index)) for index in range(3)])
    short_gain = overshoots(log_prob, gains)
    ids = by_depth(frame["lens_ids"].explode(), candidates)
    reference = first["token_id"].to_numpy()
    known, counts = np.unique(np.concatenate([ids.ravel(), reference]), return_counts=True)
    vocabulary = known[np.argsort(-counts, kind="stable")]
    numbers = np.empty(int(vocabulary.max()) + 1, np.uint16 if len(vocabulary) <= PROBABILITY_STEPS else np.uint32)
    numbers[vocabulary] = np.arange(len(vocabulary))
    offsets = token_offsets(rows, first)
    right = (rank == 1).astype(np.int32)
    trained = min(data.run.manifest.model.trained_depth or 1, depths)
    order = {"lost": right[:, trained - 1] & (right[:, -1] == 0), "overshot": (short_gain > 0).sum(axis=1)}
    texts = data.run.vocabulary or []
    probs = PROBABILITY_STEPS * by_depth(frame["lens_probs"].explode(), candidates)
    columns = token_places(first) | {
        "reference": numbers[reference],
        "log_prob": log_prob.astype(np.float32),
        "rank": rank,
        "short_gain": short_gain,
        "ids": numbers[ids],
        "probs": np.rint(probs).astype(np.uint16),
    }
    return Lens(
        pack(
            {name: np.add.reduceat(values, offsets[:-1]).astype(np.int32) for name, values in order.items()},
            {"texts": [texts[each] if each < len(texts) else f"#{each}" for each in vocabulary]},
        ),
        {"questions": len(rows), "depths": depths, "candidates": candidates, "chunk": LENS_CHUNK},
        packed_chunks(len(rows), LENS_CHUNK, {}, (Ragged("counts", offsets, columns),)),
    )


def overshoots(log_prob: NDArray[Any], gains: NDArray[Any]) -> Single:
    """How much a shorter step gains where the full one loses, both by more than the effect margin; 0 elsewhere.

    Args:
        log_prob: of the references after every loop, [J, D].
        gains: at some scales of the step to each loop, NaN where they are not known, [scales, J, D].

    >>> overshoots(np.array([[-1.0, -1.5, -1.2]]), np.array([[[np.nan, 0.25, 0.5]], [[np.nan, 0.125, 0.4]]])).tolist()
    [[0.0, 0.25, 0.0]]
    """
    step = np.diff(log_prob.astype(np.float64), axis=1, prepend=np.nan)
    best = np.where(np.isnan(gains), -np.inf, gains).max(axis=0)
    return np.where((step < -EFFECT_MARGIN) & (best > EFFECT_MARGIN), best, 0.0).astype(np.float32)
