"""One self-contained page that shows where the loop went too far: `write_report(runs, output)`.

The page is a single HTML file: it opens from disk, makes no request, and holds the records of its runs in compressed
columns that its own script decodes when they are looked at. What it prints as a summary (means, shares, intervals)
comes from `loopscope.studies` and `loopscope.stats`; the script draws and reads stored numbers. `QuestionView` is one
question of it for notebooks, which `Run.question` gives.
"""

from loopscope.report.question import QuestionView
from loopscope.report.write import write_report

__all__ = ["QuestionView", "write_report"]
