"""Made-up runs with known answers: every path is the cubic φ(α) = Aα + Qα² + Rα³, so all columns have closed forms."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loopscope.path import CURVATURE_SCALES, GRID, PATH_NODES, classify, predicted_scale
from loopscope.store import Manifest, StoredRun, TaskInfo
from loopscope.store.manifest import BatchInfo, Dtypes, ModelInfo, ids_sha256
from loopscope.store.schema import TABLES
from loopscope.store.writer import open_or_create
from loopscope.studies.paper import data_hashes, templates

GRID_SCALES = np.array(GRID)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Paths:
    """Cubic paths, one per question."""

    A: np.ndarray
    Q: np.ndarray
    R: np.ndarray

    @classmethod
    def of(cls, A: Any, Q: Any, R: Any = 0.0) -> "Paths":
        A, Q, R = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (A, Q, R)))
        return cls(A.copy(), Q.copy(), R.copy())

    def __len__(self) -> int:
        return len(self.A)

    def value(self, alpha: Any) -> np.ndarray:
        alpha = np.asarray(alpha, dtype=np.float64)
        return alpha * (self.A + alpha * (self.Q + alpha * self.R))

    def some(self, rows: np.ndarray) -> "Paths":
        return Paths(self.A[rows], self.Q[rows], self.R[rows])

    def on(self, grid: np.ndarray) -> np.ndarray:
        return np.stack([self.value(alpha) for alpha in grid], axis=1)

    def slope(self, alpha: Any) -> np.ndarray:
        return self.A + 2 * self.Q * alpha + 3 * self.R * np.asarray(alpha) ** 2

    def curvature(self, alpha: Any) -> np.ndarray:
        return 2 * self.Q + 6 * self.R * alpha

    def optimum(self) -> np.ndarray:
        """The smallest maximiser on [0, 1], from the zeros of φ'."""
        with np.errstate(divide="ignore", invalid="ignore"):
            root = np.sqrt(np.maximum(self.Q**2 - 3 * self.A * self.R, 0))
            zeros = [(-self.Q - root) / (3 * self.R), (-self.Q + root) / (3 * self.R), -self.A / (2 * self.Q)]
        candidates = [np.zeros(len(self))]
        candidates += [np.where((zero > 0) & (zero < 1), zero, 0.0) for zero in zeros]
        candidates.append(np.ones(len(self)))
        stacked = np.sort(np.stack(candidates), axis=0)
        values = np.stack([self.value(alpha) for alpha in stacked])
        return np.take_along_axis(stacked, values.argmax(axis=0)[None], axis=0)[0]


@dataclass
class Task:
    """One task of a made-up run: paths per transition, and any column set by hand."""

    name: str
    paths: dict[int, Paths]
    kind: str = "solution"
    split: str = "test"
    subset: str | None = None
    utility: np.ndarray | None = None  # [N, depths]; made from the paths where it is not given
    columns: dict[str, Any] = field(default_factory=dict)  # that replace the made-up ones of `questions`
    tokens: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # columns by transition, with `row`
    chosen: np.ndarray | None = None  # [N, depths] options
    right: np.ndarray | None = None  # [N] options; the first of each where it is not given

    def __len__(self) -> int:
        return len(next(iter(self.paths.values())))


def example_ids(task: Task) -> list[str]:
    return [f"{task.name}-{row:05d}" for row in range(len(task))]


