"""Walking a model: what its functions ask for arrives, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch, select
from loopscope.models.protocol import Context, LoopedModule
from loopscope.models.walk import Walk, asks, read

IDS = Batch.from_rows([[1, 2, 3], [4, 5], [6, 0, 2]], source_rows=[7, 8, 9])


class Counting(LoopedModule):
    """Steps that know their depth and carry a sum along; a readout that adds what each row brought."""

    name = "counting"

    def __init__(self) -> None:
        super().__init__()
        self.hidden_size, self.vocabulary_size, self.trained_depth = 4, 7, 3
        torch.manual_seed(0)
        self.tokens = torch.nn.Embedding(7, 4)

    def embed(self, batch: Batch) -> Context:
        state = self.tokens(batch.input_ids)
        value = state.square().sum(1)  # [B, D]: no position
        return Context(state, batch, carry=torch.zeros_like(state), rowwise={"value": value})

    def step(self, state: Tensor, context: Context, *, depth: int, carry: Tensor) -> tuple[Tensor, Tensor]:
        return state + 10.0**-depth * carry, carry + state

    def readout(
        self,
        state: Tensor,
        positions: Tensor | None = None,
        dtype: torch.dtype | None = None,
        *,
        context: Context,
    ) -> Tensor:
        read = state + context.rowwise["value"][:, None]
        return torch.nn.functional.linear(select(read, positions).to(dtype), self.tokens.weight.to(dtype))


def test_depth_and_carry_arrive() -> None:
    model = Counting()
    states = model.states(IDS, [0, 1, 2, 3])
    h = states[0]
    assert torch.equal(states[1], h)  # the first carry is that of embed, 0
    assert torch.equal(states[2], h + 0.1 * h)
    assert torch.equal(states[3], states[2] + 0.01 * (h + h))


@pytest.mark.parametrize("index", [slice(1, 3), torch.tensor([2, 0])])
def test_a_context_is_cut_to_its_rows(index: slice | Tensor) -> None:
    model = Counting()
    walk = Walk.of(model, IDS).to(2)
    cut = walk.context.rows(index)
    rows = [[1, 2], [2, 0]][isinstance(index, Tensor)]
    assert cut.batch.input_ids.tolist() == [IDS.input_ids.tolist()[row] for row in rows]
    assert cut.batch.attention_mask.tolist() == [IDS.attention_mask.tolist()[row] for row in rows]
    assert list(cut.batch.source_rows or ()) == [7 + row for row in rows]
    positions = torch.tensor([[0, 1], [1, 0]])
    whole = walk.read(torch.tensor([[rows[0], 1], [rows[1], 0]]), torch.float64)
    assert torch.equal(read(model, walk.state[index], positions, torch.float64, cut), whole)
    with pytest.raises(LoopscopeError, match="asks for `context`: give that of the rows"):
        read(model, walk.state[index], positions)


class Wrong(Counting):
    returned: object = None

    def step(self, state: Tensor, context: Context, *, carry: Tensor) -> object:  # type: ignore[override]
        return self.returned


class Pair(Counting):
    def step(self, state: Tensor, context: Context) -> object:  # type: ignore[override]
        return state, state


def test_what_a_step_returns_is_checked() -> None:
    wrong = Wrong()
    with pytest.raises(LoopscopeError, match=r"asks for `carry`: it must return \(state, carry\)"):
        Walk.of(wrong, IDS).advance()
    wrong.returned = torch.zeros(1), None
    with pytest.raises(LoopscopeError, match=r"\[3, 3, 4\] as the one it got, not \[1\]"):
        Walk.of(wrong, IDS).advance()
    with pytest.raises(LoopscopeError, match="not a tuple; what else it carries along it asks for as `carry`"):
        Walk.of(Pair(), IDS).advance()


def test_names_of_parameters_ask() -> None:
    model = Counting()
    assert asks(model.step, "carry")
    assert asks(model.readout, "context")
    assert not asks(model.embed, "depth")
    assert asks(torch.nn.Linear(2, 2), "input")
    assert not asks(lambda *args, **kwargs: None, "depth")
    assert not asks(max, "depth")
