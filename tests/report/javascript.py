"""Names in a script, by scope: which it defines, which it uses without defining them, which it never uses.

A reader of the JavaScript that the page is written in (semicolons, no labels, no `with`, no `var`), enough to find a
forgotten import without Node. Brackets make a tree; a walk through it knows what each name is bound to.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
      |(?P<name>[A-Za-z_$][\w$]*)
      |(?P<literal>\d[\w.]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      |(?P<mark>\.\.\.|=>|\?\.|.)""",
    re.VERBOSE | re.DOTALL,
)
REGEX = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/\w*")
PIECE = re.compile(r"(?:\\.|[^`\\$]|\$(?!\{))*(`|\$\{)", re.DOTALL)
_KEYWORDS = """async await break case catch class const continue default delete do else export extends false finally for
    from function if import in instanceof let new null of return static super switch this throw true try typeof void
    while yield"""
KEYWORDS = frozenset(_KEYWORDS.split())
BEFORE_REGEX = "(,=:[!&|?{};>"
CLOSED_BY = {"(": ")", "[": "]", "{": "}"}


@dataclass
class Group:
    """What stands between two brackets; `head` is the opening one."""

    head: str
    items: list["str | Group"] = field(default_factory=list)


@dataclass(frozen=True)
class Names:
    """What a module defines at its top level, and how often it names each thing from there or from outside."""

    defined: frozenset[str]
    used: Counter[str]

    @property
    def missing(self) -> set[str]:
        """Used, and defined nowhere in the module."""
        return set(self.used) - self.defined

    @property
    def idle(self) -> set[str]:
        """Defined or imported, and named nowhere else in the module."""
        return {name for name in self.defined if self.used[name] < 2}


def names(source: str) -> Names:
    """The names of one module."""
    items = tree(source)
    defined = frozenset(declared(items))
    used: Counter[str] = Counter()
    _walk(items, frozenset(), used, top=True)
    return Names(defined, used)


def tokens(source: str) -> Iterator[str]:
    """Names and marks in order; a literal is `0`, a place in a template is a pair of parentheses."""
    at, last, open_braces = 0, "", list[str]()
    while at < len(source):
        character = source[at]
        if character == "`" or (character == "}" and open_braces and open_braces[-1] == "${"):
            if character == "}":
                open_braces.pop()
                yield ")"
            piece = PIECE.match(source, at + 1)
            assert piece, "a template has no end"
            at, last = piece.end(), "0"
            if piece[1] == "${":
                open_braces.append("${")
                yield from ("0", "(")
                last = "("
            elif character == "`":
                yield "0"
            continue
        if (
            character == "/"
            and source[at : at + 2] not in ("//", "/*")
            and (last in KEYWORDS or last in "(,=:[!&|?{};>")
        ):
            found = REGEX.match(source, at)
            assert found, "a regular expression has no end"
            at, last = found.end(), "0"
            yield last
            continue
        token = TOKEN.match(source, at)
        assert token
        at = token.end()
        if token.lastgroup == "skip":
            continue
        last = "0" if token.lastgroup == "literal" else token[0]
        if last == "{":
            open_braces.append("{")
        elif last == "}":
            open_braces.pop()
        yield last


def tree(source: str) -> list[str | Group]:
    """The tokens with bracketed ones as groups."""
    stack = [Group("")]
    for token in tokens(source):
        if token in CLOSED_BY:
            stack.append(Group(token))
        elif token in ")]}":
            closed = stack.pop()
            assert CLOSED_BY.get(closed.head) == token, f"{closed.head} is closed by {token}"
            stack[-1].items.append(closed)
        else:
            stack[-1].items.append(token)
    assert len(stack) == 1, "a bracket is not closed"
    return stack[0].items


def declared(items: list[str | Group]) -> set[str]:
    """What declarations of this level bind, those in the head of a `for` included."""
    found: set[str] = set()
    for at, item in enumerate(items):
        after = items[at + 1] if at + 1 < len(items) else ""
        if item in ("const", "let"):
            found |= _declarators(items[at + 1 :])
        elif item == "import" and isinstance(after, Group):
            found |= bound(after)
        elif item in ("function", "class") and isinstance(after, str) and _is_name(after):
            found.add(after)
        elif item == "for" and isinstance(after, Group):
            found |= declared(after.items)
    return found


def _declarators(items: list[str | Group]) -> set[str]:
    found, expected = set[str](), True
    for item in items:
        if item in (";", "of", "in"):
            break
        if expected:
            found |= bound(item)
        expected = item == ","
    return found


def bound(pattern: str | Group) -> set[str]:
    """The names that a parameter list or a destructuring pattern binds."""
    if isinstance(pattern, str):
        return {pattern} if _is_name(pattern) else set()
    found, expected = set[str](), True
    for at, item in enumerate(pattern.items):
        if item == ",":
            expected = True
        elif expected and item != "...":
            key = pattern.head == "{" and at + 1 < len(pattern.items) and pattern.items[at + 1] == ":"
            found |= bound(pattern.items[at + 2]) if key else bound(item)
            expected = False
    return found


def _is_name(item: str | Group) -> bool:
    return isinstance(item, str) and item not in KEYWORDS and bool(re.match(r"[A-Za-z_$]", item))


def _walk(
    items: list[str | Group], scope: frozenset[str], used: Counter[str], *, top: bool = False, braces: bool = False
) -> None:
    """Count the names that no scope inside the module binds."""
    if not top:
        scope |= declared(items)
    at = 0
    while at < len(items):
        item = items[at]
        before, after = (items[at - 1] if at else ""), (items[at + 1] if at + 1 < len(items) else "")
        body = items[at + 2] if at + 2 < len(items) else ""
        call = isinstance(after, Group) and after.head == "(" and isinstance(body, Group) and body.head == "{"
        if after == "=>" and (isinstance(item, Group) or _is_name(item)):
            inner = scope | bound(item)
            if isinstance(item, Group):
                _walk(item.items, inner, used)
            end = at + 3
            if not (isinstance(body, Group) and body.head == "{"):
                end = next((i for i in range(at + 2, len(items)) if items[i] in (",", ";")), len(items))
            _walk(items[at + 2 : end], inner, used)
            at = end
        elif call and isinstance(item, str) and (_is_name(item) or item == "catch") and before != ".":
            # A function or a method with its parameters and its body, or a caught error with its block.
            assert isinstance(after, Group)
            if before == "function" and item not in scope:
                used[item] += 1
            inner = scope | bound(after)
            _walk(after.items, inner, used)
            _walk([body], inner, used)
            at += 3
        else:
            if isinstance(item, Group):
                _walk(item.items, scope, used, braces=item.head == "{")
            elif _is_name(item):
                key = braces and after == ":" and before in ("", ",")
                if before not in (".", "?.") and not key and item not in scope:
                    used[item] += 1
            at += 1
