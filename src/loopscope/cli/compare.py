"""`loopscope compare RUN…`: the paper's numbers beside the runs' own."""

from collections.abc import Sequence

from loopscope._errors import LoopscopeError

FORMATS = ("text", "markdown", "latex", "csv", "json")


def compare(runs: Sequence[str], name: str | None = None, format: str = "text") -> str:
    """Every published cell with a counterpart in the runs, its difference and a verdict.

    Args:
        runs: run directories.
        name: only the cells of this table; None for all.
        format: `text` groups by published row; the others write one line per cell.
    """
    from loopscope.studies.api import find, open_records
    from loopscope.studies.comparison import compare as join
    from loopscope.studies.registry import TABLES

    if format not in FORMATS:
        raise LoopscopeError(f"there is no format {format!r}: choose from {', '.join(FORMATS)}")
    study = None if name is None else find(name, TABLES).name
    comparison = join(open_records(list(runs)), study=study)
    if format == "text":
        return comparison.to_text() + "\n"
    written: str = getattr(comparison.table(), f"to_{format}")()
    return written
