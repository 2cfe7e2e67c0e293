"""What a looped model must satisfy for its numbers to be right: eight checks on a batch of three short rows.

Each check computes one thing in two ways that must agree. Differences are relative to the largest number expected.

Shapes: B rows, S positions, D hidden width, V vocabulary, N selected positions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.generate import can_cache, generate
from loopscope.models.initial_state import InitialState
from loopscope.models.packing import Group, pack
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk, halves, read
from loopscope.readout.affine.sources import full_precision_products
from loopscope.readout.general.path import nonlinear_path_from_states
from loopscope.store.schema import Level
from loopscope.user_code import described

LENGTHS = (6, 4, 5)
"""Tokens of the rows."""
PROMPT = 2
"""How many of them are the prompt."""
DEEPEST = 2
"""Steps that are tried; no more than the model was trained for."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""How far two ways may differ, by the arithmetic of the states."""
COARSE = 5e-2
"""The same in 16 bits."""


class Verdict(NamedTuple):
    """The result of one check.

    Attributes:
        check: its name.
        passed: None where it does not apply.
        found: what was seen, in words.
        remedy: what to do where it did not pass.
    """

    check: str
    passed: bool | None
    found: str
    remedy: str = ""


class CheckError(Exception):
    """A check failed: what was seen, and the remedy."""


class NotNeededError(Exception):
    """A check does not apply to the model, with the reason."""


Ends = dict[str, Tensor]


