"""What a looped model must hold for its numbers to be right, each tried on a batch of three short rows.

Each probe runs the model in two ways that must agree (`model_trial`), and says what was found and what to do.

Shapes: B rows, S positions, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.measuring.model_trial import Trial, Verdict, difference
from loopscope.models.packing import Group, pack
from loopscope.models.walk import Walk, halves, read
from loopscope.readout.affine.sources import full_precision_products
from loopscope.readout.general.path import nonlinear_path_from_states


def shapes(trial: Trial) -> Verdict:
    """States [B, S, D], logits [B, S, V]."""
    model, (rows, width) = trial.model, trial.batch().input_ids.shape
    for what, found, expected in (
        ("embed gives a state", trial.states[0], (rows, width, model.hidden_size)),
        ("readout gives logits", trial.logits, (rows, width, model.vocabulary_size)),
    ):
        if tuple(found.shape) != expected:
            told = f"{what} {list(found.shape)}, not {list(expected)} as hidden_size and vocabulary_size say"
            return Verdict("shapes", False, told, "set hidden_size and vocabulary_size to what the model has")
    found_in = trial.states[-1].dtype
    if found_in != model.dtype:
        told = f"dtype says {model.dtype} and the states are {found_in}"
        return Verdict("shapes", False, told, "let `dtype` say what embed and step compute in")
    return Verdict("shapes", True, f"states {list(trial.states[0].shape)}, logits {list(trial.logits.shape)}")


def finite(trial: Trial) -> Verdict:
    """No NaN, no infinity."""
    for what, tensor in [
        *((f"the state at depth {t}", h) for t, h in enumerate(trial.states)),
        ("logits", trial.logits),
    ]:
        if not bool(torch.isfinite(trial.valid(tensor)).all()):
            return Verdict("finite", False, f"{what}: not finite", "try dtype='float32', or look for a division by 0")
    return Verdict("finite", True, "states and logits are finite")


def repeatable(trial: Trial) -> Verdict:
    """The same batch twice."""
    states, logits = trial.walked(trial.batch())
    return trial.agree(
        "repeatable",
        {"two walks over the same batch": (states[-1], trial.states[-1]), "two readouts": (logits, trial.logits)},
        "keep nothing on self from call to call (ask for `depth` or `carry`) and draw nothing at random",
        exact=True,
    )


def no_hidden_state(trial: Trial) -> Verdict:
    """Steps out of order, and another batch in between."""
    walk = Walk.of(trial.model, trial.batch()).to(trial.depth - 1)
    first, second = walk.changed(walk.state).advance(), walk.changed(walk.state).advance()
    other = Walk.of(trial.model, trial.batch([trial.rows[1][::-1]])).to(trial.depth)
    trial.read(other)
    walk.advance()
    pairs = {
        "two steps from the same state": (second, first),
        "two readouts of the same state": (trial.read(walk), trial.read(walk)),
        "states, with another batch in between,": (walk.state, trial.states[-1]),
        "logits, with another batch in between,": (trial.read(walk), trial.logits),
    }
    return trial.agree("no hidden state", pairs, _NOTHING_KEPT, exact=True)


def rows(trial: Trial) -> Verdict:
    """Some of the rows, in another order."""
    index = torch.tensor([2, 0], device=trial.model.device)
    states, logits = trial.walked(trial.batch().rows(index))
    some = slice(1, 2)
    with full_precision_products():
        part = read(trial.model, trial.states[-1][some], None, None, trial.walk.context.rows(some))
    pairs = {
        "states of some rows alone": (states[-1], trial.states[-1][index]),
        "logits of some rows alone": (logits, trial.logits[index]),
        "logits of a part of the states": (part, trial.logits[some]),
    }
    return trial.agree("rows", pairs, "let rows not mix; what readout needs of a row belongs in Context.rowwise")


def padding(trial: Trial) -> Verdict:
    """Every row by itself, without padding."""
    alone = [trial.walked(trial.batch([row], number)) for number, row in enumerate(trial.rows)]
    pairs = {
        "states with and without padding": (torch.cat([s[-1][0] for s, _ in alone]), trial.valid(trial.states[-1])),
        "logits with and without padding": (torch.cat([z[0] for _, z in alone]), trial.valid(trial.logits)),
    }
    remedy = "mask what batch.attention_mask marks as padding; attend causally; count positions from the left"
    return trial.agree("padding", pairs, remedy)


def causal(trial: Trial) -> Verdict:
    """The last token of every row is another one."""
    half = trial.model.vocabulary_size // 2 + 1
    changed = [[*row[:-1], (row[-1] + half) % trial.model.vocabulary_size] for row in trial.rows]
    states, logits = trial.walked(trial.batch(changed))

    def before(batched: Tensor) -> Tensor:
        return torch.cat([batched[row, : length - 1] for row, length in enumerate(trial.lengths)])

    pairs = {
        "states before a changed token": (before(states[-1]), before(trial.states[-1])),
        "logits before a changed token": (before(logits), before(trial.logits)),
    }
    return trial.agree("causal", pairs, "no position may see a later one: attend with is_causal=True or a mask")


def positions(trial: Trial) -> Verdict:
    """Positions in any order, one of them twice."""
    places = torch.cat([trial.places, trial.places[:1]])
    found = trial.read(trial.walk, places)
    expected = trial.logits[places[:, 0], places[:, 1]]
    remedy = (
        "return logits [N, V] at `positions`: state[positions[:, 0], positions[:, 1]]; loopscope.wrap does it for you"
    )
    if found.shape != expected.shape:
        told = f"readout(state, positions) gives {list(found.shape)}, not {list(expected.shape)}"
        return Verdict("positions", False, told, remedy)
    return trial.agree("positions", {"logits at positions and of all": (found, expected)}, remedy)


def float64(trial: Trial) -> Verdict:
    """Whether a float64 readout sees a difference that float32 cannot hold."""
    remedy = "compute in `dtype`, state and weights: self.in_dtype(modules, dtype); loopscope.wrap does it for you"
    state = trial.states[-1].double()
    noise = torch.randn(state.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(state.device)
    step = noise * state.abs().mean()

    def logits(scale: float) -> Tensor:
        with full_precision_products():
            return read(trial.model, state + scale * step, trial.places, torch.float64, trial.walk.context)

    start = logits(0.0)
    if start.dtype != torch.float64:
        return Verdict("float64", False, f"readout(dtype=torch.float64) gives {start.dtype}", remedy)
    small, twice = logits(1e-7) - start, logits(2e-7) - start
    size = float(small.abs().max())
    if size == 0.0 and float((logits(1e-2) - start).abs().max()) == 0.0:
        return Verdict("float64", None, "logits do not depend on the state")
    bent = float((twice - 2.0 * small).abs().max())
    if size == 0.0 or bent > 1e-2 * size:
        return Verdict("float64", False, "the readout rounds to fewer digits than float64 has", remedy)
    return Verdict("float64", True, "a change of 1e-7 in the state is seen as it is")


def gradients(trial: Trial) -> Verdict:
    """Whether autograd finds the way from the logits back to the state."""
    if trial.model.head is not None:
        return Verdict("gradients", None, "closed form of an affine head")
    with torch.enable_grad(), full_precision_products():
        state = trial.states[-1].clone().requires_grad_(True)
        logits = read(trial.model, state, trial.places, None, trial.walk.context)
    if logits.requires_grad:
        return Verdict("gradients", True, "autograd follows the readout")
    remedy = "take torch.no_grad, torch.inference_mode, detach(), .data and NumPy out of the readout"
    return Verdict("gradients", False, "autograd finds no way from the logits to the state", remedy)


def head(trial: Trial) -> Verdict:
    """The head against the readout, on states of the model and on larger ones."""
    model, own = trial.model, trial.model.head
    if own is None:
        return Verdict("head", None, "the readout is not affine; derivatives go through it")
    with full_precision_products():
        for scale in (1.0, 8.0):
            state = scale * trial.states[-1].double()
            found = read(model, state, trial.places, torch.float64, trial.walk.context)
            at = state[trial.places[:, 0], trial.places[:, 1]]
            expected = at @ own.weight_VD.double().T
            expected = expected if own.bias_V is None else expected + own.bias_V.double()
            gap = difference(found, expected)
            if not gap <= 1e-6:
                return Verdict(
                    "head",
                    False,
                    f"readout differs from the head's affine map by {gap:.2g}",
                    "leave `head` out (None) unless logits are exactly state @ weight.T + bias",
                )
    return Verdict("head", True, "readout is the head's affine map")


def body_and_head(trial: Trial) -> Verdict:
    """The two halves against the readout."""
    context = trial.walk.context
    parts = halves(trial.model, torch.float64, context)
    if parts is None:
        return Verdict("body and head", None, "the readout comes in one")
    state = trial.states[-1].double()
    with full_precision_products():
        expected = read(trial.model, state, trial.places, torch.float64, context)
        gap = difference(parts(state, trial.places), expected)
    if gap <= 1e-9:
        return Verdict("body and head", True, f"the same to {gap:.1g}")
    return Verdict("body and head", False, f"they differ from readout by {gap:.2g}", "let both compute the same")


def shared_context(trial: Trial) -> Verdict:
    """Two sequences that begin alike in one row, against a row each."""
    if not getattr(trial.model, "shares_context", False):
        return Verdict("shared context", None, "the model does not say that options may share a row")
    begin = trial.rows[0][:3]
    packing = pack([Group([begin + trial.rows[1][:2], begin + trial.rows[2][:1]], 3)]).to(trial.model.device)
    together = Walk.of(trial.model, packing.batch).to(trial.depth)
    apart = Walk.of(trial.model, packing.sequences).to(trial.depth)
    mask = packing.sequences.attention_mask
    pairs = {"states of sequences that share a row": (packing.separate(together.state)[mask], apart.state[mask])}
    remedy = (
        "mask attention by visible_keys(batch) and take positions from batch.position_ids, or leave shares_context out"
    )
    return trial.agree("shared context", pairs, remedy)


def derivatives(trial: Trial) -> Verdict:
    """φ', φ'' and φ''' in Taylor mode, by nested forward mode and by differences of φ."""
    if trial.model.head is not None:
        return Verdict("derivatives", None, "closed form of an affine head")
    context = trial.walk.context
    readout = halves(trial.model, torch.float64, context) or (
        lambda state, positions: read(trial.model, state, positions, torch.float64, context)
    )
    ids = trial.batch().input_ids
    targets = ids[trial.places[:, 0], trial.places[:, 1] + 1]

    def at(impl: str, order: int, *scales: float) -> Tensor:
        path = nonlinear_path_from_states(
            readout, trial.states[-2], trial.states[-1], targets, trial.places, dtype=torch.float64, impl=impl
        )
        if impl == "auto":
            notes.append(path)
        return path.at_scales(list(scales), order)[:, 0]

    notes: list[object] = []
    taylor, nested = at("auto", 3, 0.5)[:, 0], at("nested", 3, 0.5)[:, 0]
    h = 1e-4
    below, middle, above = at("nested", 0, 0.5 - h, 0.5, 0.5 + h)[0]
    size = float(taylor[1:].abs().sum())
    gaps = {
        "nested forward mode": float((taylor - nested).abs().max()) / (1e-9 * size + 1e-12),
        "differences of φ": float(abs((above - below) / (2 * h) - taylor[1])) / (1e-4 * size + 1e-8),
        "second differences of φ": float(abs((above - 2 * middle + below) / h**2 - taylor[2])) / (1e-3 * size + 1e-5),
    }
    wrong = next((name for name, gap in gaps.items() if not gap <= 1.0), None)
    if wrong is not None:
        remedy = (
            "write the readout in plain, smooth torch operations; if it is, this is a fault of loopscope: report it"
        )
        return Verdict("derivatives", False, f"A, Q or φ''' do not agree with {wrong}", remedy)
    note = getattr(notes[0], "note", "")
    return Verdict("derivatives", True, note or "A, Q and φ''' agree with nested forward mode and with differences")


Probe = Callable[[Trial], Verdict]
BASIS: tuple[Probe, ...] = (shapes, finite, repeatable, no_hidden_state)
"""What the others rest on: they compare calls, and would blame padding for what is random."""
QUICK: tuple[Probe, ...] = (
    *BASIS,
    *(rows, padding, causal, positions, float64, gradients, head, body_and_head),
)
"""Before any pass with a model that is not loopscope's own."""
FURTHER: tuple[Probe, ...] = (shared_context, derivatives)


def tried(probe: Probe, trial: Trial) -> Verdict:
    """A probe's verdict; what the model's code raises is one, too."""
    name = probe.__name__.replace("_", " ")
    try:
        return probe(trial)
    except Exception as error:  # whatever the model's own code raises
        said = " ".join(str(error).split())
        told = said if isinstance(error, LoopscopeError) else f"{type(error).__name__}: {said}"
        return Verdict(
            name, False, f"{(probe.__doc__ or '').rstrip('.')}: {told}", _REMEDIES.get(name, "mend the model")
        )


_NOTHING_KEPT = (
    "keep nothing on self from call to call (ask for `depth` or `carry` in step, `context` in readout) and change no "
    "tensor in place: state = state + x, not state += x"
)
_REMEDIES = {
    "no hidden state": _NOTHING_KEPT,
    "rows": "let a readout take some rows of a state; what it needs of a row belongs in Context.rowwise",
    "positions": "give readout the parameters (state, positions=None, dtype=None); loopscope.wrap does it for you",
    "float64": "give readout the parameters (state, positions=None, dtype=None) and compute in `dtype`",
    "derivatives": "write the readout in plain, smooth torch operations of its state",
}
