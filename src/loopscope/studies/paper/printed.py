"""Decimals exactly as the paper prints them, and the TOML files that hold them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from decimal import Decimal
from importlib.resources import files
from typing import Any

FOLDER = files("loopscope.studies.paper")


def toml(*parts: str) -> dict[str, Any]:
    """One of the files beside this module."""
    return tomllib.loads(FOLDER.joinpath(*parts).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Printed:
    """A decimal exactly as the paper prints it."""

    text: str

    @property
    def decimal(self) -> Decimal:
        """The printed number, without rounding."""
        return Decimal(self.text)

    @property
    def half_unit(self) -> Decimal:
        """Half a unit of the last printed place: how far the unrounded number can lie from it.

        >>> Printed("49.18").half_unit, Printed("1.747e-5").half_unit, Printed("179").half_unit
        (Decimal('0.005'), Decimal('5E-9'), Decimal('0.5'))
        """
        exponent = self.decimal.as_tuple().exponent
        if not isinstance(exponent, int):
            raise ValueError(f"{self.text} is not a number")
        return Decimal(5).scaleb(exponent - 1)

    def agrees(self, value: float | Decimal) -> bool:
        """Whether `value`, in the printed unit, rounds to this (either way at an exact half).

        >>> Printed("40.24").agrees(429 / 1066 * 100), Printed("40.24").agrees(40.2451)
        (True, False)
        """
        # Binary arithmetic on the caller's side may be off by a few units in its sixteenth digit.
        slack = Decimal(1).scaleb(-14) * max(abs(self.decimal), Decimal(1))
        return abs(Decimal(value) - self.decimal) <= self.half_unit + slack
