"""Made-up runs for the page: cubic paths φ(α) = Aα + Qα² + Rα³, any text, tokens that are the words of their text."""

import base64
import hashlib
import json
import re
import struct
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from loopscope.path import CURVATURE_SCALES, GRID, PATH_NODES, classify, predicted_scale
from loopscope.store import Manifest, StoredRun, TaskInfo
from loopscope.store.manifest import BatchInfo, Dtypes, ModelInfo, WorkUnit, ids_sha256
from loopscope.store.writer import open_or_create, write_vocabulary

SCALES = np.array(GRID)
NODES = np.linspace(0.0, 1.0, PATH_NODES)
CHANGES = (
    *("acceleration", "step_cosine", "kl_from_previous", "kl_to_previous", "kl_min_p"),
    *("mean_v", "var_v", "v_reference"),
)
"""Columns of a trace that need a loop before."""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Question:
    """Words of one question; `texts` are its options, or the one reference solution."""

    prompt: str
    texts: list[str]
    right: int | None = None


@dataclass
class Made:
    """A made-up task with its coefficients, so that tests know what the page must show."""

    questions: list[Question]
    transitions: tuple[int, ...] = (3, 4)
    depths: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    name: str = "riddles"
    level: str = "grid"
    tokens: bool = True
    paths: bool = False
    spans: bool = True
    seed: int = 1
    model: dict[str, Any] = field(default_factory=dict)
    unit_size: int = 4096
    lens: int = 0
    """Candidates at each reference position and loop; 0 for a run without a trace."""
    others: tuple[str, ...] = ()
    """Words of the vocabulary beside those of the texts."""

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        shape = (len(self.transitions), len(self.questions))
        size = 10.0 ** rng.uniform(-5, 0, shape)
        self.A = size * rng.choice([1.0, 1.0, -1.0], shape)
        self.Q = -size * rng.uniform(0.1, 2.5, shape)
        self.R = size * rng.uniform(-0.2, 0.3, shape)
        self.utility = rng.normal(-1.5, 0.4, (len(self.questions), len(self.depths)))
        for at, transition in enumerate(self.transitions):
            here = self.depths.index(transition)
            self.utility[:, here + 1] = self.utility[:, here] + self.path(at, 1.0)

    @property
    def kind(self) -> str:
        return "solution" if self.questions[0].right is None else "options"

    @cached_property
    def ids(self) -> list[str]:
        return [f"{self.name}-{row}" for row in range(len(self.questions))]

    @cached_property
    def vocabulary(self) -> list[str]:
        words = (text[start:end] for each in self.questions for text in each.texts for start, end in spans(text))
        return list(dict.fromkeys((*words, *self.others)))

    @cached_property
    def token_counts(self) -> list[list[int]]:
        return [[len(spans(text)) for text in question.texts] for question in self.questions]

    def path(self, at: int, alpha: Any) -> np.ndarray:
        return alpha * (self.A[at] + alpha * (self.Q[at] + alpha * self.R[at]))

    def grid(self, at: int) -> np.ndarray:
        return np.stack([self.path(at, alpha) for alpha in SCALES], axis=1)

    def outcome(self, at: int) -> np.ndarray:
        return np.atleast_1d(classify(self.A[at], self.path(at, 1.0)))


def write_run(path: Path, made: Made) -> StoredRun:
    """Write a run with the store's own writer."""
    manifest = manifest_of(made)
    with open_or_create(path, manifest) as writer:
        for unit in writer.pending():
            writer.commit(unit, tables_of(made, manifest, unit))
        if made.lens:
            write_vocabulary(path, manifest, made.vocabulary)
        return writer.finish()


def tables_of(made: Made, manifest: Manifest, unit: WorkUnit) -> dict[str, dict[str, Any]]:
    """The columns of one unit in every table of the run."""
    makers = {
        **{"examples": examples, "questions": questions, "depths": depths},
        **{"tokens": tokens, "paths": paths, "trace": trace},
    }
    rows = np.arange(unit.start, unit.stop)
    tables = {}
    for table in manifest.tables():
        columns = makers[table.name](made, rows)
        tables[table.name] = {name: columns[name] for name in table.names if name in columns}
    return tables


