"""`check`: whether a looped model holds what its numbers rest on: eight checks on a batch of three short rows.

Each check computes one thing in two ways that must agree. Differences are relative to the largest number expected.
`measure` runs the quick part before any model that is not loopscope's own and refuses what would give wrong numbers.

Shapes: B rows, S positions, D hidden width, V vocabulary, N selected positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError, described
from loopscope.models.batch import Batch, Group, pack
from loopscope.models.families.decoder import InitialState
from loopscope.models.generate import can_cache, generate
from loopscope.models.in_memory import ModelSpec, borrowed
from loopscope.models.protocol import LoopedModel
from loopscope.models.walk import Walk, halves, read
from loopscope.readout.blocks import full_precision_products
from loopscope.readout.general.path import nonlinear_path_from_states
from loopscope.store.schema import Level

_LENGTHS, _PROMPT = (6, 4, 5), 2
"""Tokens of the rows, and how many of them are the prompt."""
_DEEPEST = 2
"""Steps that are tried; no more than the model was trained for."""
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""How far two ways may differ, by the arithmetic of the states."""
_COARSE = 5e-2
"""The same in 16 bits."""
_WORDS = {True: "passed", False: "failed", None: "not needed"}


class Verdict(NamedTuple):
    """The result of one check.

    Attributes:
        check: its name.
        passed: None where it does not apply, or takes for granted what failed.
        found: what was seen, in words.
        remedy: what to do where it did not pass.
    """

    check: str
    passed: bool | None
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class ModelCheck:
    """What was found of a model: its name, and one verdict for each check, in order."""

    model: str
    verdicts: tuple[Verdict, ...]

    @property
    def failed(self) -> list[Verdict]:
        """Those that failed."""
        return [verdict for verdict in self.verdicts if verdict.passed is False]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def require(self) -> None:
        """Refuse a model that failed a check."""
        for verdict in self.failed:
            raise LoopscopeError(
                f"{self.model} fails the check {verdict.check!r}: {verdict.found}; {verdict.remedy} "
                f"(loopscope.check(model) shows all checks)"
            )

    def __str__(self) -> str:
        lines = [f"{self.model}: {len(self.failed) or 'none'} of {len(self.verdicts)} checks failed"]
        for check, passed, found, remedy in self.verdicts:
            lines.append(f"  {check:<16} {_WORDS[passed]:<11} {found}")
            if passed is False:
                lines.append(f"  {'':<16} {'remedy:':<11} {remedy}")
        return "\n".join(lines)

    __repr__ = __str__


def check(
    model: ModelSpec,
    *,
    model_args: Mapping[str, Any] | str | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
) -> ModelCheck:
    """Try a model on a small batch, in every way that measuring relies on; nothing is stored.

    Eight checks: shapes, finite states, determinism, whether the step depends on its depth, independence of padding and
    of other rows, readout against positions and head, the readout's gradient (in Taylor mode, by nested forward mode
    and by differences), and generation with kept keys and values.

    Args:
        model: as in `measure`.
        model_args: as in `measure`.
        device: as in `measure`.
        dtype: as in `measure`.

    Raises:
        LoopscopeError: the model cannot be loaded. What a check finds is in the result.
    """
    from loopscope.measuring.config import MeasureConfig
    from loopscope.measuring.worker import load_configured_model

    config = MeasureConfig(model=model, tasks=(), model_args=model_args, device=device, dtype=dtype)
    with borrowed(config.model):
        return checked(load_configured_model(config))


@torch.no_grad()
def checked(model: LoopedModel, probes: tuple[Probe, ...] | None = None) -> ModelCheck:
    """The verdicts on a loaded model; the others only where those that they rest on pass."""
    trial, verdicts = _Trial(model), list[Verdict]()
    for probe in ALL if probes is None else probes:
        rests_on = verdicts[: len(_BASIS)]
        verdicts.append(_verdict_of(probe, trial, tried=all(found.passed for found in rests_on)))
    return ModelCheck(model.name, tuple(verdicts))


def before_a_pass(level: Level, readout_dtype: str) -> tuple[Probe, ...]:
    """What a pass rests on; float64 only where it is used."""
    in_float64 = level is Level.FULL or readout_dtype == "float64"
    return (*_BASIS, depth, independence, readout, partial(gradient, float64=in_float64, derivatives=False))


def _verdict_of(probe: Probe, trial: _Trial, *, tried: bool) -> Verdict:
    """The verdict of a check; an exception of the model's own code is a failure."""
    name = getattr(probe, "func", probe).__name__.replace("_", " ")
    if not tried:
        return Verdict(name, None, "not tried: it rests on what failed")
    try:
        with full_precision_products():
            return Verdict(name, True, probe(trial))
    except _NotNeededError as reason:
        return Verdict(name, None, str(reason))
    except _CheckError as fault:
        return Verdict(name, False, *fault.args)
    except Exception as error:  # whatever the model's own code raises
        raised = " ".join(str(error).split()) if isinstance(error, LoopscopeError) else described(error)
        return Verdict(name, False, raised, _REMEDIES.get(name, "see the error"))


