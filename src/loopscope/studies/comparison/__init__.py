"""The paper's numbers beside a run's own; a run of another setting is shown and never called a reproduction."""

from loopscope.studies.comparison.compare import Comparison, ComparisonRow, compare
from loopscope.studies.comparison.settings import setting_differences

__all__ = ["Comparison", "ComparisonRow", "compare", "setting_differences"]