def manifest_of(made: Made) -> Manifest:
    model = {
        "spec": "some/looped-model",
        "name": "some/looped-model",
        "family": "ouro",
        "weights": {"model.safetensors": digest("weights")},
        "dtype": "bfloat16",
        "affine_readout": True,
        "boundary": "after the final norm",
        "trained_depth": 4,
    } | made.model
    task = TaskInfo(
        name=made.name,
        split="test",
        kind=made.kind,
        rows=len(made.questions),
        rows_available=len(made.questions),
        ids_sha256=ids_sha256(made.ids),
        data_sha256=digest(made.name),
        template_sha256=digest("template"),
    )
    return Manifest(
        loopscope_version="0.1.0",
        code_sha256=digest("code"),
        model=ModelInfo(**model),
        tasks=(task,),
        transitions=made.transitions,
        depths=made.depths,
        level=made.level,
        tokens=made.tokens,
        paths=made.paths,
        dtypes=Dtypes(states="bfloat16", readout="float32"),
        device="cpu",
        libraries={"torch": "2.13.0"},
        seeds={"initial_state": 20260904},
        batch=BatchInfo(policy="paper", size=2),
        unit_size=made.unit_size,
        settings={"trace": True, "lens": made.lens} if made.lens else {},
    )


def identity(made: Made, rows: np.ndarray) -> dict[str, Any]:
    return {"row": rows, "example_id": [made.ids[row] for row in rows]}


def spans(text: str) -> list[tuple[int, int]]:
    """Words with the blanks before them."""
    return [match.span() for match in re.finditer(r"\s*\S+", text)] or [(0, len(text))]


def examples(made: Made, rows: np.ndarray) -> dict[str, Any]:
    chosen = [made.questions[row] for row in rows]
    counts = [made.token_counts[row] for row in rows]
    columns: dict[str, Any] = {
        **identity(made, rows),
        "source_row": rows,
        "prompt": [question.prompt for question in chosen],
        "n_tokens": np.array([sum(each) for each in counts]),
    }
    if made.kind == "solution":
        return columns | {"reference": [question.texts[0] for question in chosen]}
    return columns | {
        "options": [question.texts for question in chosen],
        "correct_option": np.array([question.right for question in chosen]),
    }


