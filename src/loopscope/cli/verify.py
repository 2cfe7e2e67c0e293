"""`loopscope verify RUN`: what was checked and what was found."""

from __future__ import annotations

from loopscope._errors import LoopscopeError


def verify_run(
    path: str, *, replay: bool, data_dir: str | None = None, model: str | None = None, device: str | None = None
) -> None:
    """Print the findings.

    Raises:
        LoopscopeError: there are some; it says what mends them.
    """
    from loopscope.store import verify

    if replay:
        from functools import partial

        from loopscope.measure.replay import replay as measure_again

        result = verify(path, partial(measure_again, data_dir=data_dir, model=model, device=device))
    else:
        result = verify(path)
    for finding in result.findings:
        print(finding)
    rows = ", ".join(f"{count} {table}" for table, count in result.rows.items())
    sample = "a sample measured again" if result.replayed else "nothing measured again"
    state = "sound" if result.ok else f"{len(result.findings)} findings"
    print(f"{path}: {state}; {result.units_checked}/{result.units_planned} units, {rows}; {sample}")
    if not result.ok:
        raise LoopscopeError(f"{path} does not hold what it should; {result.advice}")
