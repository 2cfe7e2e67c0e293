from pathlib import Path
from types import ModuleType

import pytest

from loopscope.path import CURVATURE_SCALES, GRID
from loopscope.path.grids import DIFFERENCE_SPACINGS, PATH_NODES
from loopscope.store import TABLES, Column, ColumnType, Level, Table
from loopscope.store.schema import GAIN_SCALES, MIN_P

DOCS = Path(__file__).resolve().parents[2] / "docs" / "run-directory.md"


def test_the_documentation_holds_the_schema(schema_document: ModuleType) -> None:
    document = DOCS.read_text(encoding="utf-8")
    remedy = "run: python tests/store/schema_document.py docs/run-directory.md"
    assert schema_document.with_schema(document) == document, remedy


def test_every_column_is_documented_once(schema_document: ModuleType) -> None:
    text = schema_document.schema_markdown()
    for table in TABLES.values():
        section = text.split(f"### `{table.name}`")[1].split("###")[0]
        for column in table.columns:
            assert section.count(f"| `{column.name}` |") == 1
            assert column.meaning
            assert "\n" not in column.meaning


def test_documentation_tables_have_seven_cells_a_row(schema_document: ModuleType) -> None:
    rows = [line for line in schema_document.schema_markdown().splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {8}


def test_a_document_without_markers_is_refused(schema_document: ModuleType) -> None:
    with pytest.raises(ValueError, match="lacks the markers"):
        schema_document.with_schema("# nothing")


def test_the_grids_are_the_papers() -> None:
    assert len(GRID) == 21
    assert GRID[::5] == CURVATURE_SCALES
    assert (GRID[1], GRID[-1]) == (0.05, 1.0)
    questions, paths = TABLES["questions"], TABLES["paths"]
    lengths = {column.name: column.length for column in (*questions.columns, *paths.columns)}
    assert (lengths["grid_gain"], lengths["curvature_path"]) == (len(GRID), len(CURVATURE_SCALES))
    assert lengths["fp64_third_relative_gap"] == len(DIFFERENCE_SPACINGS)
    assert lengths["gain"] == PATH_NODES
    assert TABLES["trace"].column("gains").length == len(GAIN_SCALES)
    assert f"below {MIN_P:g}·max" in TABLES["trace"].column("kl_min_p").meaning


def test_columns_of_one_name_agree_between_tables() -> None:
    seen: dict[str, Column] = {}
    for table in TABLES.values():
        for column in table.columns:
            if column.name in ("model", "task", "split", "row", "example_id", "source_row", "transition", "n_tokens"):
                assert seen.setdefault(column.name, column) == column


def test_names_differ_beyond_their_case() -> None:
    for table in TABLES.values():
        assert len({name.lower() for name in table.names}) == len(table.names)


def test_a_column_declared_twice_is_refused() -> None:
    row = Column("row", ColumnType.INT32, "", "x")
    with pytest.raises(ValueError, match="declared twice"):
        Table("t", "x", ("row",), (row, row))


def test_levels_are_ordered() -> None:
    assert [level.value for level in Level] == ["quick", "grid", "full"]
    column = Column("x", ColumnType.FLOAT64, "", "x", Level.GRID)
    assert [column.required(level, 1) for level in Level] == [False, True, True]
    assert not Column("x", ColumnType.FLOAT64, "", "x", since=2).required(Level.FULL, 1)
