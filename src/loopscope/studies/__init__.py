"""Each table and figure of the paper as a pure function of stored records.

from loopscope.studies import figure, table

print(table("mechanism", ["runs/first"]))
figure("scale-prediction", ["runs/first"]).save("scale.pdf")
"""

from loopscope.studies.api import figure, open_records, table
from loopscope.studies.registry import FIGURES, TABLES, Study

__all__ = ["FIGURES", "TABLES", "Study", "figure", "open_records", "table"]
