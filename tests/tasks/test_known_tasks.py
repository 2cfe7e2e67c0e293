import pytest

from loopscope.errors import LoopscopeError
from loopscope.tasks import get_task


@pytest.mark.parametrize(("name", "kind"), [("arithmetic", "solution"), ("arithmetic-mc", "options")])
def test_generated_task_by_name(name, kind):
    task = get_task(name)
    assert (task.name, task.kind) == (name, kind)


def test_unknown_task_suggests_the_nearest():
    with pytest.raises(LoopscopeError, match=r"'arithmetik'.*arithmetic"):
        get_task("arithmetik")
