"""The paper's arithmetic from its own counts, and the complete list of what does not follow."""

from decimal import Decimal

import pytest
from paper_arithmetic import Rounded, Scope, checks, discrepancies, exactly, follows

from loopscope.studies.paper.numbers import tables

EXPECTED = {
    # Separate measurements of one condition; the paper says of each that it is its own.
    "tab:interventions-main, Ouro-1.4B gsm8k/test 4→5 quadratic, failures": Decimal(2),
    "app:exp-protocol, Huginn gsm8k/test 19→20, finite_step": Decimal(5),
    "tab:cloud-bound-comparison, Ouro-1.4B gsm8k/test 4→5, n": Decimal(1),
    "tab:integrated-bound-distribution, Ouro-1.4B math500/test 4→5 mean, regret_upper": Decimal("4.992e-8"),
    "sec:exp-contraction, quarter_lowest": Decimal("1.2"),
}


@pytest.mark.parametrize("check", [c for c in checks() if c.scope is not Scope.ACROSS], ids=lambda c: c.where)
def test_every_number_of_one_measurement_follows_from_its_neighbours(check):
    assert check.holds, str(check)


def test_what_does_not_follow_is_this_list_with_these_sizes():
    found = {check.where: check.discrepancy for check in discrepancies()}
    for where, size in found.items():
        print(f"{where}: off by {size}")
    assert found.keys() == EXPECTED.keys()
    assert found == pytest.approx(EXPECTED, rel=Decimal("1e-4"))


def test_only_separate_measurements_differ():
    assert {check.scope for check in discrepancies()} == {Scope.ACROSS}


def test_a_wrong_cell_would_be_found():
    off_by_a_hundredth = follows(Scope.TABLE, "share", "429/1066", "40.25", exactly(42900) / exactly(1066))
    assert not off_by_a_hundredth.holds
    assert off_by_a_hundredth.discrepancy == pytest.approx(Decimal("0.0061"), abs=Decimal("0.0001"))


def test_rounding_of_the_inputs_is_allowed_for_and_no_more():
    difference = Rounded.of("2.770") - Rounded.of("-0.839")
    assert follows(Scope.TABLE, "", "", "3.610", difference).holds
    assert not follows(Scope.TABLE, "", "", "3.612", difference).holds


def test_enough_is_checked():
    by_scope = {scope: sum(check.scope is scope for check in checks()) for scope in Scope}
    assert by_scope[Scope.TABLE] > 150
    assert by_scope[Scope.TEXT] > 50
    checked = {check.where.split(",")[0] for check in checks()}
    labels = {table.label for table in tables() if table.label.startswith("tab:")}
    assert labels - checked == set(), "tables without a single check"