def manifest(tasks: list[Task], **changes: Any) -> Manifest:
    transitions = tuple(sorted({t for task in tasks for t in task.paths}))
    model = {
        **{"spec": "toy-ouro", "name": "toy-ouro", "family": "ouro", "toy": True, "dtype": "float32"},
        **{"weights": {"model.safetensors": digest("weights")}, "affine_readout": True, "boundary": "after the norm"},
    } | changes.pop("model", {})
    fields: dict[str, Any] = {
        "loopscope_version": "0.1.0",
        "code_sha256": digest("code"),
        "model": ModelInfo(**model),
        "tasks": tuple(
            TaskInfo(
                **{name: getattr(task, name) for name in ("name", "split", "subset", "kind")},
                **{"rows": len(task), "rows_available": len(task), "ids_sha256": ids_sha256(example_ids(task))},
                data_sha256=data_hashes().get((task.name, task.split), digest(task.name)),
                template_sha256=templates().get(task.name, digest("template")),
            )
            for task in tasks
        ),
        **{"transitions": transitions, "depths": tuple(sorted({depth for t in transitions for depth in (t, t + 1)}))},
        **{"level": "full", "dtypes": Dtypes(states="bfloat16", readout="float32"), "device": "cpu"},
        **{"libraries": {}, "seeds": {}},
        "batch": BatchInfo(policy="paper", size=2),
        "unit_size": max(len(task) for task in tasks),
        "settings": {"trace": True, "training_step": 1000} | ({"certify": True} if model["affine_readout"] else {}),
    }
    return Manifest(**{**fields, **changes})


def write_run(path: Any, tasks: list[Task], **changes: Any) -> StoredRun:
    """Write a run with the store's own writer."""
    described = manifest(tasks, **changes)
    by_name = {(task.name, task.split): task for task in tasks}
    with open_or_create(path, described) as writer:
        for unit in writer.pending():
            task = by_name[unit.task, unit.split]
            rows = np.arange(unit.start, unit.stop)
            made = {table.name: MAKERS[table.name](described, task, rows) for table in described.tables()}
            writer.commit(unit, {name: declared(name, columns) for name, columns in made.items()})
        return writer.finish()


def declared(table: str, columns: dict[str, Any]) -> dict[str, Any]:
    """The columns that the table has."""
    return {name: values for name, values in columns.items() if name in TABLES[table].names}


def identity(task: Task, rows: np.ndarray) -> dict[str, Any]:
    return {"row": rows, "example_id": [f"{task.name}-{row:05d}" for row in rows]}


def examples(described: Manifest, task: Task, rows: np.ndarray) -> dict[str, Any]:
    columns: dict[str, Any] = {
        **identity(task, rows),
        "source_row": rows,
        "prompt": [f"Question {row} of {task.split}?" for row in rows],
        "n_tokens": token_counts(task, rows),
    }
    if task.kind == "options":
        return columns | {
            "options": [["a", "b", "c", "d"] for _ in rows],
            "correct_option": np.zeros(len(rows), int) if task.right is None else task.right[rows],
        }
    return columns | {"reference": [f"Answer {row}." for row in rows]}


def token_counts(task: Task, rows: np.ndarray) -> np.ndarray:
    if not task.tokens:
        return np.full(len(rows), 3)
    first = next(iter(task.tokens.values()))
    return np.bincount(first["row"], minlength=len(task))[rows]


def by_update(
    described: Manifest, task: Task, rows: np.ndarray, make: Callable[[Paths, int], dict[str, Any]]
) -> dict[str, Any]:
    """The columns of all updates, one after the other."""
    parts = []
    for transition in described.transitions:
        about = {**identity(task, rows), "transition": np.full(len(rows), transition)}
        parts.append(about | make(task.paths[transition].some(rows), transition))
    return {name: concatenate([part[name] for part in parts]) for name in parts[0]}


def questions(described: Manifest, task: Task, rows: np.ndarray) -> dict[str, Any]:
    return by_update(described, task, rows, lambda paths, t: question_columns(described, task, paths, t, rows))


def concatenate(values: list[Any]) -> Any:
    if not isinstance(values[0], np.ndarray):
        return [x for value in values for x in value]
    # The plain function would drop the masks that stand for nulls.
    return np.ma.concatenate(values) if any(np.ma.isMaskedArray(value) for value in values) else np.concatenate(values)


