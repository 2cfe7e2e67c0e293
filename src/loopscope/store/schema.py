"""The versioned schema of a run directory: which tables there are and what a change of version means."""

from loopscope.store.columns import Table
from loopscope.store.tables.depths import DEPTHS
from loopscope.store.tables.examples import EXAMPLES
from loopscope.store.tables.paths import PATHS
from loopscope.store.tables.questions import QUESTIONS
from loopscope.store.tables.tokens import TOKENS

SCHEMA_VERSION = 1
"""Raised by one whenever a column is added, dropped, renamed or given another meaning."""

TABLES: dict[str, Table] = {table.name: table for table in (EXAMPLES, QUESTIONS, DEPTHS, TOKENS, PATHS)}
"""Every table by name; `tokens` and `paths` are written only when a run asks for them."""


def tables_of(*, tokens: bool, paths: bool) -> tuple[Table, ...]:
    """The tables that a run with these options writes.

    >>> [table.name for table in tables_of(tokens=False, paths=True)]
    ['examples', 'questions', 'depths', 'paths']
    """
    left_out = {name for name, wanted in (("tokens", tokens), ("paths", paths)) if not wanted}
    return tuple(table for name, table in TABLES.items() if name not in left_out)
