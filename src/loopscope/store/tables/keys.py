"""The columns that every table begins with; the writer fills them from the manifest."""

from loopscope.store.columns import Column, ColumnType

IDENTITY = (
    Column("model", ColumnType.STRING, "", "name of the model"),
    Column("task", ColumnType.STRING, "", "name of the task"),
    Column("split", ColumnType.STRING, "", "split of the task"),
    Column("row", ColumnType.INT32, "index", "position of the example in this run's task, from 0"),
    Column("example_id", ColumnType.STRING, "", "identifier of the example"),
)

SOURCE_ROW = Column("source_row", ColumnType.INT64, "index", "row of the example in the published split, from 0")

TRANSITION = Column("transition", ColumnType.INT32, "loops", "t of the update t → t+1")
