"""`loopscope tables RUN… [--name NAME] [--format text|markdown|latex|csv|json]`."""

from collections.abc import Sequence

from loopscope._errors import LoopscopeError

FORMATS = ("text", "markdown", "latex", "csv", "json")


def tables(runs: Sequence[str], name: str | None = None, format: str = "text") -> str:
    """One table by name, or every table that the runs can fill, ready to print.

    Args:
        runs: run directories.
        name: a table from `loopscope studies`; None for all.
        format: how to write it.
    """
    from loopscope.studies.api import find, open_records
    from loopscope.studies.registry import TABLES

    if format not in FORMATS:
        raise LoopscopeError(f"there is no format {format!r}: choose from {', '.join(FORMATS)}")
    studies = list(TABLES.values()) if name is None else [find(name, TABLES)]
    records = open_records(list(runs))
    results = [study.table(records) for study in studies]
    if not records.updates:
        raise LoopscopeError("these runs hold no records yet: the measuring command given again continues them")
    if name is not None and not results[0].rows:
        reason = results[0].notes[-1] if results[0].notes else f"nothing in these runs (needs {studies[0].needs})"
        raise LoopscopeError(f"{studies[0].name}: {reason}")
    filled = [result for result in results if result.rows]
    if format == "json" and name is None:
        import json

        from loopscope.studies.render.json import as_dict

        return json.dumps([as_dict(result) for result in filled], indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    written = [getattr(result, f"to_{format}")().rstrip("\n") for result in filled]
    empty = [result.study for result in results if not result.rows]
    if empty and format == "text":
        written.append(f"nothing in these runs for: {', '.join(empty)} (`loopscope studies` says what each needs)")
    return "\n\n".join(written) + "\n"