class Trial:
    """A model and the batch: its rows, its states up to a small depth, the logits there."""

    def __init__(self, model: LoopedModel) -> None:
        self.model = model

    @cached_property
    def rows(self) -> list[list[int]]:
        """Token ids, as long as the model takes them."""
        limit = getattr(self.model, "max_positions", None) or max(LENGTHS)
        vocabulary = self.model.vocabulary_size
        stride = max(1, vocabulary // 7)
        return [[(k * stride + row + 1) % vocabulary for k in range(min(n, limit))] for row, n in enumerate(LENGTHS)]

    @cached_property
    def places(self) -> Tensor:
        """Every position with a next token, [N, 2], in another order and one of them twice."""
        found = [(row, place) for row, ids in enumerate(self.rows) for place in range(len(ids) - 1)]
        return torch.tensor([*found[::-1], *found[:1]], device=self.model.device)

    def batch(self, rows: list[list[int]] | None = None, first: int = 0) -> Batch:
        """Rows as a batch; `first` is the number of the first of them, which seeds a drawn state."""
        rows = self.rows if rows is None else rows
        made = Batch.from_rows(rows, source_rows=list(range(first, first + len(rows))))
        prompts = torch.tensor([min(PROMPT, len(row) - 1) for row in rows])
        return dataclasses.replace(made, prompt_lengths=prompts).to(self.model.device)

    def walk(self, batch: Batch, steps: int | None = None) -> Walk:
        """A batch at the last depth, or after `steps`."""
        depth = max(1, min(DEEPEST, self.model.trained_depth or DEEPEST))
        return Walk.of(self.model, batch).to(depth if steps is None else depth + steps)

    def ends(self, batch: Batch) -> Ends:
        """States and logits of a batch at the last depth."""
        walk = self.walk(batch)
        return {"states": walk.state, "logits": walk.read()}

    @cached_property
    def last(self) -> Walk:
        """The batch at the last depth."""
        return self.walk(self.batch())

    @cached_property
    def here(self) -> Ends:
        """States and logits there."""
        return {"states": self.last.state, "logits": self.last.read()}

    def readout(self, state: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Logits [N, V] of a state of the whole batch at `places`."""
        return read(self.model, state, self.places, dtype, self.last.context)

    def taken(self, ends: Ends, leave: int = 0) -> Ends:
        """Valid positions, row after row, without the last `leave` of each."""
        lengths = [len(ids) - leave for ids in self.rows]
        return {what: torch.cat([row[:n] for row, n in zip(ends[what], lengths, strict=True)]) for what in ends}

    def compare(self, how: str, found: Ends, expected: Ends, remedy: str, tolerance: float | None = None) -> None:
        """Refuse what differs by more than rounding.

        Raises:
            CheckError: it does.
        """
        allowed = TOLERANCE.get(self.model.dtype, COARSE) if tolerance is None else tolerance
        for what, one in found.items():
            other = expected[what].double()
            if one.shape != other.shape:
                raise CheckError(f"{what} {how}: {list(one.shape)}, not {list(other.shape)}", remedy)
            gap = float((one.double() - other).abs().max()) / max(float(other.abs().max()), 1e-12)
            if not gap <= allowed:
                raise CheckError(f"{what} {how} differ by {gap:.2g}", remedy)


def shapes(trial: Trial) -> str:
    """States [B, S, D] in the model's dtype, logits [B, S, V]."""
    model, (rows, width), logits = trial.model, trial.batch().input_ids.shape, trial.here["logits"]
    walk = trial.walk(trial.batch(), -trial.last.depth)
    for tensor, size in ((walk.state, model.hidden_size), (logits, model.vocabulary_size)):
        if list(tensor.shape) != [rows, width, size]:
            raise CheckError(
                f"embed gives a state {list(walk.state.shape)} and readout gives logits {list(logits.shape)}, which is"
                f" not [{rows}, {width}, hidden_size] and [{rows}, {width}, vocabulary_size]",
                "set hidden_size and vocabulary_size to what the model has",
            )
    if trial.last.state.dtype != model.dtype:
        told = f"dtype says {model.dtype} and the states are {trial.last.state.dtype}"
        raise CheckError(told, "let `dtype` say what embed and step compute in")
    return f"states {list(walk.state.shape)}, logits {list(logits.shape)}"


def finite_states(trial: Trial) -> str:
    """No infinity or NaN in the states of every depth, or in the logits."""
    walk = trial.walk(trial.batch(), -trial.last.depth)
    states = {f"the state at depth {t}": walk.to(t).state for t in range(trial.last.depth + 1)}
    for what, tensor in trial.taken({**states, "logits": trial.here["logits"]}).items():
        if not bool(torch.isfinite(tensor).all()):
            raise CheckError(f"{what}: not finite", "try dtype='float32', or look for a division by 0")
    return f"all finite to depth {trial.last.depth}"


def determinism(trial: Trial) -> str:
    """The same calls twice, steps out of order, another batch in between."""
    exact, remedy = 0.0 if trial.model.device.type == "cpu" else None, _REMEDIES["determinism"]
    trial.compare("of two walks over the same batch", trial.ends(trial.batch()), trial.here, remedy, exact)
    walk = trial.walk(trial.batch(), -1)
    once, again = (walk.changed(walk.state) for _ in range(2))
    first = {"states": once.advance()}
    trial.compare("of two steps from the same state", {"states": again.advance()}, first, remedy, exact)
    trial.ends(trial.batch([trial.rows[1][::-1]]))
    between = {"states": walk.advance(), "logits": walk.read()}
    trial.compare("of two readouts of the same state", {"logits": walk.read()}, between, remedy, exact)
    trial.compare("with another batch in between", between, trial.here, remedy, exact)
    return "calls may be repeated, in any order"


def depth(trial: Trial) -> str:
    """The step at two depths from one state: the same, where the model promises it."""
    walk = trial.walk(trial.batch(), -1)
    here, deeper = walk.changed(walk.state), walk.changed(walk.state)
    deeper.depth += 1
    one, other = here.advance(), deeper.advance()
    if getattr(trial.model, "alike", False):
        promise = "leave out `alike`: it promises the same step at every depth"
        exact = 0.0 if trial.model.device.type == "cpu" else None
        trial.compare("of steps at two depths", {"states": other}, {"states": one}, promise, exact)
    return "the step is the same at every depth" if torch.equal(one, other) else "the step depends on the depth"


def independence(trial: Trial) -> str:
    """Rows in another order, rows alone without padding, another last token, sequences that share a row."""
    remedy, size = _REMEDIES["independence"], trial.model.vocabulary_size
    index = torch.tensor([2, 0], device=trial.model.device)
    some = {what: tensor[index] for what, tensor in trial.here.items()}
    trial.compare("of some rows alone", trial.ends(trial.batch().rows(index)), some, remedy)
    part = read(trial.model, trial.last.state[index], None, None, trial.last.context.rows(index))
    trial.compare("of a part of the states", {"logits": part}, some, remedy)
    alone = [trial.ends(trial.batch([row], number)) for number, row in enumerate(trial.rows)]
    unpadded = {what: torch.cat([one[what][0] for one in alone]) for what in trial.here}
    remedy = "mask what batch.attention_mask marks as padding; attend causally; count positions from the left"
    trial.compare("with and without padding", unpadded, trial.taken(trial.here), remedy)
    changed = trial.ends(trial.batch([[*row[:-1], (row[-1] + size // 2 + 1) % size] for row in trial.rows]))
    remedy = "no position may see a later one: attend with is_causal=True or a mask"
    trial.compare("before a changed token", trial.taken(changed, 1), trial.taken(trial.here, 1), remedy)
    drawn = getattr(trial.model, "initial_state", None)
    by_length = isinstance(drawn, InitialState) and drawn.rule != "question"  # a pass refuses to share rows then
    if getattr(trial.model, "shares_context", False) and not by_length:
        _shared_rows(trial)
    return "rows depend on no other row, no padding and no later token"


def _shared_rows(trial: Trial) -> None:
    """Two sequences that begin alike in one row, against a row each."""
    begin = trial.rows[0][:3]
    packing = pack([Group([begin + trial.rows[1][:2], begin + trial.rows[2][:1]], 3)]).to(trial.model.device)
    together, apart = (trial.walk(batch).state for batch in (packing.batch, packing.sequences))
    mask = packing.sequences.attention_mask
    remedy = (
        "mask attention by visible_keys(batch), take positions from batch.position_ids, or leave out shares_context"
    )
    found = {"states": packing.separate(together)[mask]}
    trial.compare("of sequences that share a row", found, {"states": apart[mask]}, remedy)


def readout(trial: Trial) -> str:
    """Positions in any order; body and head, and the affine head, against the readout."""
    model, (row, place) = trial.model, trial.places.T
    remedy = "return logits [N, V] at `positions`: state[positions[:, 0], positions[:, 1]]; loopscope.wrap does it"
    expected = {"logits": trial.here["logits"][row, place]}
    trial.compare("at positions and of all", {"logits": trial.readout(trial.last.state)}, expected, remedy)
    state = trial.last.state.double()
    parts, head = halves(model, torch.float64, trial.last.context), model.head
    if parts is not None:
        expected = {"logits": trial.readout(state, torch.float64)}
        remedy = "let body_and_head and readout compute the same"
        trial.compare(
            "of body and head, and of readout,", {"logits": parts(state, trial.places)}, expected, remedy, 1e-9
        )
    if head is not None:
        bias = 0.0 if head.bias_V is None else head.bias_V.double()
        remedy = "leave `head` out (None) unless logits are exactly state @ weight.T + bias"
        for larger in (state, 8.0 * state):
            affine = {"logits": larger[row, place] @ head.weight_VD.double().T + bias}
            found = {"logits": trial.readout(larger, torch.float64)}
            trial.compare("of readout and of the head's affine map", found, affine, remedy, 1e-6)
    return "the same at positions, by halves and by the affine head, as far as the model has them"


def gradient(trial: Trial, *, float64: bool = True, derivatives: bool = True) -> str:
    """Whether autograd reaches the state from the logits; float64; the derivatives of φ computed in three ways."""
    if float64:
        _resolves_float64(trial)
    if trial.model.head is not None:
        return "closed form of an affine head"
    with torch.enable_grad():
        logits = trial.readout(trial.last.state.clone().requires_grad_(True))
    if not logits.requires_grad:
        remedy = "take torch.no_grad, torch.inference_mode, detach(), .data and NumPy out of the readout"
        raise CheckError("autograd finds no way from the logits to the state", remedy)
    return _derivatives(trial) if derivatives else "autograd follows the readout"


def _resolves_float64(trial: Trial) -> None:
    """Whether a float64 readout sees a difference that float32 cannot hold."""
    remedy = (
        "needed for level='full' and readout_dtype='float64' alone: keep the state's dtype in the readout, without"
        " .float() or .to(torch.float32), and cast weights with self.in_dtype(modules, dtype), as loopscope.wrap does"
    )
    state = trial.last.state.double()
    noise = torch.randn(state.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(state.device)
    step = noise * state.abs().mean()
    start, small, twice, large = (trial.readout(state + a * step, torch.float64) for a in (0.0, 1e-7, 2e-7, 1e-2))
    if start.dtype != torch.float64:
        raise CheckError(f"readout(dtype=torch.float64) gives {start.dtype}", remedy)
    if torch.equal(start, small) and torch.equal(start, large):
        raise NotNeededError("logits do not depend on the state")
    size = float((small - start).abs().max())
    if size == 0.0 or float((twice - 2.0 * small + start).abs().max()) > 1e-2 * size:
        raise CheckError("the readout rounds to fewer digits than float64 has", remedy)


def _derivatives(trial: Trial) -> str:
    """φ', φ'' and φ''' in Taylor mode, by nested forward mode and by differences of φ."""
    before, after = trial.walk(trial.batch(), -1).state, trial.last.state
    readout = halves(trial.model, torch.float64, trial.last.context) or (
        lambda state, positions: read(trial.model, state, positions, torch.float64, trial.last.context)
    )
    targets = trial.batch().input_ids[trial.places[:, 0], trial.places[:, 1] + 1]
    path, reference = (
        nonlinear_path_from_states(readout, before, after, targets, trial.places, dtype=torch.float64, impl=impl)
        for impl in ("auto", "nested")
    )
    h = 1e-4
    taylor, nested = (one.at_scales([0.5], 3)[:, 0, 0] for one in (path, reference))
    below, middle, above = reference.at_scales([0.5 - h, 0.5, 0.5 + h], 0)[0, 0]
    size = float(taylor[1:].abs().sum())
    gaps = {
        "nested forward mode": float((taylor - nested).abs().max()) / (1e-9 * size + 1e-12),
        "differences of φ": float(abs((above - below) / (2 * h) - taylor[1])) / (1e-4 * size + 1e-8),
        "second differences of φ": float(abs((above - 2 * middle + below) / h**2 - taylor[2])) / (1e-3 * size + 1e-5),
    }
    for name, gap in gaps.items():
        if not gap <= 1.0:
            remedy = "write it in plain, smooth torch operations; if it is, this is a fault of loopscope: report it"
            raise CheckError(f"A, Q or φ''' of the readout do not agree with {name}", remedy)
    return path.note or "A, Q and φ''' agree with nested forward mode and with differences"


def generation(trial: Trial) -> str:
    """The tokens that follow three prompts, with keys and values kept and without."""
    if not can_cache(trial.model):
        raise NotNeededError("the model keeps no keys and values")
    prompts = [row[: max(1, len(row) - 2)] for row in trial.rows]
    cached, plain = (
        generate(trial.model, prompts, max_new_tokens=2, depth=trial.last.depth, impl=impl).tokens
        for impl in ("cached", "reference")
    )
    if cached != plain:
        remedy = "let step and embed_cached with a cache compute what they compute without, or leave embed_cached out"
        raise CheckError(f"generated tokens {cached} with kept keys and values, {plain} without", remedy)
    return "the same tokens with kept keys and values and without"


Probe = Callable[[Trial], str]
BASIS: tuple[Probe, ...] = (shapes, finite_states, determinism)
"""What the others rest on: they compare calls, and would blame padding for what is random."""
ALL: tuple[Probe, ...] = (*BASIS, depth, independence, readout, gradient, generation)

_REMEDIES = {
    "shapes": "make embed(batch), step(state, context) and readout(state, positions, dtype) run on three short rows",
    "determinism": "keep nothing on self from call to call (ask for `depth` or `carry` in step, `context` in readout), "
    "draw nothing at random and change no tensor in place: state = state + x, not state += x",
    "independence": "let rows not mix; what readout needs of a row belongs in Context.rowwise",
    "readout": "give readout the parameters (state, positions=None, dtype=None); loopscope.wrap does it for you",
    "gradient": "write the readout in plain, smooth torch operations of its state, in the dtype that it is given",
}
"""Where the model's own code raises."""


def before_a_pass(level: Level, readout_dtype: str) -> tuple[Probe, ...]:
    """What a pass rests on; float64 only where it is used."""
    in_float64 = level is Level.FULL or readout_dtype == "float64"
    return (*BASIS, depth, independence, readout, functools.partial(gradient, float64=in_float64, derivatives=False))


def verdict_of(probe: Probe, trial: Trial) -> Verdict:
    """The verdict of a check; an exception of the model's own code is a failure."""
    name = getattr(probe, "func", probe).__name__.replace("_", " ")
    try:
        with full_precision_products():
            return Verdict(name, True, probe(trial))
    except NotNeededError as reason:
        return Verdict(name, None, str(reason))
    except CheckError as fault:
        return Verdict(name, False, *fault.args)
    except Exception as error:  # whatever the model's own code raises
        told = " ".join(str(error).split()) if isinstance(error, LoopscopeError) else described(error)
        return Verdict(name, False, told, _REMEDIES.get(name, "see the error"))
