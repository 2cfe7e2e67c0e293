"""`loopscope figures RUN… [--name NAME] [--format pdf|png|svg] --output DIR`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from loopscope._errors import LoopscopeError


def figures(runs: Sequence[str], output: str, name: str | None = None, format: str = "pdf") -> Iterator[Path]:
    """Write one figure, or all of them, into a folder; yields each file when it is written.

    Beside every figure stands a JSON with the ids it shows and the hashes of what it was made from.

    Args:
        runs: run directories.
        output: the folder; it is made where it does not exist.
        name: a figure from `loopscope studies`; None for all.
        format: `pdf`, `png` or `svg`.
    """
    from loopscope.studies.api import find, open_records
    from loopscope.studies.registry import FIGURE_FORMATS, FIGURES

    if format not in FIGURE_FORMATS:
        raise LoopscopeError(f"there is no format {format!r}: choose from {', '.join(FIGURE_FORMATS)}")
    chosen = list(FIGURES.values()) if name is None else [find(name, FIGURES)]
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise LoopscopeError(f"{folder} is a file: give a folder for --output")
    records = open_records(list(runs))
    for study in chosen:
        result = study.figure(records)
        if name is not None and not result.shown:
            raise LoopscopeError(f"{study.name}: {result.caption}")
        if result.shown:
            yield result.save(folder / f"{study.name}.{format}")
