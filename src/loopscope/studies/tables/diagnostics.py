"""State, output, and task-geometry diagnostics: Table "tab:diagnostic-ranking", Appendix E.3."""

from dataclasses import dataclass

from loopscope.path import endpoint_prediction
from loopscope.stats import Auroc, Bootstrap, Estimate, Spearman
from loopscope.store import Level
from loopscope.studies.records import Floats, Records, Updates
from loopscope.studies.result import Panel, Row, TableResult, column, fixed, label
from loopscope.studies.usable_conditions import select

SIGNALS = {
    "update_norm": "Update norm",
    "relative_change": "Relative change",
    "cosine_change": "Cosine change",
    "output_kl": "Output KL",
    "entropy_change": "Entropy change",
    "slope": "A",
    "slope_quadratic": "A+Q",
}
STORED = ("update_norm", "relative_change", "cosine_change", "output_kl", "entropy_change")
RISES_WITH_RISK = frozenset({"entropy_change"})
"""Larger risk is the negative of each signal except this one; kept whatever the outcome says."""


@dataclass(frozen=True)
class DiagnosticRow(Row):
    """One signal (the key) in one condition."""

    spearman: Estimate
    """Of the raw signal with ΔU."""
    auroc: Estimate
    """Of the signal's fixed risk orientation for ΔU < 0."""

    @property
    def condition_title(self) -> str:
        """The condition as a column head."""
        return f"{self.condition.model_title}\n{self.condition.set_title}\n{self.condition.update}"


SIGNAL = label("key", "Signal")


def diagnostics(records: Records, bootstrap: Bootstrap | None = None) -> TableResult[DiagnosticRow]:
    """One row per condition and signal; printed with the conditions side by side, as in the paper."""
    return select(records, *STORED, level=Level.GRID).table(
        "diagnostics",
        _rows,
        bootstrap,
        label="tab:diagnostic-ranking",
        title="State, output, and task-geometry diagnostics",
        caption=(
            "Raw correlations retain signal orientation, and AUROC uses fixed risk signs: the negative of each signal "
            "except entropy change."
        ),
        panels=(
            Panel(
                (SIGNAL, column("spearman", "Spearman", fixed(4))),
                title="Raw Spearman correlation with the full-step gain",
                across="condition_title",
            ),
            Panel(
                (SIGNAL, column("auroc", "AUROC", fixed(4))),
                title="Harmful-update AUROC",
                across="condition_title",
            ),
        ),
        key_names=SIGNALS,
    )


def _rows(updates: Updates, bootstrap: Bootstrap) -> list[DiagnosticRow]:
    signals = {name: signal(updates, name) for name in SIGNALS}
    estimates = bootstrap.estimate(
        {("spearman", name): Spearman(values, updates.gain) for name, values in signals.items()}
        | {
            ("auroc", name): Auroc(values, updates.harmful, descending=name not in RISES_WITH_RISK)
            for name, values in signals.items()
        }
    )
    return [
        DiagnosticRow(updates.condition, name, estimates["spearman", name], estimates["auroc", name])
        for name in SIGNALS
    ]


def signal(updates: Updates, name: str) -> Floats:
    """The values of a signal, one per question."""
    if name == "slope_quadratic":
        total: Floats = endpoint_prediction(updates.slope, updates.quadratic)
        return total
    return updates.slope if name == "slope" else updates.floats(name)
