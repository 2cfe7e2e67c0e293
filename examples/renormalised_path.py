"""Does it matter that H + αD leaves the norm of the states? The path that keeps the norm, next to the straight one.

    python examples/renormalised_path.py --limit 64

A model that norms its state makes states on a sphere, and H + αD is a chord of it. Every position p is put back on the
interpolated radius, so that both ends stay what they are:

    ĥ_p(α) = r_p(α) / ‖u_p(α)‖ · h_p(α),   u_p = h_p / g,   r_p(α) = (1 − α) ‖u_p(0)‖ + α ‖u_p(1)‖

with g the gain of the norm that states come out of (`--gain`, the name of the model's parameter). Derivatives at 0 are
automatic, in float64. For tasks with a solution.
"""

import argparse

import numpy as np
import torch

import loopscope as ls
from loopscope.path import GRID, grid_optimum
from loopscope.stats import Bootstrap, Mean, Spearman

QUARTER = 5
"""Where the scale ¼ is in the grid."""


def numbers(utility):
    """Slope, outcome and gains of φ(α) = utility(α) − utility(0)."""
    zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
    start = utility(zero)
    (slope,) = torch.autograd.grad(start, zero, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, zero)
    slope, alpha = slope.item(), ls.predict(slope.item(), curvature.item() / 2).alpha
    with torch.no_grad():
        *gains, quadratic_gain = (float(utility(scale) - start) for scale in [*GRID, float(alpha)])
    best = grid_optimum(GRID, gains)
    return {
        "slope": slope,
        "outcome": ls.classify(slope, gains[-1]),
        "best_scale": best.alpha,
        "best_gain": best.value,
        "quarter_gain": gains[QUARTER],
        "quadratic_gain": quadratic_gain,
    }


def both_paths(model, gain, sequence, source_row, transition):
    """The numbers of the straight and the renormalised path of one question, and the norm lost half-way."""
    batch = ls.Batch.from_rows([sequence.token_ids], source_rows=[source_row])
    with torch.no_grad():
        h, h_plus = (state.double() for state in model.states(batch, [transition, transition + 1]).values())
    positions = torch.tensor([[0, place] for place in sequence.positions])
    targets = torch.tensor(sequence.targets)[:, None]

    def straight(alpha):
        return h + alpha * (h_plus - h)

    def factor(alpha):
        start, end, here = ((state / gain).norm(dim=-1, keepdim=True) for state in (h, h_plus, straight(alpha)))
        return ((1 - alpha) * start + alpha * end) / here

    def utility(state):
        return model.readout(state, positions, torch.float64).log_softmax(-1).gather(1, targets).mean()

    lost = 1 - 1 / factor(0.5)[0, list(sequence.positions)]
    straight_numbers = numbers(lambda alpha: utility(straight(alpha)))
    return straight_numbers, numbers(lambda alpha: utility(factor(alpha) * straight(alpha))), float(lost.mean())


def main():
    """Measure both paths and print how they differ, with 95% intervals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="toy-ouro")
    parser.add_argument("--gain", default="model.norm.weight")
    parser.add_argument("--task", default="stories")
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--transition", type=int, default=4)
    given = parser.parse_args()
    model = ls.load_model(given.model)
    gain = model.get_parameter(given.gain).detach().double()
    examples = ls.load_task(given.task, limit=given.limit).encode(ls.load_tokenizer(given.model))
    found = [both_paths(model, gain, e.sequences[0], e.source_row, given.transition) for e in examples]
    *paths, lost = zip(*found, strict=True)
    one, two = ({name: np.array([each[name] for each in path]) for name in path[0]} for path in paths)
    estimates = Bootstrap().estimate(
        {
            "norm lost half-way": Mean(lost),
            "same outcome": Mean(one["outcome"] == two["outcome"]),
            "same sign of A": Mean(np.sign(one["slope"]) == np.sign(two["slope"])),
            "rank correlation of best scales": Spearman(one["best_scale"], two["best_scale"]),
            "best gain, renormalised − straight": Mean(two["best_gain"] - one["best_gain"]),
            "gain at α̂, renormalised − straight": Mean(two["quadratic_gain"] - one["quadratic_gain"]),
        }
    )
    for name, path in (("straight", one), ("renormalised", two)):
        recovered = path["quarter_gain"][path["outcome"] == ls.Outcome.FINITE_STEP_FAILURE] > 0
        title = f"a quarter step recovers, of {len(recovered)} finite-step failures of the {name} path"
        estimates |= Bootstrap().estimate({title: Mean(recovered)})
    for name, estimate in estimates.items():
        interval = estimate.interval and f" [{estimate.interval.low:.6f}, {estimate.interval.high:.6f}]"
        print(f"{name}: {'none' if estimate.value is None else f'{estimate.value:.6f}'}{interval or ''}")


if __name__ == "__main__":
    main()
