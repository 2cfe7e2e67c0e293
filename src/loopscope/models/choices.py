"""What a specification chooses of a model that has choices: `hrm-text-1b:attention=causal,L_cycles=4`.

A choice changes what the model computes, so it stands in the specification, which identifies a run, and in the model's
name. Which choices a family has is listed in `families.detect.FAMILIES`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from loopscope.errors import LoopscopeError, parse_number, shown

_ONE = r"[A-Za-z_]\w*=[^,=:\s]+"
_CHOSEN = re.compile(rf"(.+):({_ONE}(?:,{_ONE})*)", re.ASCII)


def split_choices(spec: str) -> tuple[str, dict[str, str]]:
    """A specification without its choices, and them.

    >>> split_choices("hrm-text-1b:attention=causal,L_cycles=4"), split_choices("loop:org/name:10-20")
    (('hrm-text-1b', {'attention': 'causal', 'L_cycles': '4'}), ('loop:org/name:10-20', {}))
    """
    found = _CHOSEN.fullmatch(spec)
    if found is None:
        return spec, {}
    chosen: dict[str, str] = {}
    for entry in found[2].split(","):
        name, _, value = entry.partition("=")
        if name in chosen:
            raise LoopscopeError(f"{shown(spec)} gives {name} twice: give it once")
        chosen[name] = value
    return found[1], chosen


def is_choice(text: str) -> bool:
    """Whether a text has the form of one choice, `NAME=VALUE`."""
    return re.fullmatch(_ONE, text, re.ASCII) is not None


def require_known(given: Mapping[str, str], family: str, known: Mapping[str, str]) -> None:
    """Refuse a choice that the family does not have."""
    strange = next((name for name in given if name not in known), None)
    if strange is not None:
        there = f"choose {', '.join(known)}" if known else "leave it out"
        raise LoopscopeError(f"{family} has no choice {shown(strange)}: {there}")


def chosen_word(given: Mapping[str, str], name: str, words: Sequence[str], default: str) -> str:
    """One of a few words."""
    word = given.get(name, default)
    if word not in words:
        raise LoopscopeError(f"{name}={word} is not known: choose {' or '.join(words)}")
    return word


def chosen_number(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    """A whole number from 1 to `most`."""
    if name not in given:
        return default
    number = parse_number(given[name])
    if number is None or not 1 <= number <= most:
        raise LoopscopeError(f"{name}={given[name]} is not a whole number from 1 to {most:,}")
    return number
