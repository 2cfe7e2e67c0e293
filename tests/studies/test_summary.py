"""The summary of made-up runs whose counts follow from their slopes and curvatures by hand."""

import numpy as np
import pytest

from loopscope.studies.summary import summarise


@pytest.fixture
def run(tmp_path, synthetic):
    """Forty questions; 3→4 gains, 4→5 and 5→6 harm: half of 4→5 by too long a step, 5→6 by its direction."""
    half = np.tile([0.2, -0.2], 20)
    paths = {
        3: synthetic.Paths.of(np.full(40, 0.5), -0.1),
        4: synthetic.Paths.of(half, -1.0),
        5: synthetic.Paths.of(np.full(40, -0.3), -1.0),
    }
    return synthetic.write_run(tmp_path / "run", [synthetic.Task("sums", paths)])


def test_the_earliest_clear_decline_leads(run):
    found = summarise(run)
    assert [update.name for update in found.updates] == ["3→4", "4→5", "5→6"]
    leading = found.earliest_decline
    assert leading is found.updates[1]
    assert (leading.harmful, leading.failures) == (40, 20)
    assert leading.failure_share.value == 0.5
    # φ(α) = 0.2 α − α²: the quadratic step α = 0.1 gains 0.01, a quarter of the step loses 0.0125.
    assert (leading.quadratic_recovered, leading.quarter_recovered) == (20, 0)
    assert leading.full_gain.value == pytest.approx(-1.0)
    assert leading.sign_slope.value == 0.5
    assert leading.sign_quadratic.value == 1.0
    assert found.lines()[0] == (
        "loop 4→5 lowered the support of 40 of 40 references (mean change over all: -1.00000 nats a token);"
        " 20 of these 40 updates"
        f" (50.0% [{100 * leading.failure_share.interval.low:.1f}, {100 * leading.failure_share.interval.high:.1f}])"
        " pointed the right way and went too far, and the step that slope and curvature predict recovers 20 of them,"
        " a quarter of the step 0"
    )
    assert any(line.startswith("5→6: mean gain -1.30000, 40 of 40 harmful, 0 of them") for line in found.lines())


def test_without_a_clear_decline_it_says_so(tmp_path, synthetic):
    paths = {4: synthetic.Paths.of(np.tile([0.3, -0.3], 10), 0.0)}
    found = summarise(synthetic.write_run(tmp_path / "run", [synthetic.Task("sums", paths)]))
    assert found.earliest_decline is None
    assert found.lines()[0] == "no clear decline at the measured loops 4→5 to 4→5"
