"""The columns that say what a row is about: model, task, example, update or depth."""

from loopscope.store.column_types import Column, ColumnType

IDENTITY = (
    Column("model", ColumnType.STRING, "", "name of the model"),
    Column("task", ColumnType.STRING, "", "name of the task"),
    Column("split", ColumnType.STRING, "", "split of the task"),
    Column("row", ColumnType.INT32, "index", "position of the example in this run's task, from 0"),
    Column("example_id", ColumnType.STRING, "", "identifier of the example"),
)

SOURCE_ROW = Column("source_row", ColumnType.INT64, "index", "row of the example in the published split, from 0")

TRANSITION = Column("transition", ColumnType.INT32, "loops", "t of the update t → t+1")

DEPTH = Column("depth", ColumnType.INT32, "loops", "number of loops after which the state is read out")