def question_columns(
    described: Manifest, task: Task, paths: Paths, transition: int, rows: np.ndarray
) -> dict[str, Any]:
    gain, alpha = paths.value(1.0), predicted_scale(paths.A, paths.Q)
    before = utilities(described, task)[rows, described.depths.index(transition)]
    columns: dict[str, Any] = {
        **{"source_row": rows, "utility_before": before, "utility_after": before + gain, "gain": gain},
        **{"slope": paths.A, "quadratic": paths.Q, "outcome": classify(paths.A, gain), "quadratic_scale": alpha},
    }
    if described.level in ("grid", "full"):
        columns |= grid_columns(described, paths, alpha, rows)
    if described.level == "full":
        columns |= fp64_columns(described, task, paths, alpha)
    for name, values in task.columns.items():
        columns[name] = [values[row] for row in rows] if isinstance(values, list) else values[rows]
    return columns


def grid_columns(described: Manifest, paths: Paths, alpha: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    noise = {name: rng.normal(size=10**4)[rows % 10**4] for name in ("a", "b", "c", "d")}
    columns: dict[str, Any] = {
        "grid_gain": paths.on(GRID_SCALES),
        "curvature_path": np.stack([paths.curvature(scale) for scale in CURVATURE_SCALES], axis=1),
        **{"update_norm": np.abs(noise["a"]) + 1, "relative_change": np.abs(noise["b"])},
        **{"cosine_change": noise["b"] ** 2, "output_kl": noise["c"] ** 2, "entropy_change": noise["d"]},
        **{"quadratic_gain": paths.value(alpha), "bf16_quarter_gain": paths.value(0.25)},
        "bf16_quadratic_gain": paths.value(alpha),
        "scalar_quadratic": np.ma.masked_array(paths.Q, mask=rows >= 16),
    }
    if described.model.affine_readout:
        columns["kl_correction"] = paths.A - paths.value(1.0)
        if described.protocol == "paper":
            columns |= {"kl_slope": paths.A, "kl_gain": paths.value(1.0)}
    if described.protocol == "paper":
        columns["endpoint_replay"] = np.zeros(len(rows))
    return columns


def fp64_columns(described: Manifest, task: Task, paths: Paths, alpha: np.ndarray) -> dict[str, Any]:
    optimum = paths.optimum()
    interior = (optimum > 0) & (optimum < 1)
    half = np.where(interior, np.minimum(5e-7, np.minimum(optimum, 1 - optimum) / 2), 0.0)
    low, high = optimum - half, optimum + half
    ends = np.stack([-paths.curvature(0.0), -paths.curvature(1.0)])
    columns: dict[str, Any] = {
        **{"slope": paths.A, "quadratic": paths.Q, "gain": paths.value(1.0), "quarter_gain": paths.value(0.25)},
        **{"state_gap": np.zeros(len(paths)), "decomposition_residual": np.zeros(len(paths))},
        **{"sampled_curvature": ends.max(axis=0), "sampled_convexity": (-ends).max(axis=0)},
        **{"sampled_third": 6 * np.abs(paths.R), "optimum_low": low, "optimum_high": high},
        "optimum_kind": np.where(interior, "interior", np.where(optimum == 0, "left", "right")).tolist(),
        **{"optimum_gain_low": paths.value(optimum), "optimum_gain_high": paths.value(optimum)},
        **{"predicted_scale": alpha, "predicted_gain": paths.value(alpha)},
    }
    if described.model.affine_readout and task.kind == "solution":
        L_D = np.maximum(ends.max(axis=0), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            safe = np.where(L_D > 0, np.minimum(1.0, 0.9 * 2 * paths.A / L_D), 1.0)
        no_scale = paths.A <= 0
        safe = np.where(no_scale, 0.0, safe)
        local = np.stack([-paths.curvature(low), -paths.curvature(high)])
        columns |= {
            **{"M": 6 * np.abs(paths.R), "L_D": L_D, "mu": ends.min(axis=0)},
            **{"C_upper": 3 * np.abs(paths.R), "S": 3 * np.abs(paths.R)},
            "optimum_slope": np.stack([paths.slope(low), paths.slope(high)], axis=1),
            "optimum_curvature": np.stack([local.min(axis=0), local.max(axis=0)], axis=1),
            "safe_scale": np.ma.masked_array(safe, mask=no_scale),
            "safe_gain": np.ma.masked_array(paths.value(safe), mask=no_scale),
        }
    else:
        columns |= {
            "third_absolute_gap": np.tile([1e-6, 2.5e-7, 6e-8], (len(paths), 1)),
            "third_relative_gap": np.tile([1e-5, 2.5e-6, 6e-7], (len(paths), 1)),
            "refined_change": np.tile([1e-10, 1e-4, 1e-9, 2e-9], (len(paths), 1)),
        }
    return {f"fp64_{name}": values for name, values in columns.items()}


def utilities(described: Manifest, task: Task) -> np.ndarray:
    """U at every depth: given, or a level per question plus the gains of the transitions."""
    if task.utility is not None:
        return task.utility
    steps = np.zeros((len(task), len(described.depths)))
    for index, before in enumerate(described.depths[:-1]):
        gain = task.paths[before].value(1.0) if before in task.paths else np.zeros(len(task))
        steps[:, index + 1] = steps[:, index] + gain
    return steps - 1.0


def depths(described: Manifest, task: Task, rows: np.ndarray) -> dict[str, Any]:
    utility = utilities(described, task)[rows]
    width = len(described.depths)
    columns: dict[str, Any] = {
        "row": np.repeat(rows, width),
        "example_id": [name for name in identity(task, rows)["example_id"] for _ in range(width)],
        **{"depth": np.tile(described.depths, len(rows)), "utility": utility.ravel()},
    }
    if task.kind == "options":
        chosen = np.zeros((len(rows), width), int) if task.chosen is None else task.chosen[rows]
        scores = np.tile([-1.0, -2.0, -3.0, -4.0], (len(rows) * width, 1))
        columns |= {"option_scores": scores, "option_logliks": scores, "chosen_option": chosen.ravel()}
    return columns


def tokens(described: Manifest, task: Task, rows: np.ndarray) -> dict[str, Any]:
    parts = []
    for transition in described.transitions:
        given = {name: np.asarray(values) for name, values in task.tokens[transition].items()}
        chosen = np.argsort(given["row"], kind="stable")
        chosen = chosen[np.isin(given["row"][chosen], rows)]
        given = {name: values[chosen] for name, values in given.items()}
        index = np.concatenate([np.arange(count) for count in np.bincount(given["row"])[rows]])
        size, slope, quadratic = len(index), given["slope"], given["quadratic"]
        if "continues" in given and "exit_depth" not in given:  # exits at just the tokens that it names
            given |= dict.fromkeys(("exit_depth", "exit_depth_fp64"), transition + given["continues"].astype(int))
        columns: dict[str, Any] = {
            **{"transition": np.full(size, transition), "option": np.zeros(size, int), "token": index},
            **{"position": index + 9, "token_id": np.zeros(size, int), "utility_before": np.full(size, -1.0)},
            **{"outcome": classify(slope, given["gain"]), "quadratic_scale": predicted_scale(slope, quadratic)},
        }
        parts.append(columns | given)
    return {name: concatenate([part[name] for part in parts]) for name in parts[0]}


def stored_paths(described: Manifest, task: Task, rows: np.ndarray) -> dict[str, Any]:
    nodes = np.linspace(0, 1, PATH_NODES)

    def make(paths: Paths, transition: int) -> dict[str, Any]:
        slopes, curvatures = ([each(alpha) for alpha in nodes] for each in (paths.slope, paths.curvature))
        third = np.repeat(6 * paths.R[:, None], PATH_NODES, axis=1)
        made = {"gain": paths.on(nodes), "slope": np.stack(slopes, axis=1), "third": third}
        return made | {"curvature": np.stack(curvatures, axis=1)}

    return by_update(described, task, rows, make)


def certificates(described: Manifest, task: Task, rows: np.ndarray) -> dict[str, Any]:
    """Enclosures of width 2e-12 around the made-up numbers; the last outcome of every update is left open."""

    def make(paths: Paths, transition: int) -> dict[str, Any]:
        gain, quarter, alpha = paths.value(1.0), paths.value(0.25), predicted_scale(paths.A, paths.Q)
        outcome, still_open = classify(paths.A, gain), rows == len(task) - 1
        known = {
            **{"utility": -np.ones(len(rows)), "slope": paths.A, "quadratic": paths.Q, "C": np.abs(paths.R)},
            **{"gain": gain, "quarter_gain": quarter, "predicted_gain": paths.value(alpha)},
        }
        failed = (outcome == 3) & ~still_open
        return {
            **{name: np.stack([values - 1e-12, values + 1e-12], axis=1) for name, values in known.items()},
            "outcome": np.ma.masked_array(outcome, mask=still_open),
            "prediction_sign": np.sign(paths.A + paths.Q).astype(np.int8),
            "recovered": np.ma.masked_array(quarter > 0, mask=~failed),
            "arithmetic": np.where(still_open, "open", "fp64").tolist(),
            "safe_scale": np.ma.masked_array(np.full(len(rows), 0.5), mask=paths.A <= 0),
            **{"predicted_scale": alpha, "regret_high": np.abs(paths.R)},
        }

    return by_update(described, task, rows, make)


def trace(described: Manifest, task: Task, rows: np.ndarray) -> dict[str, Any]:
    """Tokens 0 to 3 at random, of which 1 is the reference everywhere."""
    loops = described.depths[-1]
    counts = token_counts(task, np.arange(len(task)))
    row = np.repeat(np.arange(len(task)), counts)
    said = np.random.default_rng(len(row)).integers(0, 4, (len(row), loops))
    keep = np.isin(row, rows)
    row, said = row[keep], said[keep]
    token = np.concatenate([np.arange(count) for count in counts[rows]])
    size = len(row) * loops
    options = np.zeros(len(task), int) if task.right is None or task.kind != "options" else task.right
    return {
        **{"row": np.repeat(row, loops), "depth": np.tile(np.arange(1, loops + 1), len(row))},
        "example_id": [f"{task.name}-{one:05d}" for one in np.repeat(row, loops)],
        **{"option": np.repeat(options[row], loops), "token": np.repeat(token, loops)},
        **{"position": np.repeat(token + 9, loops), "token_id": np.ones(size, int), "top_id": said.ravel()},
        "log_prob": np.full(size, -1.0),
        **dict.fromkeys(
            ("top_prob", "margin", "entropy", "state_norm", "step_norm", "state_cosine"), np.full(size, 0.5)
        ),
    }


MAKERS = {
    **{"trace": trace, "examples": examples, "questions": questions, "depths": depths},
    **{"tokens": tokens, "paths": stored_paths, "certificates": certificates},
}


def realistic(n: int, seed: int, curvature: float = 1.0) -> Paths:
    """Paths whose slopes, curvatures and cubic terms spread over orders of magnitude, as measured ones do."""
    rng = np.random.default_rng(seed)
    size = 10 ** rng.normal(-2.0, 0.6, n)
    A = size * rng.normal(0.1, 1.0, n)
    Q = -curvature * size * rng.lognormal(-0.5, 0.7, n)
    return Paths.of(A, Q, 0.06 * np.abs(Q) * rng.normal(size=n))


def realistic_tokens(n: int, transitions: list[int], seed: int) -> dict[int, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    row = np.repeat(np.arange(n), rng.integers(20, 200, n))
    found = {}
    for transition in transitions:
        paths = realistic(len(row), seed + transition)
        scale = predicted_scale(paths.A, paths.Q)
        found[transition] = {
            **{"row": row, "slope": paths.A, "quadratic": paths.Q, "gain": paths.value(1.0)},
            **{"quarter_gain": paths.value(0.25), "quadratic_gain": paths.value(scale)},
        }
    return found
