"""Numbers and ranges as users write them: `1-4,8`. Blanks may stand around a number, never inside one."""

from __future__ import annotations

from loopscope._errors import LoopscopeError, setting, shown

_MOST_DIGITS = 18


def parse_number(text: str) -> int | None:
    """A whole number of ASCII digits; None for anything else, also for one that no 64-bit integer holds.

    >>> parse_number(" 12 "), parse_number("1 2"), parse_number("-1"), parse_number("9" * 19)
    (12, None, None, None)
    """
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def parse_ranges(text: str, name: str, *, largest: int, most: int) -> tuple[int, ...]:
    """Numbers up to `largest` and ranges of them, both ends included, as they are written; at most `most` in all.

    >>> parse_ranges("1-4, 8", "depths", largest=100, most=100)
    (1, 2, 3, 4, 8)
    """
    ranges = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        start = parse_number(first)
        stop = parse_number(last) if dash else start
        if start is None or stop is None:
            if all(end.isascii() and end.strip().isdecimal() for end in ((first, last) if dash else (first,))):
                raise LoopscopeError(f"{setting(name, text)}: {shown(part)} is too large: {largest:,} is the largest")
            raise LoopscopeError(
                f"{setting(name, text)}: {shown(part)} is not a number or a range of numbers: write e.g. 1-8,12"
            )
        if stop < start:
            raise LoopscopeError(f"{setting(name, text)}: {shown(part)} runs backwards: write {stop}-{start}")
        if stop > largest:
            raise LoopscopeError(f"{setting(name, text)}: {stop} is too large: {largest:,} is the largest")
        ranges.append(range(start, stop + 1))
    if sum(map(len, ranges)) > most:
        raise LoopscopeError(f"{setting(name, text)} names more than {most:,} numbers: name fewer, each once")
    return tuple(number for numbers in ranges for number in numbers)