class _CheckError(Exception):
    """A check failed: what was seen, and the remedy."""


class _NotNeededError(Exception):
    """A check does not apply to the model, with the reason."""


_Ends = dict[str, Tensor]


def _ends(walk: Walk) -> _Ends:
    return {"states": walk.state, "logits": walk.read()}


class _Trial:
    """A model and the batch: its rows, its states up to a small depth, the logits there."""

    def __init__(self, model: LoopedModel) -> None:
        self.model = model
        limit, size = getattr(model, "max_positions", None) or max(_LENGTHS), model.vocabulary_size
        stride = max(1, size // 7)
        lengths = [min(length, limit) for length in _LENGTHS]
        self.rows = [[(k * stride + row + 1) % size for k in range(n)] for row, n in enumerate(lengths)]
        # Every position with a next token, in another order and one of them twice.
        found = [(row, place) for row, n in enumerate(lengths) for place in range(n - 1)]
        self.places_N2 = torch.tensor([*found[::-1], *found[:1]], device=model.device)
        self.exact = 0.0 if model.device.type == "cpu" else None

    def batch(self, rows: list[list[int]] | None = None, first: int = 0) -> Batch:
        """Rows as a batch; `first` is the number of the first of them, which seeds a drawn state."""
        rows = self.rows if rows is None else rows
        made = Batch.from_rows(rows, source_rows=list(range(first, first + len(rows))))
        prompts = torch.tensor([min(_PROMPT, len(row) - 1) for row in rows])
        return dataclasses.replace(made, prompt_lengths=prompts).to(self.model.device)

    def walk(self, batch: Batch | None = None, back: int = 0) -> Walk:
        """A batch at the last depth, or some steps before."""
        last = max(1, min(_DEEPEST, self.model.trained_depth or _DEEPEST))
        return Walk.of(self.model, self.batch() if batch is None else batch).to(last - back)

    def ends(self, batch: Batch) -> _Ends:
        """States and logits of a batch at the last depth."""
        return _ends(self.walk(batch))

    @cached_property
    def last(self) -> Walk:
        """The batch at the last depth."""
        return self.walk()

    @cached_property
    def here(self) -> _Ends:
        """States and logits there."""
        return _ends(self.last)

    def readout(self, state: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Logits [N, V] of a state of the whole batch at `places_N2`."""
        return read(self.model, state, self.places_N2, dtype, self.last.context)

    def taken(self, ends: _Ends, leave: int = 0) -> _Ends:
        """Valid positions, row after row, without the last `leave` of each."""
        lengths = [len(ids) - leave for ids in self.rows]
        return {what: torch.cat([row[:n] for row, n in zip(ends[what], lengths, strict=True)]) for what in ends}

    def compare(self, how: str, found: _Ends, expected: _Ends, remedy: str, tolerance: float | None = None) -> None:
        """Refuse what differs by more than rounding."""
        allowed = _TOLERANCE.get(self.model.dtype, _COARSE) if tolerance is None else tolerance
        for what, one in found.items():
            other = expected[what].double()
            if one.shape != other.shape:
                raise _CheckError(f"{what} {how}: {list(one.shape)}, not {list(other.shape)}", remedy)
            gap = float((one.double() - other).abs().max()) / max(float(other.abs().max()), 1e-12)
            if not gap <= allowed:
                raise _CheckError(f"{what} {how} differ by {gap:.2g}", remedy)


def shapes(trial: _Trial) -> str:
    """States [B, S, D] in the model's dtype, logits [B, S, V]."""
    model, size, last = trial.model, list(trial.batch().input_ids.shape), trial.last
    state, logits = list(trial.walk(back=last.depth).state.shape), list(trial.here["logits"].shape)
    if (state, logits) != ([*size, model.hidden_size], [*size, model.vocabulary_size]):
        raise _CheckError(
            f"embed gives a state {state} and readout gives logits {logits}, which is not [{size[0]}, {size[1]},"
            f" hidden_size] and [{size[0]}, {size[1]}, vocabulary_size]",
            "set hidden_size and vocabulary_size to what the model has",
        )
    if last.state.dtype != model.dtype:
        seen = f"dtype says {model.dtype} and the states are {last.state.dtype}"
        raise _CheckError(seen, "let `dtype` say what embed and step compute in")
    return f"states {state}, logits {logits}"


def finite_states(trial: _Trial) -> str:
    """No infinity or NaN in the states of every depth, or in the logits."""
    walk = trial.walk(back=trial.last.depth)
    states = {f"the state at depth {t}": walk.to(t).state for t in range(trial.last.depth + 1)}
    for what, tensor in trial.taken({**states, "logits": trial.here["logits"]}).items():
        if not bool(torch.isfinite(tensor).all()):
            raise _CheckError(f"{what}: not finite", "try dtype='float32', or look for a division by 0")
    return f"all finite to depth {trial.last.depth}"


def determinism(trial: _Trial) -> str:
    """The same calls twice, steps out of order, another batch in between."""
    same = partial(trial.compare, remedy=_REMEDIES["determinism"], tolerance=trial.exact)
    same("of two walks over the same batch", trial.ends(trial.batch()), trial.here)
    walk = trial.walk(back=1)
    once, again = (walk.changed(walk.state) for _ in range(2))
    first = {"states": once.advance()}
    same("of two steps from the same state", {"states": again.advance()}, first)
    trial.ends(trial.batch([trial.rows[1][::-1]]))
    walk.advance()
    between = _ends(walk)
    same("of two readouts of the same state", {"logits": walk.read()}, between)
    same("with another batch in between", between, trial.here)
    return "calls may be repeated, in any order"


def depth(trial: _Trial) -> str:
    """The step at two depths from one state: the same, where the model promises it."""
    walk = trial.walk(back=1)
    here, deeper = walk.changed(walk.state), walk.changed(walk.state)
    deeper.depth += 1
    one, other = here.advance(), deeper.advance()
    if getattr(trial.model, "alike", False):
        promise = "leave out `alike`: it promises the same step at every depth"
        trial.compare("of steps at two depths", {"states": other}, {"states": one}, promise, trial.exact)
    return "the step is the same at every depth" if torch.equal(one, other) else "the step depends on the depth"


def independence(trial: _Trial) -> str:
    """Rows in another order, rows alone without padding, another last token, sequences that share a row."""
    remedy, model = _REMEDIES["independence"], trial.model
    index = torch.tensor([2, 0], device=model.device)
    some = {what: tensor[index] for what, tensor in trial.here.items()}
    trial.compare("of some rows alone", trial.ends(trial.batch().rows(index)), some, remedy)
    part = read(model, trial.last.state[index], None, None, trial.last.context.rows(index))
    trial.compare("of a part of the states", {"logits": part}, some, remedy)
    alone = [trial.ends(trial.batch([row], number)) for number, row in enumerate(trial.rows)]
    unpadded = {what: torch.cat([one[what][0] for one in alone]) for what in trial.here}
    remedy = "mask what batch.attention_mask marks as padding; attend causally; count positions from the left"
    trial.compare("with and without padding", unpadded, trial.taken(trial.here), remedy)
    size = model.vocabulary_size
    changed = trial.ends(trial.batch([[*row[:-1], (row[-1] + size // 2 + 1) % size] for row in trial.rows]))
    remedy = "no position may attend to a later one: attend with is_causal=True or a mask"
    trial.compare("before a changed token", trial.taken(changed, 1), trial.taken(trial.here, 1), remedy)
    drawn = getattr(model, "initial_state", None)
    by_length = isinstance(drawn, InitialState) and drawn.rule != "question"  # a pass refuses to share rows then
    if getattr(model, "unpadded", False) and not by_length:
        begin = trial.rows[0][:3]
        packing = pack([Group([begin + trial.rows[1][:2], begin + trial.rows[2][:1]], 3)]).to(model.device)
        together, apart = (trial.walk(batch).state for batch in (packing.batch, packing.sequences))
        mask, remedy = packing.sequences.attention_mask, _REMEDIES["sharing"]
        found = {"states": packing.separate(together)[mask]}
        trial.compare("of sequences that share a row", found, {"states": apart[mask]}, remedy)
    return "rows depend on no other row, no padding and no later token"


def readout(trial: _Trial) -> str:
    """Positions in any order; body and head, and the affine head, against the readout."""
    model, (row, place), state = trial.model, trial.places_N2.T, trial.last.state
    remedy = "return logits [N, V] at `positions`: state[positions[:, 0], positions[:, 1]]; loopscope.wrap does it"
    expected = {"logits": trial.here["logits"][row, place]}
    trial.compare("at positions and of all", {"logits": trial.readout(state)}, expected, remedy)
    state, parts, head = state.double(), halves(model, torch.float64, trial.last.context), model.head
    if parts is not None:
        found, expected = {"logits": parts(state, trial.places_N2)}, {"logits": trial.readout(state, torch.float64)}
        remedy = "let body_and_head and readout compute the same"
        trial.compare("of body and head, and of readout,", found, expected, remedy, 1e-9)
    if head is not None:
        bias = 0.0 if head.bias_V is None else head.bias_V.double()
        remedy = "leave `head` out (None) unless logits are exactly state @ weight.T + bias"
        for larger in (state, 8.0 * state):
            affine = {"logits": larger[row, place] @ head.weight_VD.double().T + bias}
            found = {"logits": trial.readout(larger, torch.float64)}
            trial.compare("of readout and of the head's affine map", found, affine, remedy, 1e-6)
    return "the same at positions, by halves and by the affine head, as far as the model has them"


def gradient(trial: _Trial, *, float64: bool = True, derivatives: bool = True) -> str:
    """Whether autograd reaches the state from the logits; float64; the derivatives of φ computed in three ways."""
    if float64:
        _resolves_float64(trial)
    if trial.model.head is not None:
        return "closed form of an affine head"
    with torch.enable_grad():
        logits = trial.readout(trial.last.state.clone().requires_grad_(True))
    if not logits.requires_grad:
        remedy = "take torch.no_grad, torch.inference_mode, detach(), .data and NumPy out of the readout"
        raise _CheckError("autograd finds no way from the logits to the state", remedy)
    return _derivatives(trial) if derivatives else "autograd follows the readout"


def _resolves_float64(trial: _Trial) -> None:
    """Whether a float64 readout sees a difference that float32 cannot hold."""
    state = trial.last.state.double()
    noise = torch.randn(state.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(state.device)
    step = noise * state.abs().mean()
    start, small, twice, large = (trial.readout(state + a * step, torch.float64) for a in (0.0, 1e-7, 2e-7, 1e-2))
    if start.dtype != torch.float64:
        raise _CheckError(f"readout(dtype=torch.float64) gives {start.dtype}", _REMEDIES["float64"])
    if torch.equal(start, small) and torch.equal(start, large):
        raise _NotNeededError("logits do not depend on the state")
    size = float((small - start).abs().max())
    if size == 0.0 or float((twice - 2.0 * small + start).abs().max()) > 1e-2 * size:
        raise _CheckError("the readout rounds to fewer digits than float64 has", _REMEDIES["float64"])


def _derivatives(trial: _Trial) -> str:
    """φ', φ'' and φ''' in Taylor mode, by nested forward mode and by differences of φ."""
    before, after, context, double = trial.walk(back=1).state, trial.last.state, trial.last.context, torch.float64
    readout = halves(trial.model, double, context) or (
        lambda state, positions: read(trial.model, state, positions, double, context)
    )
    targets = trial.batch().input_ids[trial.places_N2[:, 0], trial.places_N2[:, 1] + 1]
    path, reference = (
        nonlinear_path_from_states(readout, before, after, targets, trial.places_N2, dtype=double, impl=impl)
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
            raise _CheckError(f"A, Q or φ''' of the readout do not agree with {name}", remedy)
    return path.note or "A, Q and φ''' agree with nested forward mode and with differences"


def generation(trial: _Trial) -> str:
    """The tokens that follow three prompts, with keys and values kept and without."""
    if not can_cache(trial.model):
        raise _NotNeededError("the model keeps no keys and values")
    prompts = [row[: max(1, len(row) - 2)] for row in trial.rows]
    cached, plain = (
        generate(trial.model, prompts, max_new_tokens=2, depth=trial.last.depth, impl=impl).tokens
        for impl in ("cached", "reference")
    )
    if cached != plain:
        remedy = "let step and embed_cached with a cache compute what they compute without, or leave embed_cached out"
        raise _CheckError(f"generated tokens {cached} with kept keys and values, {plain} without", remedy)
    return "the same tokens with kept keys and values and without"


Probe = Callable[[_Trial], str]
_BASIS: tuple[Probe, ...] = (shapes, finite_states, determinism)
"""What the others rest on: they compare calls, and would blame padding for what is random."""
ALL: tuple[Probe, ...] = (*_BASIS, depth, independence, readout, gradient, generation)

_REMEDIES = {
    "shapes": "make embed(batch), step(state, context) and readout(state, positions, dtype) run on three short rows",
    "determinism": "keep nothing on self from call to call (ask for `depth` or `carry` in step, `context` in readout), "
    "draw nothing at random and change no tensor in place: state = state + x, not state += x",
    "independence": "let rows not mix; what readout needs of a row belongs in Context.rowwise",
    "sharing": "attend as batch.parts says and take positions from batch.position_ids, or leave out unpadded",
    "readout": "give readout the parameters (state, positions=None, dtype=None); loopscope.wrap does it for you",
    "gradient": "write the readout in plain, smooth torch operations of its state, in the dtype that it is given",
    "float64": "needed for level='full' and readout_dtype='float64' alone: keep the state's dtype in the readout,"
    " without .float() or .to(torch.float32), and cast weights with self.in_dtype(modules, dtype), as loopscope.wrap"
    " does",
}
"""Where the model's own code raises, and of checks that fail in several places."""
