"""A model of three functions: sizes found, dtypes and positions seen to, identity of what the functions use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.in_memory import model_identity
from loopscope.models.protocol import AffineHead, Context, LoopedModel
from loopscope.models.walk import Walk
from loopscope.models.wrapped import wrap
from loopscope.readout import nonlinear_path_from_states

WIDTH, VOCABULARY = 6, 11
IDS = Batch.from_rows([[1, 2, 3, 4], [5, 6]])
CAP = 7.0


def parts(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.ModuleDict(
        {
            "words": nn.Embedding(VOCABULARY, WIDTH),
            "turn": nn.Linear(WIDTH, WIDTH),
            "norm": nn.LayerNorm(WIDTH),
            "out": nn.Linear(WIDTH, VOCABULARY),
        }
    )


def capped(used: Any, scale: float = 1.0) -> Any:
    """A nonlinear readout that knows nothing of positions and dtypes."""
    return wrap(
        embed=used["words"],
        step=lambda h: h + torch.tanh(used["turn"](h)),
        readout=lambda h: CAP * torch.tanh(scale * used["out"](used["norm"](h)) / CAP),
        trained_depth=3,
    )


def test_sizes_and_states() -> None:
    used = parts()
    model = capped(used)
    assert isinstance(model, LoopedModel)
    assert (model.hidden_size, model.vocabulary_size, model.trained_depth) == (WIDTH, VOCABULARY, 3)
    assert (model.device.type, model.dtype) == ("cpu", torch.float32)
    assert model.head is None
    h = used["words"](IDS.input_ids)
    by_hand = h + torch.tanh(used["turn"](h))
    assert torch.equal(model.states(IDS, [1])[1], by_hand)
    assert {id(weight) for weight in model.parameters()} == {id(weight) for weight in used.parameters()}


def test_a_readout_that_ignores_dtype_is_run_in_it() -> None:
    used = parts()
    model = capped(used)
    walk = Walk.of(model, IDS).to(1)
    state = walk.state.detach()
    twin = parts().double()
    expected = CAP * torch.tanh(twin["out"](twin["norm"](state.double())) / CAP)
    found = walk.read(dtype=torch.float64)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-15, atol=1e-15)
    positions = torch.tensor([[1, 0], [0, 2], [1, 0]])
    assert torch.equal(walk.read(positions, torch.float64), found[[1, 0, 1], [0, 2, 0]])
    used.requires_grad_(False)
    first = walk.read(dtype=torch.float64)
    assert len(model._kept) == 4
    with torch.no_grad():
        used["out"].bias += 1.0
    assert (walk.read(dtype=torch.float64) - first).abs().max() > 0.1


@pytest.mark.parametrize("impl", ["taylor", "nested"])
def test_derivatives_go_through_it(impl: str) -> None:
    used = parts().requires_grad_(False)
    model = capped(used)
    states = model.states(IDS, [1, 2])
    context = model.embed(IDS)
    positions = torch.tensor([[0, 2], [0, 3]])

    def readout(state: Tensor, positions: Tensor) -> Tensor:
        return model.readout(state, positions, torch.float64, context=context)

    path = nonlinear_path_from_states(readout, states[1], states[2], [3, 4], positions, dtype=torch.float64, impl=impl)
    twin = parts().double()

    def utility(alpha: Tensor) -> Tensor:
        h = states[1].double() + alpha * (states[2].double() - states[1].double())
        logits = CAP * torch.tanh(twin["out"](twin["norm"](h)) / CAP)
        return torch.log_softmax(logits[0, [2, 3]], -1)[[0, 1], [3, 4]].mean()

    alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(utility(alpha), alpha, create_graph=True)
    (second,) = torch.autograd.grad(first, alpha)
    assert float(path.slope) == pytest.approx(first.item(), abs=1e-13)
    assert float(path.curvature) == pytest.approx(second.item(), abs=1e-13)


def test_what_functions_ask_for() -> None:
    used = parts()
    seen: dict[str, Any] = {}

    def embed(batch: Batch) -> Context:
        state = used["words"](batch.input_ids)
        return Context(state, batch, injection=state, carry=torch.ones(1), rowwise={"value": state.mean(1)})

    def step(h: Tensor, injection: Tensor, depth: int, carry: Tensor) -> tuple[Tensor, Tensor]:
        seen[f"carry {depth}"] = float(carry)
        return h + depth * injection, carry + 1

    def readout(h: Tensor, positions: Tensor | None, dtype: torch.dtype | None, context: Context) -> Tensor:
        seen["dtype"] = dtype
        h = h + context.rowwise["value"][:, None]
        h = h if positions is None else h[positions[:, 0], positions[:, 1]]
        return functional.linear(h.to(dtype), used["out"].weight.to(dtype))

    model = wrap(embed=embed, step=step, readout=readout)
    seen.clear()
    walk = Walk.of(model, IDS).to(3)
    assert seen == {"carry 0": 1.0, "carry 1": 2.0, "carry 2": 3.0}
    assert torch.equal(walk.state, walk.context.state * 4)
    assert walk.read(torch.tensor([[0, 1]]), torch.float64).shape == (1, VOCABULARY)
    assert seen["dtype"] is torch.float64


@pytest.mark.parametrize("returns_context", [False, True])
def test_injection_is_what_embed_gave(returns_context: bool) -> None:
    used = parts()

    def embed(batch: Batch) -> Any:
        state = used["words"](batch.input_ids)
        return Context(state, batch) if returns_context else state

    def step(h: Tensor, injection: Tensor, context: Context) -> Tensor:
        assert context.injection is injection
        return h + injection

    walk = Walk.of(wrap(embed=embed, step=step, readout=used["out"]), IDS).to(2)
    assert torch.equal(walk.state, used["words"](IDS.input_ids) * 3)


@pytest.mark.parametrize("kind", ["module", "head", "tensor"])
def test_an_affine_head_needs_no_readout(kind: str) -> None:
    used = parts()
    out = used["out"]
    head = {"module": out, "head": AffineHead(out.weight, out.bias), "tensor": out.weight}[kind]
    model = wrap(embed=used["words"], step=used["turn"], head=head)
    assert model.head is not None
    assert model.head.weight_VD is out.weight
    state = model.states(IDS, [2])[2]
    bias = 0.0 if kind == "tensor" else out.bias.double()
    expected = state.double() @ out.weight.double().T + bias
    torch.testing.assert_close(model.readout(state, None, torch.float64, context=None), expected)  # type: ignore[arg-type]


def test_identity_is_that_of_weights_and_code() -> None:
    base = model_identity(capped(parts()))
    assert model_identity(capped(parts())) == base
    assert model_identity(capped(parts(seed=1)))["tensors"] != base["tensors"]
    used = parts()
    other = wrap(embed=used["words"], step=lambda h: h + used["turn"](h), readout=used["out"], trained_depth=3)
    assert any(name.startswith("class") for name, found in model_identity(other).items() if found != base.get(name))
    words = torch.randn(VOCABULARY, 6)
    closed = [
        wrap(embed=lambda ids, w=w: w[ids], step=torch.tanh, head=AffineHead(w))
        for w in (words, words.clone(), words + 1)
    ]
    assert model_identity(closed[0])["tensors"] == model_identity(closed[1])["tensors"]
    assert model_identity(closed[0])["tensors"] != model_identity(closed[2])["tensors"]


def flat(h: Tensor) -> Tensor:
    return h.sum(-1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"readout": None}, "needs readout=, from a state to logits, or head="),
        ({"step": 3}, "step= is a int; give a function"),
        (
            {"embed": lambda ids: ids.float()},
            r"embed= gave torch.float32 \[2, 3\] .* a state for every token",
        ),
        ({"embed": lambda ids: None}, "must return a state or a Context, not a NoneType"),
        ({"step": lambda h, speed: h}, "step= for a state .* missing 1 required .* 'speed'"),
        ({"step": flat}, r"step must return the next state, \[2, 3, 6\]"),
        ({"embed": lambda ids: ids[..., None]}, "embed= gave torch.int64"),
        ({"step": lambda h: None}, "step must return the next state"),
        ({"step": lambda h: h.double()}, "step= gave torch.float64 for a state of torch.float32"),
        ({"readout": lambda h: None}, "readout= gave NoneType"),
        ({"trained_depth": "x"}, "trained_depth='x' is not a whole number"),
        ({"trained_depth": -1}, "trained_depth=-1 is too small"),
        ({"name": 5}, "name= takes a name"),
        ({"name": ""}, "name='' is empty"),
        ({"readout": flat}, r"readout= gave torch.float32 \[2, 3\] .* it must give logits"),
    ],
)
def test_a_mistake_is_one_line(change: dict[str, Any], message: str) -> None:
    used = parts()
    given: dict[str, Callable[..., Any]] = {"embed": used["words"], "step": used["turn"], "readout": used["out"]}
    with pytest.raises(LoopscopeError, match=message):
        wrap(**{**given, **change})
