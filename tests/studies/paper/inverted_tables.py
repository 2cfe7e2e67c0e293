"""Runs made from the paper's own counts: by measurement, questions whose outcomes add up to the published tables.

How many questions of each kind there are is solved by hand from the published counts, line by line below; the numbers
are read from the published tables, never computed by a study. The path of a question is φ(α) = Aα(1 − α/p + cα²). Its
gain returns to zero at r, where slope and curvature at 0 predict p: the sign of the gain is that of A where r > 1, and
the other one where r < 1; that of A + Q follows from p.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from loopscope.store import StoredRun
from loopscope.store.manifest import BatchInfo
from loopscope.studies.paper import models, tables

OURO_1, OURO_2, HUGINN = "Ouro-1.4B", "Ouro-2.6B", "Huginn"
TINY = 1e-5
"""An amplitude below the paper's effect margin of 1e-4."""


class Kind(NamedTuple):
    """So many questions with a slope, a gain that returns to zero at `root`, and the root that A and Q predict."""

    count: int
    slope: float
    root: float
    predicted: float | None = None


def paths(synthetic: Any, kinds: Iterable[Kind]) -> Any:
    """Cubic paths, kind after kind."""
    listed = [kind for kind in kinds if kind.count]
    assert all(kind.count > 0 for kind in listed), listed
    count = [kind.count for kind in listed]
    slope, root = (np.repeat([kind[column] for kind in listed], count) for column in (1, 2))
    predicted = np.repeat([kind.predicted or kind.root for kind in listed], count)
    return synthetic.Paths.of(slope, -slope / predicted, slope * (root / predicted - 1) / root**2)


def published(
    measurement: str, model: str, name: str, transition: int | None = None, key: str = "", *, bare: bool = False
) -> dict[str, Any]:
    """Every number that the paper prints of one row, by study and column, or by column; counts as whole numbers."""
    found: dict[str, Any] = {}
    for table, row in ((each, row) for each in tables() for row in each.rows):
        there = row.setting
        here = there.measurement, there.model, there.evaluation_set, there.transition, row.key
        for column, cell in row.cells.items() if here == (measurement, model, name, transition, key) else ():
            number = cell.text if cell.printed is None else float(cell.printed.decimal)
            number = int(number) if isinstance(number, float) and number == int(number) else number
            found[column if bare else f"{table.study}.{column}"] = number
    return found


def of(share: float, n: int) -> int:
    """The number of questions that a printed percentage of n means."""
    return round(share * n / 100)


def balanced(kinds: list[Kind], progressing: int, directional: int, mean: float) -> list[Kind]:
    """Kinds with further progressing and directional updates, such that the mean gain is the published one."""
    n = sum(kind.count for kind in kinds) + progressing + directional
    gains = sum(
        k.count * k.slope * (1 - 1 / (k.predicted or k.root) + (k.root / (k.predicted or k.root) - 1) / k.root**2)
        for k in kinds
    )
    slope = 0.02
    loss = (gains + progressing * slope * (1 - 1 / 2.5) - mean * n) / (2 * directional)
    assert loss > 0
    # A directional failure of a concave path: A < 0 and Q < 0.
    return [*kinds, Kind(progressing, slope, 2.5), Kind(directional, -loss, -1.0)]


def sweep(depths: tuple[int, ...], n: int, peak: int, decline: str, size: float = 0.05) -> np.ndarray:
    """Utilities that rise to the peak, stay about there, and fall by `size` at the end of the decline."""
    end = int(decline.split("->")[1]) if "->" in decline else depths[-1] + 1
    noise = np.where(np.arange(n) % 2, 0.5, -0.5)
    noise -= noise.mean()
    columns = []
    for depth in depths:
        if depth <= peak:
            columns.append(np.full(n, -0.05 * (depths.index(peak) - depths.index(depth))))
        else:
            columns.append(np.full(n, -size) if depth >= end else noise - 1e-7)
    return np.stack(columns, axis=1) - 1.0


