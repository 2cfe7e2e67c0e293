"""Reading the published numbers from the TOML files beside this module, once a process."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from loopscope.studies.paper.cells import Claim, PaperCell, PaperModel, PaperRow, PaperTable, Setting, parse_cell

_HERE = files("loopscope.studies.paper")


def _toml(*parts: str) -> dict[str, Any]:
    return tomllib.loads(_HERE.joinpath(*parts).read_text(encoding="utf-8"))


@cache
def measurements() -> dict[str, str]:
    """The paper's separate measurements and what each of them is."""
    return {name: entry["about"] for name, entry in _toml("measurements.toml").items()}


@cache
def model_names() -> dict[str, str]:
    """The paper's name of each of its models, by the bare name of the published checkpoint."""
    return {model.name: title for title, model in models().items()}


@cache
def models() -> dict[str, PaperModel]:
    """The paper's models, by the paper's name."""
    return {
        title: PaperModel(entry["name"], entry["family"], tuple(entry["depths"]))
        for title, entry in _toml("models.toml").items()
    }


@cache
def set_titles() -> dict[str, str]:
    """How tables print the paper's evaluation sets, by `task/split` or `task/subset`."""
    return {name: entry["title"] for name, entry in _toml("sets.toml").items()}


@cache
def templates() -> dict[str, str]:
    """The SHA-256 of each task's wording in the paper's protocol, by task."""
    return {str(task): str(digest) for task, digest in _toml("templates.toml").items()}


@cache
def claims() -> dict[str, Claim]:
    """Totals, ranges and factors of the running text, by name."""
    return {name: Claim(**entry) for name, entry in _toml("claims.toml").items()}


@cache
def tables() -> tuple[PaperTable, ...]:
    """Every table of the paper, then what only its text gives; files in alphabetical order."""
    sets = _toml("sets.toml")
    return tuple(
        _table(_toml(folder, name), sets)
        for folder in ("tables", "prose")
        for name in sorted(entry.name for entry in _HERE.joinpath(folder).iterdir())
        if name.endswith(".toml")
    )


def cells(study: str | None = None) -> tuple[PaperCell, ...]:
    """All cells, or those of one study."""
    return tuple(
        cell for table in tables() if study in (None, table.study) for row in table.rows for cell in row.cells.values()
    )


def number_count() -> int:
    """How many published numbers are kept, the ends of intervals included."""
    return sum(cell.numbers for cell in cells())


def _table(source: dict[str, Any], sets: dict[str, Any]) -> PaperTable:
    rows = tuple(_row(source, row, sets) for row in source["rows"])
    return PaperTable(source["label"], source["study"], source["title"], rows)


def _row(source: dict[str, Any], row: dict[str, Any], sets: dict[str, Any]) -> PaperRow:
    label, columns, key = source["label"], source["columns"], row.get("key", "")
    evaluation_set = sets[row["set"]]
    measurement = row.get("measurement", source["measurement"])
    if measurement not in measurements():
        raise ValueError(f"{label}: no measurement {measurement!r}")
    if len(row["cells"]) != len(columns):
        raise ValueError(f"{label}: a row has {len(row['cells'])} cells for {len(columns)} columns")
    setting = Setting(
        measurement=measurement,
        model=row["model"],
        task=evaluation_set["task"],
        split=evaluation_set["split"],
        subset=evaluation_set.get("subset"),
        kind=evaluation_set["kind"],
        n=evaluation_set["n"],
        transition=row.get("transition"),
        states="bfloat16",
        readout=row.get("readout", source.get("readout", "float32")),
    )
    units = source.get("units", {})
    return PaperRow(
        setting,
        key,
        {
            column: parse_cell(
                text,
                label=label,
                study=source["study"],
                setting=setting,
                key=key,
                column=column,
                unit=units.get(column, 1.0),
            )
            for column, text in zip(columns, row["cells"], strict=True)
            if text
        },
    )
