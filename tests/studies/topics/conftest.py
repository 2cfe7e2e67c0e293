"""Eight questions whose every table can be worked out by hand, and the awkward populations."""

import numpy as np
import pytest

from loopscope.studies.records import Records

#         0      1       2      3     4      5     6      7
SLOPE = [0.5, 0.25, -0.25, 0.5, 0.0, 0.25, -0.5, 0.75]
CURVE = [-1.0, -0.125, -0.25, -0.5, -0.25, 0.25, 0.75, -1.0]
CUBIC = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.125]
# gain  -0.5   0.125   -0.5   0.0  -0.25  0.5   0.25  -0.375
# class  fsf   prog    dir    neu   dir   prog  prog   fsf     (fsf: finite-step failure)
# α̂     0.25   1       0     0.5   0      1     1      0.375
# -A/Q   0.5   2       -     1     -      -     -      0.75


@pytest.fixture(scope="session")
def hand(tmp_path_factory, synthetic):
    """The eight questions as a solution task at 4→5, everything measured."""
    task = synthetic.Task("sums", {4: synthetic.Paths.of(SLOPE, CURVE, CUBIC)})
    return Records([synthetic.write_run(tmp_path_factory.mktemp("hand") / "hand", [task], paths=True)])


@pytest.fixture(scope="session")
def row_of():
    """The row of a result with a key, by default its only row."""

    def find(result, key=""):
        (found,) = (row for row in result.rows if row.key == key)
        return found

    return find


def _paths(synthetic, name):
    return {
        "no failures": synthetic.Paths.of([0.5, 0.25, 0.125], [-0.25, 0.0, 0.5]),
        "one question": synthetic.Paths.of([0.5], [-1.0]),
        "one harmless question": synthetic.Paths.of([0.5], [-0.25]),
        "all neutral": synthetic.Paths.of(np.zeros(4), np.zeros(4)),
        "nothing primary": synthetic.Paths.of([-0.5, -0.25], [0.25, 0.125]),
    }[name]


AWKWARD = ["no failures", "one question", "one harmless question", "all neutral", "nothing primary"]


@pytest.fixture(scope="session")
def awkward(tmp_path_factory, synthetic):
    """Runs whose populations are empty or tiny, by name; each has a solution task and an option task."""
    found = {}
    for name in AWKWARD:
        paths = _paths(synthetic, name)
        tokens = {
            **{"row": np.arange(len(paths)), "slope": paths.A, "quadratic": paths.Q, "gain": paths.value(1.0)},
            **{"quarter_gain": paths.value(0.25), "quadratic_gain": paths.value(0.5)},
            **dict.fromkeys(("exit_depth", "exit_depth_fp64"), np.full(len(paths), 8)),
        }
        tasks = [
            synthetic.Task("sums", {4: paths}, tokens={4: tokens}),
            synthetic.Task("choices", {4: paths}, kind="options", tokens={4: tokens}),
        ]
        folder = tmp_path_factory.mktemp("awkward") / name.replace(" ", "-")
        found[name] = Records([synthetic.write_run(folder, tasks, tokens=True, paths=True)])
    return found
