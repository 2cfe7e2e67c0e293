"""How much do the numbers of a model with a drawn initial state vary over draws of H₀?

    python examples/initial_draws.py --limit 16 --draws 3

The same questions are measured from several seeds, far enough apart that no question gets the H₀ of another (H₀ is
drawn from the seed plus the source row). Each quantity is computed for every draw over all questions; question by
question, the draws vote on the outcome.
"""

import argparse
from collections import Counter

import numpy as np

import loopscope as ls

APART = 1_000_000
"""From one seed to the next: more than source rows reach."""


def numbers(records):
    """The quantities of one draw."""
    slope, quadratic, gain = (records[name].to_numpy() for name in ("slope", "quadratic", "gain"))
    harmful, sign = gain < 0, np.sign(gain)
    failures = (harmful & (slope > 0)).sum()
    return {
        "mean gain (0.001 nats)": 1e3 * gain.mean(),
        "harmful (%)": 100 * harmful.mean(),
        "finite-step share (%)": 100 * failures / harmful.sum() if harmful.any() else None,
        "sign accuracy of A (%)": 100 * np.mean(np.sign(slope) == sign),
        "sign accuracy of A + Q (%)": 100 * np.mean(np.sign(slope + quadratic) == sign),
    }


def main():
    """Measure from each seed and print mean, standard deviation and range over draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="toy-huginn")
    parser.add_argument("--task", default="arithmetic")
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--transition", type=int, default=2)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--output", default="runs/initial-draws", help="the folder of the runs")
    given = parser.parse_args()
    settings = {"transitions": given.transition, "level": "quick", "limit": given.limit}
    runs = [
        ls.measure(
            given.model,
            given.task,
            output=f"{given.output}/{seed}",
            protocol=f"loopscope:initial_seed={seed}",
            **settings,
        )
        for seed in range(0, given.draws * APART, APART)
    ]
    draws = [run.records.sort("row") for run in runs]
    found = [numbers(draw) for draw in draws]
    for name in found[0]:
        values = [draw[name] for draw in found if draw[name] is not None]
        if not values:
            print(f"{name}: not defined in any draw")
            continue
        deviation = f"{np.std(values, ddof=1):.3f}" if len(values) > 1 else "unknown"
        print(f"{name}: {np.mean(values):.3f}, deviation {deviation}, {min(values):.3f} … {max(values):.3f}")
    votes = zip(*(draw["outcome"].to_list() for draw in draws), strict=True)
    agreeing = Counter(max(Counter(vote).values()) for vote in votes)
    print("draws that agree on the outcome: questions: ", dict(sorted(agreeing.items(), reverse=True)))


if __name__ == "__main__":
    main()