class Maker:
    """Writes the runs of `paper_runs.toml` under their names into a folder; the two pilots have no published number."""

    def __init__(self, synthetic: Any, folder: Any) -> None:
        self.synthetic, self.folder = synthetic, folder

    def run(self, model: str, tasks: list[Any], batch: int = 2, name: str = "", **changes: Any) -> StoredRun:
        """One run in the paper's setting."""
        entry = models()[model]
        huginn = entry.draws_initial_state
        described = {"spec": entry.name, "name": entry.name, "family": entry.family, "affine_readout": not huginn}
        described |= {"toy": False, "revision": "0123abcd"}
        settings = {"protocol": "paper", **({"initial_state": "paper"} if huginn else {})}
        seeds = {"initial_state": 20260904} if huginn else {}
        policy = BatchInfo(policy="paper" if batch == 2 else "questions", size=batch)
        how = {"model": described, "settings": settings, "seeds": seeds, "batch": policy, **changes}
        return self.synthetic.write_run(self.folder / name, tasks, **how)

    def task(self, name: str, kinds: dict[int, Any], **more: Any) -> Any:
        """A task of an evaluation set such as `gsm8k/train256`."""
        task, _, part = name.partition("/")
        split = part.rstrip("0123456789")
        subset = part if part != split else None
        kind = "solution" if task in ("math500", "gsm8k") else "options"
        return self.synthetic.Task(task, kinds, kind=kind, split=split, subset=subset, **more)

    def plan(self) -> dict[str, StoredRun]:
        """Every run by its name."""
        sets = (("math500/test", 500), ("gsm8k/test", 1319), ("hellaswag/validation", 10042))
        others = (
            *(("arc_challenge/test", 1172), ("piqa/validation", 1838)),
            *(("boolq/validation", 3270), ("commonsense_qa/validation", 1221)),
        )
        made = {}
        for model, short, transition in ((OURO_1, "ouro-1.4b", 4), (OURO_2, "ouro-2.6b", 4), (HUGINN, "huginn", 19)):
            depths = models()[model].depths
            tasks = [self.matrix_task(model, name, n, transition, depths) for name, n in sets]
            made[f"{short}-matrix"] = self.run(model, tasks, name=f"{short}-matrix", level="grid", depths=depths)
            still = {name: {transition: paths(self.synthetic, [Kind(n, 0.01, 2.5)])} for name, n in others}
            tasks = [self.task(name, still[name], **self._sweep_columns(model, name, n, depths)) for name, n in others]
            made[f"{short}-sweep"] = self.run(model, tasks, name=f"{short}-sweep", level="quick", depths=depths)
            if model != HUGINN:
                tasks = [self._bounds_task(model, *each) for each in sets[:2]]
                made[f"{short}-bounds"] = self.run(model, tasks, name=f"{short}-bounds", paths=True)
            transition = 33 if model == HUGINN else 4
            made[f"{short}-csqa-train1024"] = self._commonsense(model, transition, f"{short}-csqa-train1024")
        made["huginn-gsm8k-train256"] = self._gsm8k_train()
        made["ouro-1.4b-hellaswag1000"] = self._hellaswag_1000()
        return made | {"ouro-2.6b-transitions": self._transitions(), "ouro-1.4b-tokens": self._audit()}

    # The complete matrix and the depth sweep.

    def matrix_task(self, model: str, name: str, n: int, transition: int, depths: tuple[int, ...]) -> Any:
        """One condition of the matrix, with its sweep of depths."""
        columns = self._sweep_columns(model, name, n, depths)
        made, before = self._matrix_paths(model, name, n, transition), depths.index(transition)
        columns["utility"][:, before + 1] = columns["utility"][:, before] + made.value(1.0)
        return self.task(name, {transition: made}, **columns)

    def _matrix_paths(self, model: str, name: str, n: int, transition: int) -> Any:
        """Paths with the outcomes of the matrix, and what the paper counts of the same questions elsewhere."""
        cells = published("matrix", model, name, transition)
        mean = cells["mechanism.mean_gain"] * 1e-3
        if (model, name) == (OURO_1, "math500/test"):
            return self._math_1(mean)
        failed, harmful = cells["mechanism.finite_step"], cells["mechanism.harmful"]
        tiny = failed - cells["failure-shares.beyond_margin"]
        wrong = n - of(cells["mechanism.sign_quadratic"], n)
        # Updates that begin downhill and end uphill; a concave path has none.
        backwards = n - of(cells["mechanism.sign_slope"], n) - failed
        # What a quarter step does not recover, and what the quadratic rule does not.
        stuck = lost = 0
        if (model, name) == (OURO_2, "math500/test"):
            # 83.2% is the highest of the four rates, and 79 of 95 the only whole number that rounds to it.
            stuck = failed - of(83.2, failed)
        if (model, name) == (OURO_1, "gsm8k/test"):  # counted anew, the paper has 431 failures and not 429
            again = {key: published("intervention", model, name, 4, key) for key in ("quarter", "quadratic")}
            quarter, quadratic = (again[key]["quadratic-intervention.recovered"] for key in ("quarter", "quadratic"))
            lost = failed - quadratic
            stuck = failed - quarter - lost
        kinds = [
            Kind(wrong, 0.01, 0.95, 1.02),
            Kind(failed - tiny - wrong - stuck - lost, 0.01, 0.62),
            Kind(tiny, TINY, 0.62),
            Kind(stuck, 0.01, 0.12),
            Kind(lost, 0.01, 0.12, 0.4),  # the predicted scale lies beyond the root
            Kind(backwards, -0.01, 0.62),
        ]
        return paths(self.synthetic, balanced(kinds, n - harmful - backwards, harmful - failed, mean))

    def _sweep_columns(self, model: str, name: str, n: int, depths: tuple[int, ...]) -> dict[str, Any]:
        cells = published("sweep", model, name)
        size = -cells.get("depth-coverage.decline_change", -0.05)
        columns = {"utility": sweep(depths, n, cells["depth-coverage.peak"], cells["depth-coverage.decline"], size)}
        if published("sweep", model, name, key="3"):  # how often the first option is chosen
            chosen = np.zeros((n, len(depths)), int)
            for depth in (3, 4, 12):
                said = published("sweep", model, name, key=str(depth))["option-responses.chosen"]
                chosen[: n - int(said), depths.index(depth)] = 1
            columns["chosen"] = chosen
        return columns

    # The original evaluation sets.

    def _math_1(self, mean: float) -> Any:
        name = "math500/test"
        cells = published("original", OURO_1, name, 4)
        keyed = {key: published("original", OURO_1, name, 4, key) for key in ("all", "primary", "failures")}
        failed, primary = cells["progress-boundary.crossings"], cells["progress-boundary.primary"]
        recovered = keyed["failures"]["bound-selected.quarter_positive"]
        unresolved = keyed["primary"]["scale-prediction.at_zero"]
        near = cells["path-curvature.only_current"] - (failed - recovered)
        missed = failed - cells["progress-boundary.hits"]
        wrong = 9
        # Gains of the bound rule up to 1e-4: all questions near 0, and some of those that a quarter step loses.
        small = failed - keyed["failures"]["bound-selected.beyond_margin"] - unresolved
        inside = cells["oracles.interior"] - recovered
        right = keyed["all"]["refined-optima.right"]
        kinds = [
            Kind(unresolved, 0.01, 0.04),
            Kind(small, 0.003, 0.22),
            Kind(failed - recovered - unresolved - small, 0.05, 0.22),
            Kind(near, 0.05, 0.42),
            Kind(wrong, 0.05, 0.95, 1.02),
            Kind(missed - wrong, 0.05, 0.62, 0.72),
            Kind(recovered - near - missed, 0.05, 0.72),
            Kind(inside, 0.3, 1.5),  # so steep that half a step is the best fixed one
            Kind(primary - failed - inside - right, 0.02, 1.9),
            Kind(right, 0.02, 2.5),
        ]
        return paths(self.synthetic, balanced(kinds, 0, keyed["all"]["refined-optima.left"], mean))

    def _gsm8k_train(self) -> StoredRun:
        name, n = "gsm8k/train256", 256
        cells = published("original", HUGINN, name, 19)
        keyed = {key: published("original", HUGINN, name, 19, key) for key in ("all", "primary", "interior")}
        failed, recovered = cells["contraction.failures"], cells["contraction.recovered"]
        primary, clear = cells["progress-boundary.primary"], cells["contraction.recovered_beyond_margin"]
        missed = failed - cells["progress-boundary.hits"]
        near = cells["path-curvature.only_current"] - (failed - recovered)
        # FP64 sees more optima inside than the grid does.
        unresolved = keyed["all"]["refined-optima.interior"] - keyed["interior"]["scale-prediction.n"]
        inside = cells["oracles.interior"] - recovered
        right = keyed["primary"]["scale-prediction.both_at_one"]
        convex = n - cells["derivative-checks.negative_everywhere"]
        beyond = keyed["all"]["refined-optima.right"] - right
        kinds = [
            Kind(unresolved, 1e-4, 0.04),
            Kind(failed - recovered - unresolved, 1e-4, 0.12),
            Kind(near, 1e-4, 0.42),
            Kind(missed, 1e-4, 0.62, 0.72),
            Kind(recovered - near - missed - clear, 1e-4, 0.72),
            Kind(clear, 0.01, 0.72),
            Kind(inside, 0.01, 1.5),
            Kind(primary - failed - inside - right, 0.01, 1.9),
            Kind(right, 0.01, 2.5),
            Kind(beyond, 0.01, -1.0),
            Kind(convex - beyond, -0.02, 2.5),
            Kind(keyed["all"]["refined-optima.left"] - (convex - beyond), -0.02, -1.0),
        ]
        made = paths(self.synthetic, kinds)
        task = self.task(name, {19: made}, utility=self._chosen_at(made, 16, 19, 24))
        return self.run(HUGINN, [task], 32, "huginn-gsm8k-train256", depths=tuple(range(16, 25)), paths=True)

    def _chosen_at(self, made: Any, first: int, transition: int, last: int) -> np.ndarray:
        """Utilities that rise with every loop but at one, where they change by the gains."""
        steps = np.full((len(made), last - first + 1), 0.05)
        steps[:, transition + 1 - first] = made.value(1.0)
        return np.cumsum(steps, axis=1) - 2.0

    def _hellaswag_1000(self) -> StoredRun:
        name, n, failed = "hellaswag/validation1000", 1000, 26
        cells = published("original", OURO_1, name, 4)
        recovered, clear = cells["contraction.recovered"], cells["contraction.recovered_beyond_margin"]
        kinds = [
            Kind(clear, 0.01, 0.62),
            Kind(recovered - clear, 1e-4, 0.62),
            Kind(failed - recovered, 0.01, 0.12),
            Kind(cells["oracles.interior"] - recovered, 0.01, 1.5),
        ]
        made = paths(
            self.synthetic, balanced(kinds, 400, n - 400 - failed - kinds[-1].count, cells["transitions.full"])
        )
        chosen = np.ones((n, 2), int)
        for column, when in enumerate(("before", "after")):
            chosen[: of(cells[f"transitions.accuracy_{when}"], n), column] = 0
        return self.run(
            OURO_1, [self.task(name, {4: made}, chosen=chosen)], name="ouro-1.4b-hellaswag1000", level="grid"
        )

    def _commonsense(self, model: str, transition: int, folder: str) -> StoredRun:
        name, n = "commonsense_qa/train1024", 1024
        cells = published("original", model, name, transition)
        primary = int(published("original", model, name, transition, "primary")["scale-prediction.n"])
        failed, recovered = cells["contraction.failures"], cells["contraction.recovered"]
        inside = cells["oracles.interior"] - recovered
        kinds = [
            Kind(recovered, 1e-4, 0.62),
            Kind(failed - recovered, 1e-4, 0.12),
            Kind(inside, 1e-4, 1.5),
            Kind(primary - failed - inside, 0.01, 2.5),
            Kind(n - primary, -0.02, -1.0),
        ]
        made = paths(self.synthetic, kinds)
        more = {"utility": self._chosen_at(made, 16, 33, 34)} if model == HUGINN else {}
        depths = {"depths": tuple(range(16, 35))} if model == HUGINN else {}
        return self.run(model, [self.task(name, {transition: made}, **more)], name=folder, level="grid", **depths)

    # The other measurements.

    def _transitions(self) -> StoredRun:
        """Ouro-2.6B on HellaSwag, four updates."""
        name, n = "hellaswag/validation", 10042
        made = {}
        for transition in (1, 2, 3, 4):
            cells = published("transitions", OURO_2, name, transition, bare=True)
            failed, quarter, quadratic = (
                cells[column] for column in ("failures", "recovered_quarter", "recovered_quadratic")
            )
            small = quadratic - cells["recovered_beyond_margin"]
            wrong = n - of(cells["sign_quadratic"], n)
            backwards = n - of(cells["sign_slope"], n) - failed
            kinds = [
                Kind(quarter - small, 0.02, 0.62),
                Kind(small, TINY, 0.62),
                Kind(failed - quadratic, 0.02, 0.12, 0.4),
                Kind(quadratic - quarter, 0.02, 0.12),
                Kind(backwards, -0.02, 0.62),
                Kind(wrong, 0.02, 1.05, 0.97),
            ]
            made[transition] = paths(
                self.synthetic, balanced(kinds, 3000, n - 3000 - failed - backwards - wrong, -0.01)
            )
        return self.run(OURO_2, [self.task(name, made)], name="ouro-2.6b-transitions", level="grid")

    def _audit(self) -> StoredRun:
        """Single tokens of Ouro-1.4B on GSM8K test."""
        name, n = "gsm8k/test", 1319
        still = paths(self.synthetic, [Kind(n, 0.01, 2.5)])
        tokens = {}
        for transition in (1, 2, 3):
            cells = published("audit", OURO_1, name, transition, bare=True)
            failed, positions, quarter = (cells[column] for column in ("failures", "positions", "recovered_quarter"))
            small, lost = failed - cells["beyond_margin"], failed - cells["recovered_quadratic"]
            kinds = [
                Kind(quarter - small, 0.01, 0.62),
                Kind(small, TINY, 0.62),
                Kind(lost, 0.01, 0.12, 0.4),
                Kind(failed - quarter - lost, 0.01, 0.12),
                Kind(positions - failed, 0.01, 2.5),
            ]
            made = paths(self.synthetic, kinds)
            scale = np.clip(-made.A / (2 * made.Q), 0, 1)
            each = np.full(n, positions // n) + (np.arange(n) < positions % n)
            tokens[transition] = {
                **{"row": np.repeat(np.arange(n), each), "slope": made.A, "quadratic": made.Q, "gain": made.value(1.0)},
                **{"quarter_gain": made.value(0.25), "quadratic_gain": made.value(scale)},
                **dict.fromkeys(("exit_depth", "exit_depth_fp64"), np.full(positions, cells["latest"])),
            }
        task = self.task(name, dict.fromkeys((1, 2, 3), still), tokens=tokens)
        return self.run(OURO_1, [task], name="ouro-1.4b-tokens", level="quick", tokens=True)

    def _bounds_task(self, model: str, name: str, n: int) -> Any:
        cells = published("bounds", model, name, 4)
        primary = cells["scale-bounds.n"]
        uncovered = [
            int(row.key)
            for table in tables()
            if table.study == "optimum-refinement"
            for row in table.rows
            if (row.setting.model, row.setting.evaluation_set) == (model, name)
        ]
        kinds = [Kind(primary, 0.01, 0.62, 0.72), Kind(n - primary, -0.02, -1.0)]
        made = self._matrix_paths(model, name, n, 4) if model == OURO_1 else paths(self.synthetic, kinds)
        # The published rows must be primary ones with an optimum inside.
        order, optimum = np.arange(n), made.optimum()
        for row, other in zip(uncovered, np.flatnonzero((optimum > 0) & (optimum < 1)), strict=False):
            order[[row, other]] = order[[other, row]]
        made = self.synthetic.Paths(made.A[order], made.Q[order], made.R[order])
        # Of 2034 bounds 99.8% are below one: four are not, one in each set.
        inside = np.flatnonzero((made.A > 0) & (made.Q < 0))
        curvature = -2 * made.Q
        error = np.abs(np.minimum(-made.A / (2 * made.Q), 1.0) - made.optimum())
        envelope = np.maximum(3 * np.abs(made.R), curvature * (error + 1e-6))
        envelope[inside] = np.minimum(envelope, 0.95 * curvature)[inside]
        envelope[inside[-1]] = 2 * curvature[inside[-1]]
        signed = envelope.copy()
        signed[uncovered] = (curvature * error)[uncovered]
        return self.task(name, {4: made}, columns={"fp64_S": signed, "fp64_C_upper": envelope})
