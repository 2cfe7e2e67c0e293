from loopscope.studies.tables.geometry import progress_boundary


def test_hand_computed_row(hand, row_of):
    row = row_of(progress_boundary(hand))
    # Primary: 0, 1, 3, 7. Question 0 crosses at 0.5 exactly: φ(0.5) = 0, first negative 0.55, root 0.5 in [0.5, 0.55).
    # Question 3 ends at 0 and is never negative. Question 7 crosses near 0.69, in [0.65, 0.7); its root says 0.75.
    assert (row.primary, row.crossings, row.hits, row.unobserved) == (4, 2, 1, 2)
    assert row.hit_rate.value == 0.5


def test_lower_end_hits_and_upper_end_does_not(records, synthetic):
    # φ(0.5) = -A·ε makes 0.5 the first negative scale, so a root at 0.5 lies on the excluded upper end.
    on_lower = synthetic.Paths.of([0.5], [-1.0])
    on_upper = synthetic.Paths.of([0.5], [-1.0], [-1e-9])
    assert progress_boundary(records(synthetic.Task("sums", {4: on_lower}), name="l")).rows[0].hits == 1
    assert progress_boundary(records(synthetic.Task("sums", {4: on_upper}), name="u")).rows[0].hits == 0


def test_without_a_crossing_there_is_no_rate(awkward):
    row = progress_boundary(awkward["one harmless question"]).rows[0]
    assert (row.primary, row.crossings, row.hits, row.hit_rate.value, row.unobserved) == (1, 0, 0, None, 1)
