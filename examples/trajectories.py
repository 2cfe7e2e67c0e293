"""What do later loops make of a changed update? One update at another scale, or every update from there on.

    python examples/trajectories.py --limit 8

    one       H_{t+1} ← H_t + α·(F(H_t) − H_t) at the update t → t+1; every later update in full
    onwards   the same at t → t+1 and at every later update

Every position takes the same scale, later loops run on the changed states, and the utility after each of them is
compared with that of full steps at the same depth. For tasks with a solution; utilities in 0.001 nats.
"""

import argparse
import itertools

import numpy as np
import torch

import loopscope as ls
from loopscope.stats import Bootstrap, Mean, Ratio


def utility(walk, sequence):
    """The mean log probability of the reference tokens in the state where a walk is."""
    positions = torch.tensor([[0, place] for place in sequence.positions])
    logits = walk.read(positions, torch.float32).double()
    return float(logits.log_softmax(-1).gather(1, torch.tensor(sequence.targets)[:, None]).mean())


def changed(walk, scale):
    """A walk one step on, at H + αD."""
    before = walk.state
    walk.advance()
    return walk.changed(torch.lerp(before, walk.state, scale))


@torch.no_grad()
def gains(model, example, starts, deepest, scale):
    """Of each first update and manner, the gain over full steps after each depth from there on; whether it did harm."""
    (sequence,) = example.sequences
    batch = ls.Batch.from_rows([sequence.token_ids], source_rows=[example.source_row])
    full, walk = {}, ls.Walk.of(model, batch)
    for depth in range(deepest + 1):
        full[depth] = utility(walk.to(depth), sequence)
    found = {}
    for start, onwards in itertools.product(starts, (False, True)):
        walk = changed(ls.Walk.of(model, batch).to(start), scale)
        found[start, onwards] = [utility(walk, sequence) - full[start + 1]]
        while walk.depth < deepest:
            walk = changed(walk, scale if onwards else 1.0)
            found[start, onwards].append(utility(walk, sequence) - full[walk.depth])
    return found, {start: full[start + 1] < full[start] for start in starts}


def main():
    """Follow changed updates and print what is left of their gains, with 95% intervals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="toy-ouro")
    parser.add_argument("--task", default="stories")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--transitions", type=int, nargs="+", default=[0, 3, 4, 5])
    parser.add_argument("--deepest", type=int, default=6)
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    model, starts = ls.load_model(given.model, dtype=given.dtype), given.transitions
    examples = ls.load_task(given.task, limit=given.limit).encode(ls.load_tokenizer(given.model))
    found = [gains(model, example, starts, given.deepest, given.scale) for example in examples]
    first = {start: np.array([each[start, False][0] for each, _ in found]) for start in starts}
    for start, onwards in itertools.product(starts, (False, True)):
        at_once, last = (1e3 * np.array([each[start, onwards][place] for each, _ in found]) for place in (0, -1))
        harmed = np.array([harm[start] for _, harm in found])
        statistics = {"immediate": Mean(at_once), f"at loop {given.deepest}": Mean(last)}
        statistics |= {
            "survives": Ratio(last, at_once),
            "survives where harmed": Ratio(last * harmed, at_once * harmed),
        }
        updates = range(start, given.deepest) if onwards else [start]
        if all(update in first for update in updates):
            statistics["sum of single gains"] = Mean(1e3 * sum(first[update] for update in updates))
        estimates = Bootstrap().estimate(statistics)
        shown = (
            f"{name} {one.value:.3f}" + (f" [{one.interval.low:.3f}, {one.interval.high:.3f}]" if one.interval else "")
            for name, one in estimates.items()
            if one.value is not None
        )
        print(f"{start}→{start + 1} {'onwards' if onwards else 'one'}: " + ", ".join(shown))


if __name__ == "__main__":
    main()
