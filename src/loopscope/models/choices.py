"""Options of a family, which are given as `model_args`: `hrm-text-1b` with `attention=causal,L_cycles=4`.

An option changes what the model computes, so it identifies a run and stands in the model's name. Which options a
family has is listed in `families.detect.FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopscope.errors import LoopscopeError, parse_number, shown


def require_known(given: Mapping[str, str], family: str, known: Mapping[str, str]) -> None:
    """Refuse a choice that the family does not have."""
    strange = next((name for name in given if name not in known), None)
    if strange is not None:
        there = f"choose {', '.join(known)}" if known else "leave it out"
        raise LoopscopeError(f"{family} has no option {shown(strange)}: {there}")


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
