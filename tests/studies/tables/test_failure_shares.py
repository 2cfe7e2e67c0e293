from loopscope.studies.tables.failure_shares import failure_shares


def test_hand_computed_row(hand, row_of):
    row = row_of(failure_shares(hand))
    assert (row.share.value, row.beyond_margin, row.neutral) == (0.5, 2, 1)


def test_margin_requires_both_slope_and_loss(records, synthetic):
    # Slope within the margin; loss within the margin; both beyond it; not a failure at all.
    paths = synthetic.Paths.of([5e-5, 0.5, 2e-4, 0.5], [-0.5, -0.50005, -4e-4, 0.1])
    row = failure_shares(records(synthetic.Task("sums", {4: paths}))).rows[0]
    assert row.beyond_margin == 1
    assert row.share.value == 1.0


def test_zero_neutral_updates_are_counted_as_zero(awkward):
    assert failure_shares(awkward["no failures"]).rows[0].neutral == 0


def test_all_neutral_updates_are_counted(awkward):
    row = failure_shares(awkward["all neutral"]).rows[0]
    assert (row.neutral, row.share.value) == (4, None)
