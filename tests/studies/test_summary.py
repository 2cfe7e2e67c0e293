"""What is said of made-up runs whose counts follow from their slopes and curvatures by hand."""

import numpy as np
import pytest

from loopscope.studies.summary import Finding, first_finding, run_lines


def run_of(tmp_path, synthetic, **paths):
    """A run of one task with these updates."""
    task = synthetic.Task("sums", {int(name.removeprefix("t")): each for name, each in paths.items()})
    return synthetic.write_run(tmp_path / "run", [task])


def test_the_earliest_clear_decline_leads(tmp_path, synthetic):
    """Forty questions; 3→4 gains, 4→5 and 5→6 harm: half of 4→5 by too long a step, 5→6 by its direction."""
    paths = synthetic.Paths.of
    run = run_of(
        tmp_path,
        synthetic,
        t3=paths(np.full(40, 0.5), -0.1),
        t4=paths(np.tile([0.2, -0.2], 20), -1.0),
        t5=paths(np.full(40, -0.3), -1.0),
    )
    # φ(α) = 0.2 α − α²: the quadratic step α = 0.1 gains 0.01.
    assert first_finding(run) == Finding("4→5", "solution", questions=40, harmful=40, failures=20, predicted=20)
    _, heads, *lines, legend = run_lines(run)
    assert heads.split() == ["task", "update", "n", "mean", "gain", "harmful", "finite-step", "recovered"]
    assert [line.split()[-5:] for line in lines] == [
        ["0", "0", "0", "of", "0"],
        ["40", "20", "20", "of", "20"],
        ["40", "0", "0", "of", "0"],
    ]
    assert "4→5     40  -1.00000 [" in lines[1]
    assert "predicted step length" in legend


def finding(**changes):
    counts = {"update": "4→5", "kind": "solution", "questions": 64, "harmful": 58, "failures": 26, "predicted": 25}
    return Finding(**counts | changes)


@pytest.mark.parametrize(
    ("changes", "title", "said"),
    [
        ({}, "m: loop 4→5 goes too far on 26 of 64 questions", "26 of these updates (44.8%) are finite-step failures"),
        ({"failures": 0}, "m: loop 4→5 goes the wrong way on 58 of 64 questions", "none of these updates starts"),
        ({"harmful": 0, "failures": 0}, "m: loop 4→5 harms no question", "makes no reference of the 64 questions less"),
        ({"kind": "options"}, "m: loop 4→5 goes too far", "the right option less likely for 58 of 64 questions"),
        ({"predicted": 3}, "m: loop 4→5 goes too far", "recovers 3 of them."),
        ({"predicted": None}, "m: loop 4→5 goes too far", "The other 32 start in the wrong direction."),
    ],
)
def test_a_finding_in_words(changes, title, said):
    found = finding(**changes)
    assert found.title("m").startswith(title)
    assert said in found.sentence()
    assert found.sentence("Loop 4→5").startswith("Loop 4→5 makes ")
    assert found.meaning().count(". ") == 1
