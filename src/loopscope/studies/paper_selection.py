"""The paper's own selection: every table with exactly its rows, and the conditions that each figure shows."""

from __future__ import annotations

from collections.abc import Iterable

from loopscope.studies.comparison import Comparison
from loopscope.studies.declare import TABLES, Column, Panel, Row, TableResult, words
from loopscope.studies.paper import figure_settings, tables
from loopscope.studies.records import Records
from loopscope.studies.verdicts import distance


def paper_tables(comparison: Comparison) -> dict[str, TableResult]:
    """Every table of the paper with exactly its rows: ours, and the published value under each cell."""
    found: dict[str, TableResult] = {}
    for label in dict.fromkeys(table.label for table in tables() if table.label.startswith("tab:")):
        published = [table for table in tables() if table.label == label]
        lines = {(c.study, c.setting.removeprefix("stand-in for "), c.key, c.column): c for c in comparison.rows}
        names = list(dict.fromkeys(name for table in published for row in table.rows for name in row.cells))
        rows = []
        for table in published:
            for row in table.rows:
                about = (table.study, row.setting.title, row.key)
                ours = {name: lines[*about, name] for name in row.cells if (*about, name) in lines}
                if not ours:
                    continue
                somewhere = next(iter(ours.values()))
                runs = dict.fromkeys(each.condition.run for each in ours.values())
                here = {name: each.own_text or "—" for name, each in ours.items()}
                there = {name: cell.text for name, cell in row.cells.items()} | {n: c.paper for n, c in ours.items()}
                key = TABLES[table.study].keys.get(row.key, row.key)
                empty = dict.fromkeys(names, "")
                title = {"set": somewhere.setting, "row": key, "run": ", ".join(runs)}
                rows.append(Row(somewhere.condition, row.key, {**empty, **title, **here}))
                rows.append(
                    Row(somewhere.condition, row.key, {**empty, "set": "", "row": "", "run": "published", **there})
                )
        columns = (words("Condition", "{set}"), words("Row", "{row}"), words("Run", "{run}"))
        heads = _heads({table.study for table in published})
        numbers = tuple(Column(heads.get(name, name.replace("_", " ")), f"{{{name}}}") for name in names)
        caption = "Of every row the runs' numbers, and the published ones under them."
        found[label] = TableResult(
            published[0].study, label, published[0].title, caption, tuple(rows), (Panel((*columns, *numbers)),)
        )
    return found


def _heads(studies: Iterable[str]) -> dict[str, str]:
    """The heads of columns with one number."""
    declared = (column for study in studies for panel in TABLES[study].panels for column in panel.columns)
    return {
        name: f"{column.group}\n{column.head}" if column.group else column.head
        for column in declared
        if len(column.parts) == 1 and (name := column.parts[0][1]) is not None and column.per == 1.0
    }


def figure_records(records: Records, name: str) -> Records:
    """The records of the conditions that the paper's figure shows; all of them where no run is in their setting."""
    chosen = []
    for setting in figure_settings(name):
        near = [
            ((far, not updates.has("fp64_slope"), updates.condition.run), updates)
            for updates in records.updates
            if (far := distance(updates.condition, setting)) is not None
            and updates.condition.transition == setting.transition
        ]
        chosen += [min(near, key=lambda entry: entry[0])[1]] if near else []
    return records.only(chosen) if chosen else records
