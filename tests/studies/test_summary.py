"""What is said of made-up runs whose counts follow from their slopes and curvatures by hand."""

import numpy as np

from loopscope.studies.runs import Finding, first_finding, run_lines


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
