"""`Run`: an opened run directory with the paper's tables and figures of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopscope.store.run import StoredRun

if TYPE_CHECKING:
    from loopscope.stats import Bootstrap
    from loopscope.studies.figures.style import FigureResult
    from loopscope.studies.result import Row, TableResult


class Run(StoredRun):
    """An opened run directory: its records as frames, and the paper's tables and figures of them."""

    def table(self, name: str, bootstrap: Bootstrap | None = None) -> TableResult[Row]:
        """One of the paper's tables for this run, e.g. `table("mechanism")`; it prints and exports."""
        from loopscope.studies import table

        return table(name, self, bootstrap)

    @property
    def ways_taken(self) -> tuple[str, ...]:
        """How φ was computed, from the run's log; none are known of a run by an older version.

        Names of `loopscope.readout.affine.choose.WAYS`, or "general" for a readout that is not affine.
        """
        logged = (event.get("names", ()) for event in self.events if event.get("event") == "ways")
        return tuple(sorted({name for names in logged for name in names}))

    def figure(self, name: str, bootstrap: Bootstrap | None = None) -> FigureResult:
        """One of the paper's figures for this run, e.g. `figure("scale-prediction").save("scale.pdf")`."""
        from loopscope.studies import figure

        return figure(name, self, bootstrap)
