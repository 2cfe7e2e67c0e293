import re

import pytest

from loopscope.stats import Estimate, Interval
from loopscope.studies.render.screen import ScreenDialect, column_style, uniform
from loopscope.studies.render.sheet import sheets
from loopscope.studies.result import fixed, percent
from loopscope.studies.tables.diagnostics import diagnostics
from loopscope.studies.tables.mechanism import mechanism


@pytest.mark.parametrize(
    ("values", "style", "cells"),
    [
        ([0.5, -0.25], fixed(3), ["0.500", "−0.250"]),
        ([0.5, -0.00031, None], fixed(3), ["0.50000", "−0.00031", "—"]),
        ([1524.62, 0.000799, 0.0], fixed(3), ["1.52×10³", "7.99×10⁻⁴", "0"]),
        ([3e-12, 0.0], fixed(2, sign=True), ["+3.00×10⁻¹²", "0"]),
        ([Estimate(0.5, 9, Interval(-0.001, 1.0)), Estimate(None, 0)], percent(1, interval=True),
         ["50.0 [−0.1, 100.0]", "—"]),
    ],
)  # fmt: skip
def test_a_column_has_one_format(values, style, cells):
    chosen = column_style(values, style)
    assert [ScreenDialect().cell(value, chosen) for value in values] == cells


@pytest.mark.parametrize("study", [mechanism, diagnostics])
def test_columns_of_a_table_have_one_number_of_decimals_and_true_minus_signs(records, synthetic, study):
    paths = {t: synthetic.Paths.of([10.0**-t, -0.2, 0.3], [-(10.0 ** -(t + 2)), -0.1, -0.5]) for t in (2, 3, 4)}
    for sheet in sheets(uniform(study(records(synthetic.Task("a", paths)), None)), ScreenDialect()):
        for index, column in enumerate(sheet.columns):
            cells = [line[index] for line in sheet.lines if not column.text and line[index] != "—"]
            assert len({len(cell.partition(".")[2]) for cell in cells if "×" not in cell and "/" not in cell}) <= 1
            assert not re.search(r"-\d|e[-+]\d", "".join(cells) + column.head + column.group)


def test_every_cell_names_the_row_behind_it(records, synthetic):
    paths = {t: synthetic.Paths.of([0.5, 0.2, -0.3], [-1.0, -0.1, -0.5]) for t in (3, 4)}
    made = records(synthetic.Task("a", paths))
    plain = sheets(mechanism(made, None), ScreenDialect())[0]
    assert [rows[0].condition.update for rows in plain.rows] == [line[2] for line in plain.lines]
    for sheet in sheets(diagnostics(made, None), ScreenDialect()):
        for line, rows in zip(sheet.lines, sheet.rows, strict=True):
            assert len(line) == len(rows)
            assert rows[0] is None
            for column, row in zip(sheet.columns[1:], rows[1:], strict=True):
                assert row.condition.update in column.head
