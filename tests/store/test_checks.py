from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from loopscope.store import Manifest, WorkUnit
from loopscope.store.arrow import to_arrow
from loopscope.store.checks import Problem, constants, unit_problems

Make = Callable[..., Manifest]
Tables = Callable[[Manifest, WorkUnit], dict[str, Any]]
Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture
def problems(make_manifest: Make, make_tables: Tables) -> Callable[..., list[Problem]]:
    """The problems of the first unit after its rows were spoilt."""

    def check(spoil: Callable[[Rows], object], index: int = 0, **changes: Any) -> list[Problem]:
        manifest = make_manifest(**changes)
        unit = manifest.units()[index]
        rows = make_tables(manifest, unit)
        spoil(rows)
        fixed = constants(manifest, unit)
        arrow = {table.name: to_arrow(table, rows[table.name], fixed) for table in manifest.tables()}
        return unit_problems(manifest, unit, arrow)

    return check


Check = Callable[..., list[Problem]]


def test_a_sound_unit_has_no_problem(problems: Check) -> None:
    assert problems(lambda rows: None) == []
    assert problems(lambda rows: None, index=3) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("table", "column"), [("questions", "fp64_M"), ("depths", "utility"), ("tokens", "gain")])
def test_a_number_that_is_not_finite_is_found(problems: Check, value: float, table: str, column: str) -> None:
    (found,) = problems(lambda rows: rows[table][-1].update({column: value}))
    assert found == Problem("value", f"{table}.{column} is not finite for example 'sums-00006'")


def test_a_nan_inside_a_list_is_found(problems: Check) -> None:
    (found,) = problems(lambda rows: rows["questions"][0].update(grid_gain=[0.0] * 20 + [float("nan")]))
    assert found == Problem("value", "questions.grid_gain is not finite for example 'sums-00000'")


def test_a_missing_cell_is_found(problems: Check) -> None:
    (found,) = problems(lambda rows: rows["questions"][0].pop("slope"))
    assert found == Problem("null", "questions.slope: 1 of 6 cells are missing")


def test_a_cell_of_a_higher_level_is_found(problems: Check) -> None:
    (found,) = problems(
        lambda rows: rows["questions"][0].update(fp64_gain=1.0), level="grid", paths=False, tokens=False
    )
    assert found == Problem("null", "questions.fp64_gain: filled at level grid, belongs to full")


def test_a_list_of_the_wrong_length_is_found(problems: Check) -> None:
    (found,) = problems(lambda rows: rows["questions"][0].update(grid_gain=[0.0] * 20))
    assert found == Problem("schema", "questions.grid_gain: a list has not 21 elements")


def test_a_null_inside_a_list_is_found(problems: Check) -> None:
    (found,) = problems(lambda rows: rows["questions"][0].update(grid_gain=[0.0] * 20 + [None]))
    assert found == Problem("null", "questions.grid_gain: a list holds a null")


@pytest.mark.parametrize("table", ["examples", "questions", "depths", "paths"])
def test_a_lost_row_is_found(problems: Check, table: str) -> None:
    found = problems(lambda rows: rows[table].pop())
    assert [problem.kind for problem in found] == ["coverage"]
    assert "1 of" in found[0].message
    assert "row 2" in found[0].message


@pytest.mark.parametrize("table", ["examples", "questions", "depths", "tokens", "paths"])
def test_a_duplicated_row_is_found(problems: Check, table: str) -> None:
    found = problems(lambda rows: rows[table].append(rows[table][0]))
    assert found == [Problem("coverage", f"{table}: a row occurs twice or out of order")]


def test_a_row_of_another_unit_is_found(problems: Check) -> None:
    found = problems(lambda rows: rows["depths"].append(rows["depths"][0] | {"row": 3}))
    assert found == [Problem("coverage", "depths: 1 rows do not belong to the unit, first row 3, depth 1")]


def test_a_lost_token_is_found(problems: Check) -> None:
    def lose(rows: Rows) -> None:
        rows["tokens"] = [row for row in rows["tokens"] if not (row["row"] == 1 and row["token"] == 0)]
        rows["tokens"] += [{**rows["tokens"][0], "row": 1, "transition": t, "token": 7} for t in (1, 4)]
        for row in rows["questions"]:
            row["n_tokens"] += row["row"] == 1 and row["transition"] == 1
        for row in rows["tokens"]:
            row["example_id"] = f"sums-{row['row'] * 3:05d}"

    (found,) = problems(lose)
    assert found.kind == "coverage"
    assert "token rows where questions.n_tokens says" in found.message


def test_an_update_without_tokens_is_found(problems: Check) -> None:
    def lose(rows: Rows) -> None:
        rows["tokens"] = [row for row in rows["tokens"] if row["row"] != 1]

    (found,) = problems(lose)
    assert found == Problem("coverage", "tokens: 2 of 6 rows are missing, first row 1, transition 1")


def test_an_identifier_that_differs_between_tables_is_found(problems: Check) -> None:
    (found,) = problems(lambda rows: rows["depths"][0].update(example_id="another"))
    assert found == Problem("coverage", "depths.example_id differs from examples.example_id of the same row")


def test_another_model_name_is_found(problems: Check) -> None:
    found = problems(lambda rows: [row.update(model="another") for row in rows["depths"]])
    assert found == [Problem("coverage", "depths.model is not everywhere 'looped-model'")]


def test_another_schema_is_found(make_manifest: Make, make_tables: Tables) -> None:
    manifest = make_manifest(paths=False, tokens=False)
    unit = manifest.units()[0]
    rows = make_tables(manifest, unit)
    fixed = constants(manifest, unit)
    arrow = {table.name: to_arrow(table, rows[table.name], fixed) for table in manifest.tables()}
    wrong = dict(arrow)
    wrong["depths"] = arrow["depths"].drop_columns(["utility"])
    assert unit_problems(manifest, unit, wrong)[0].message == "depths: columns differ from the schema: utility"
    index = arrow["depths"].column_names.index("depth")
    wrong["depths"] = arrow["depths"].set_column(index, "depth", arrow["depths"].column("depth").cast(pa.int64()))
    assert unit_problems(manifest, unit, wrong)[0].message == "depths: other type than declared: depth"