def questions(made: Made, rows: np.ndarray) -> dict[str, Any]:
    parts = [update_columns(made, at, rows) for at in range(len(made.transitions))]
    return joined(parts)


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns of all transitions one after another."""
    return {
        name: np.concatenate([part[name] for part in parts])
        if isinstance(first, np.ndarray)
        else [value for part in parts for value in part[name]]
        for name, first in parts[0].items()
    }


def update_columns(made: Made, at: int, rows: np.ndarray) -> dict[str, Any]:
    transition = made.transitions[at]
    here = made.depths.index(transition)
    A, Q, gain = made.A[at, rows], made.Q[at, rows], made.path(at, 1.0)[rows]
    alpha = np.atleast_1d(predicted_scale(A, Q))
    at_alpha = alpha * (A + alpha * (Q + alpha * made.R[at, rows]))
    columns: dict[str, Any] = {
        **identity(made, rows),
        "source_row": rows,
        "transition": np.full(len(rows), transition),
        "utility_before": made.utility[rows, here],
        "utility_after": made.utility[rows, here + 1],
        "gain": gain,
        "slope": A,
        "quadratic": Q,
        "outcome": made.outcome(at)[rows],
        "quadratic_scale": alpha,
    }
    if made.level == "quick":
        return columns
    rng = np.random.default_rng(7)
    grid = made.grid(at)[rows]
    columns |= {
        "grid_gain": grid,
        "curvature_path": np.stack([2 * Q + 6 * made.R[at, rows] * scale for scale in CURVATURE_SCALES], axis=1),
        **{
            name: rng.uniform(0.1, 1.0, len(rows))
            for name in ("update_norm", "relative_change", "cosine_change", "output_kl", "entropy_change")
        },
        "quadratic_gain": at_alpha,
        "bf16_quarter_gain": grid[:, 5],
        "bf16_quadratic_gain": at_alpha,
    }
    return columns | (fp64_columns(made, at, rows) if made.level == "full" else {})


def fp64_columns(made: Made, at: int, rows: np.ndarray) -> dict[str, Any]:
    A, Q, R = made.A[at, rows], made.Q[at, rows], made.R[at, rows]
    fine = np.stack([made.path(at, alpha)[rows] for alpha in NODES], axis=1)
    best = NODES[fine.argmax(axis=1)]
    ends = np.stack([-2 * Q, -(2 * Q + 6 * R)])
    bound = np.maximum(ends.max(axis=0), 0.0)
    safe = np.where(A > 0, np.minimum(1.0, 0.9 * 2 * A / np.maximum(bound, 1e-12)), 0.0)
    no_scale = A <= 0
    negative = fine < 0
    first = np.where(negative.any(axis=1), negative.argmax(axis=1), PATH_NODES - 1)
    columns: dict[str, Any] = {
        "slope": A,
        "quadratic": Q,
        "gain": made.path(at, 1.0)[rows],
        "state_gap": np.zeros(len(rows)),
        "decomposition_residual": np.zeros(len(rows)),
        "M": 6 * np.abs(R),
        "L_D": bound,
        "mu": ends.min(axis=0),
        "C_upper": 3 * np.abs(R),
        "S": 3 * np.abs(R),
        "sampled_curvature": ends.max(axis=0),
        "sampled_convexity": (-ends).max(axis=0),
        "sampled_third": 6 * np.abs(R),
        "optimum_low": best,
        "optimum_high": best,
        "optimum_kind": np.where(best == 0, "left", np.where(best == 1, "right", "interior")).tolist(),
        "optimum_gain_low": fine.max(axis=1),
        "optimum_gain_high": fine.max(axis=1),
        "predicted_scale": np.atleast_1d(predicted_scale(A, Q)),
        "predicted_gain": made.path(at, 0.5)[rows],
        "quarter_gain": made.path(at, 0.25)[rows],
        "safe_scale": np.ma.masked_array(safe, mask=no_scale),
        "safe_gain": np.ma.masked_array(safe * (A + safe * (Q + safe * R)), mask=no_scale),
        "boundary": np.stack([NODES[np.maximum(first - 1, 0)], NODES[first]], axis=1),
    }
    return {f"fp64_{name}": values for name, values in columns.items()}


def depths(made: Made, rows: np.ndarray) -> dict[str, Any]:
    width = len(made.depths)
    columns: dict[str, Any] = {
        "row": np.repeat(rows, width),
        "example_id": [made.ids[row] for row in rows for _ in range(width)],
        "source_row": np.repeat(rows, width),
        "depth": np.tile(made.depths, len(rows)),
        "utility": made.utility[rows].ravel(),
    }
    if made.kind == "solution":
        return columns
    rng = np.random.default_rng(11)
    scores = [rng.normal(-3.0, 1.0, len(made.questions[row].texts)) for row in rows for _ in range(width)]
    return columns | {
        "option_scores": scores,
        "option_logliks": [each * 5 for each in scores],
        "chosen_option": np.array([int(each.argmax()) for each in scores]),
    }


def tokens(made: Made, rows: np.ndarray) -> dict[str, Any]:
    """The tokens of a question, in the order of transitions, options and words; φ of each is a cubic of its own."""
    keys = [
        (row, at, option, token, start, end)
        for row in rows
        for at in range(len(made.transitions))
        for option, text in enumerate(made.questions[row].texts)
        for token, (start, end) in enumerate(spans(text))
    ]
    row, at, option, token, start, end = (np.array(part) for part in zip(*keys, strict=True))
    rng = np.random.default_rng(made.seed + 5)
    A, Q = rng.normal(0, 0.5, len(row)), rng.normal(-0.2, 0.3, len(row))
    gain = A + Q
    alpha = np.atleast_1d(predicted_scale(A, Q))
    columns: dict[str, Any] = {
        "row": row,
        "example_id": [made.ids[index] for index in row],
        "transition": np.array(made.transitions)[at],
        "option": option,
        "token": token,
        "position": token + 9,
        "token_id": token,
        "utility_before": np.full(len(row), -1.0),
        "gain": gain,
        "slope": A,
        "quadratic": Q,
        "outcome": np.atleast_1d(classify(A, gain)),
        "quadratic_scale": alpha,
        "quarter_gain": A / 4 + Q / 16,
        "quadratic_gain": A * alpha + Q * alpha**2,
        "grid_gain": (A[:, None] * SCALES + Q[:, None] * SCALES**2).astype(np.float32),
    }
    return columns | ({"text_start": start, "text_end": end} if made.spans else {})


def trace(made: Made, rows: np.ndarray) -> dict[str, Any]:
    """Every token after every loop: random candidates, of which one is the reference more often the more loops passed.

    The step to an even depth lowers the reference at full length and raises it at half.
    """
    number = {text: at for at, text in enumerate(made.vocabulary)}
    keys = [
        (row, option, token, start, end, number[text[start:end]])
        for row in rows
        for option, text in enumerate(made.questions[row].texts)
        for token, (start, end) in enumerate(spans(text))
    ]
    loops = made.depths[-1]
    table = np.tile(np.array(keys), (loops, 1))
    depth = np.repeat(np.arange(1, loops + 1), len(keys))
    order = np.lexsort((table[:, 2], table[:, 1], depth, table[:, 0]))
    row, option, token, start, end, reference = table[order].T
    depth = depth[order]
    rng = np.random.default_rng(made.seed + int(rows[0]))
    count, size = len(row), len(made.vocabulary)
    first = rng.integers(0, size, count)
    ids = (first[:, None] + np.arange(made.lens)) % size
    place = rng.integers(0, 2 * made.lens, count)
    place[rng.random(count) < depth / (2 * loops)] = 0
    inside = place < made.lens
    ids[inside, place[inside]] = reference[inside]
    weights = rng.dirichlet(np.ones(made.lens + 1), count)
    probs = -np.sort(-weights[:, : made.lens], axis=1)
    log_prob = np.where(inside, np.log(probs[np.arange(count), np.minimum(place, made.lens - 1)]), -9.0)
    known = np.isin(depth - 1, made.transitions)
    gain = np.where(depth % 2 == 0, 0.5, -0.5)
    return {
        "row": row,
        "example_id": [made.ids[index] for index in row],
        "depth": depth,
        "option": option,
        "token": token,
        "position": token + 9,
        "token_id": reference,
        "text_start": start,
        "text_end": end,
        "log_prob": log_prob,
        "top_id": ids[:, 0],
        "top_prob": probs[:, 0],
        **{name: np.full(count, 0.5) for name in ("margin", "entropy", "state_norm", "step_norm", "state_cosine")},
        **{name: np.ma.array(rng.uniform(0.1, 1.0, count), mask=depth == 1) for name in CHANGES},
        "gains": [[value] * 3 if is_known else None for value, is_known in zip(gain, known, strict=True)],
        "lens_ids": ids,
        "lens_probs": probs.astype(np.float32),
        "rank": np.where(inside, place + 1, made.lens + 7),
    }


def paths(made: Made, rows: np.ndarray) -> dict[str, Any]:
    parts = []
    for at, transition in enumerate(made.transitions):
        A, Q, R = (values[at, rows][:, None] for values in (made.A, made.Q, made.R))
        parts.append(
            {
                **identity(made, rows),
                "transition": np.full(len(rows), transition),
                "gain": NODES * (A + NODES * (Q + NODES * R)),
                "slope": A + 2 * Q * NODES + 3 * R * NODES**2,
                "curvature": 2 * Q + 6 * R * NODES,
                "third": np.broadcast_to(6 * R, (len(rows), PATH_NODES)).copy(),
            }
        )
    return joined(parts)


def prose(rng: np.random.Generator, words: int) -> str:
    """Text whose words are as frequent as those of a language, so that it compresses like one."""
    ranks = np.minimum(rng.zipf(1.35, words), 20_000)
    return " ".join(_word(int(rank)) for rank in ranks)


def _word(rank: int) -> str:
    syllables = ("ka", "re", "mo", "ti", "su", "lan", "pe", "dor", "vi", "un", "sha", "gre", "o", "ber", "il", "ny")
    found = ""
    while rank:
        rank, at = divmod(rank, len(syllables))
        found += syllables[at]
    return found


def unpack(text: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a pack of the page, arrays flat."""
    data = zlib.decompress(base64.b64decode(text), -15)
    (length,) = struct.unpack_from("<I", data)
    header = json.loads(data[4 : 4 + length])
    arrays, start = {}, 4 + length
    for name, kind, count in header["columns"]:
        dtype = np.dtype(f"<{kind}")
        flat = np.frombuffer(data, np.uint8, count * dtype.itemsize, start)
        arrays[name] = np.ascontiguousarray(flat.reshape(dtype.itemsize, count).T).view(dtype).reshape(-1)
        start += count * dtype.itemsize
    return arrays, header["values"]
