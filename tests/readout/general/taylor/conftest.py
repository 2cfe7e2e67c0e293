"""How a rule of Taylor mode is checked: against nested forward mode, to the fourth order, in float64."""

from __future__ import annotations

import pytest
import torch

from loopscope.readout.general.nested import nested_derivatives
from loopscope.readout.general.taylor import Series, core

ORDER = 4


@pytest.fixture
def line():
    """A base and a direction, [2, 3, 4] each."""
    g = torch.Generator().manual_seed(11)
    return [torch.randn(2, 3, 4, generator=g, dtype=torch.float64) for _ in range(2)]


@pytest.fixture
def agrees_with_nesting(line):
    """Assert that a function of a series has the derivatives that nested forward mode finds."""

    def check(function):
        series = function(Series.line(*line, ORDER))
        expected = nested_derivatives(function, *line, ORDER)
        assert series.shape == expected[0].shape
        for k, derivative in enumerate(expected):
            scale = derivative.abs().max().clamp(min=1.0)
            assert float((series.derivative(k) - derivative).abs().max() / scale) < 1e-11, k

    return check


@pytest.fixture
def rules_without_a_case(monkeypatch, line):
    """The rules of one file that running these functions never reaches."""

    def find(file, functions, leave_out=frozenset()):
        hit = set()

        def recording(name, rule):
            def call(*args, **kwargs):
                hit.add(name)
                return rule(*args, **kwargs)

            return call

        rules = dict(core._HANDLERS)
        monkeypatch.setattr(core, "_HANDLERS", {name: recording(name, rule) for name, rule in rules.items()})
        for function in functions:
            function(Series.line(*line, 2))
        own = {name for name, rule in rules.items() if rule.__module__.endswith(f".{file}")}
        return {name for name in own if not {name, rules[name].__name__} & set(leave_out)} - hit

    return find
