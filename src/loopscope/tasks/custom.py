"""A task of the user's own: a data file with `prompt` + `solution`, or `context` + `options` + `answer`.

`answer` is the right option's number from 0. `id` may name a row; ids must differ. Other fields are allowed: a
template given with the task may use any text field of the row.
"""

from __future__ import annotations

from collections.abc import Callable

from loopscope._errors import LoopscopeError, setting
from loopscope.tasks.fields import check_unicode, option_index, text, texts, value
from loopscope.tasks.fields import kind as json_kind
from loopscope.tasks.item import Item
from loopscope.tasks.rows import SourceRow
from loopscope.tasks.template import Template, builtin_template

MOST_ID = 200
"""Characters of a row's own name, which stands in every record of it."""


def own_template(first: SourceRow) -> Template:
    """The plain template for a file, told by its first row's fields."""
    if {"prompt", "solution"} <= first.fields.keys():
        return builtin_template("own_solution")
    if {"context", "options", "answer"} <= first.fields.keys():
        return builtin_template("own_options")
    fields = ", ".join(sorted(first.fields)) or "none"
    raise LoopscopeError(
        f"{first.where}: a task of your own needs the fields prompt and solution, or context, options and answer "
        f"(this row has: {fields}); a benchmark's file is read by the benchmark's name and {setting('data_dir')}"
    )


def own_normaliser(template: Template) -> Callable[[SourceRow], Item]:
    """A function from source row to question that checks the fields the template names, and ids."""
    seen: dict[str, str] = {}

    def normalise(row: SourceRow) -> Item:
        name = _id(row, seen)
        fields = {field: text(row, field) for field in sorted(template.names)}
        if template.kind == "solution":
            return Item(row.index, row.where, fields, id=name)
        options = texts(row, "options")
        return Item(row.index, row.where, fields, options, option_index(row, value(row, "answer"), len(options)), name)

    return normalise


def _id(row: SourceRow, seen: dict[str, str]) -> str:
    found = row.fields.get("id")
    if found is None:
        found = f"row-{row.index}"
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise LoopscopeError(f"{row.where}: field 'id' must be a text or a whole number, not {json_kind(found)}")
    name = str(found)
    if not 0 < len(name) <= MOST_ID:
        raise LoopscopeError(f"{row.where}: field 'id' has {len(name)} characters; give it 1 to {MOST_ID}")
    check_unicode(row, "id", name)
    if name in seen:
        raise LoopscopeError(f"{row.where}: id {name!r} is already used at {seen[name]}; give each row its own")
    seen[name] = row.where
    return name
