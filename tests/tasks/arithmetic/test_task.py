"""The two tasks as the rest of loopscope sees them."""

import pytest

from loopscope.errors import LoopscopeError
from loopscope.tasks.arithmetic.task import Arithmetic, ArithmeticChoice, problem


class Bytes:
    """One token a byte."""

    def encode(self, text):
        return list(text.encode())


def test_solution_positions_cover_the_solution_alone():
    made = problem("test", 0)
    (example,) = Arithmetic().encode(Bytes(), "test", limit=1)
    (sequence,) = example.sequences
    assert bytes(sequence.targets).decode() == made.solution
    assert bytes(sequence.token_ids[: sequence.positions[0] + 1]).decode() == f"Problem: {made.question}\nSolution:\n"
    assert example.metadata["difficulty"] == made.operations
    assert example.answer is None


def test_options_share_their_context():
    (example,) = ArithmeticChoice().encode(Bytes(), "test", limit=1)
    assert len(example.sequences) == 4
    heads = {sequence.token_ids[: sequence.positions[0] + 1] for sequence in example.sequences}
    assert len(heads) == 1
    assert bytes(heads.pop()).decode().endswith("\nAnswer:")


def test_both_tasks_ask_the_same_problem():
    worked = next(Arithmetic().rows("test", ids=["test-9"]))
    choice = next(ArithmeticChoice().rows("test", ids=["test-9"]))
    story = problem("test", 9).story
    assert story in worked.context
    assert story in choice.context
    assert worked.source_row == choice.source_row == 9


def test_ids_choose_rows():
    assert [row.id for row in Arithmetic().rows("test", ids=["test-4", "test-2"])] == ["test-4", "test-2"]


@pytest.mark.parametrize("bad", ["train-3", "test-x", "3"])
def test_unknown_id_is_named(bad):
    with pytest.raises(LoopscopeError, match=f"no row '{bad}'"):
        next(Arithmetic().rows("test", ids=[bad]))


def test_unknown_split_is_named():
    with pytest.raises(LoopscopeError, match="no split 'dev': choose one of train, validation, test"):
        next(Arithmetic().rows("dev"))
