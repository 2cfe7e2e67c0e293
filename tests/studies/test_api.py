"""Studies by name, from paths and from opened runs."""

import pytest

from loopscope.errors import LoopscopeError
from loopscope.studies import open_records, table


@pytest.fixture
def run(tmp_path, synthetic):
    return synthetic.write_run(tmp_path / "run", [synthetic.Task("sums", {4: synthetic.Paths.of([0.5], [-1.0])})])


def test_a_path_a_run_and_a_list_are_the_same(run, quick):
    by_path, by_run, by_list = (table("mechanism", source, quick) for source in (str(run.path), run, [run.path]))
    assert by_path.rows == by_run.rows == by_list.rows


@pytest.mark.parametrize("name", ["mechanism", "Mechanism", "failure_shares"])
def test_names_forgive_case_and_underscores(run, quick, name):
    assert table(name, run, quick).rows


def test_no_runs_is_the_users_mistake():
    with pytest.raises(LoopscopeError, match="at least one"):
        open_records([])


def test_a_folder_that_is_no_run_is_one_line(tmp_path):
    with pytest.raises(LoopscopeError, match="is not a run"):
        table("mechanism", tmp_path)
