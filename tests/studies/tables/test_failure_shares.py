from loopscope.studies.tables.mechanism import failure_shares


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


def test_outcomes_that_another_layout_could_change_are_counted_and_named(records, synthetic):
    # Gain within 2e-3 of zero; harmful with such a slope; far from zero; progressing with such a slope.
    paths = synthetic.Paths.of([0.5, -1e-3, 0.5, 1e-3], [-0.501, -0.499, -1.0, 0.499])
    task = synthetic.Task("sums", {4: paths})
    for name, changes, expected in (("cpu", {}, 0), ("gpu", {"device": "NVIDIA H200"}, 2)):
        result = failure_shares(records(task, name=name, **changes))
        assert result.rows[0].layout_sensitive == expected
        told = [note for note in result.notes if note.startswith("layout-sensitive outcomes")]
        assert [note.endswith("2 of 4") and "0.002 nats" in note for note in told] == [True] * bool(expected)


def test_options_have_a_margin_of_their_own(records, synthetic):
    paths = synthetic.Paths.of([0.5, 0.5], [-0.51, -0.52])
    found = records(synthetic.Task("choices", {4: paths}, kind="options"), device="NVIDIA H200")
    assert failure_shares(found).rows[0].layout_sensitive == 1
