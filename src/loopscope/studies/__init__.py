"""Each table and figure of the paper as a pure function of stored records.

from loopscope.studies import figure, table

print(table("mechanism", ["runs/first"]))
figure("scale-prediction", ["runs/first"]).save("scale.pdf")
"""

from loopscope.studies.registry import FIGURES, TABLES, Study, figure, open_records, table

__all__ = ["FIGURES", "TABLES", "Study", "figure", "open_records", "table"]
