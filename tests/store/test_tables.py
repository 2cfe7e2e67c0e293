from loopscope.path import CURVATURE_SCALES, GRID
from loopscope.path.grids import DIFFERENCE_SPACINGS, PATH_NODES
from loopscope.store import TABLES, Column, Level
from loopscope.store.schema import GAIN_SCALES, MIN_P


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


def test_levels_are_ordered() -> None:
    assert [level.value for level in Level] == ["quick", "grid", "full"]
    column = Column("x", "float64", "", "x", Level.GRID)
    assert [column.required(level, 1) for level in Level] == [False, True, True]
    assert not Column("x", "float64", "", "x", since=2).required(Level.FULL, 1)
