"""Names as they may be printed: models, tasks and folders carry whatever their owners wrote."""

import unicodedata

LONGEST_TITLE = 60
"""Characters of a name in tables; JSON and CSV hold it in full."""


def printable(text: str) -> str:
    r"""Text on one line, with control and formatting characters (escapes, direction marks, surrogates) spelled out.

    >>> printable("a\tb\n c\x1b[31m \u202ed")
    'a b c\\u001b[31m \\u202ed'
    """
    return "".join(_visible(character) for character in " ".join(text.split()))


def _visible(character: str) -> str:
    return spelled(character) if unicodedata.category(character).startswith("C") else character


def spelled(character: str) -> str:
    r"""A character that cannot be shown, by its number.

    >>> spelled("模")
    '\\u6a21'
    """
    return f"\\u{ord(character):04x}"


def shortened(text: str, longest: int = LONGEST_TITLE) -> str:
    """Text with its middle left out where it is too long; both ends of a name tell it apart.

    >>> shortened("abcdefghij", 7)
    'abcd…ij'
    """
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 3
    return f"{text[: longest - 1 - tail]}…{text[len(text) - tail :]}"


def title(name: str) -> str:
    """A name as tables print it."""
    return shortened(printable(name))
