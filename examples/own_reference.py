"""What is lost without a label: the model's own answer as the reference, next to the given one.

    python examples/own_reference.py --limit 64
    python examples/own_reference.py --task arithmetic-mc --limit 64

The reference becomes the model's greedy continuation of the same prompt at its trained depth, as long as the given
reference or up to an end of text; of options, the one with the highest score at the trained depth. Both are measured,
question by question. What a step scale chosen from the own answer would gain is read from the given reference's grid.
"""

import argparse

import numpy as np

import loopscope as ls
from loopscope.path import GRID, nearest_action
from loopscope.stats import Bootstrap, Mean, Ratio, Spearman

TOGETHER = 16
"""Prompts that are continued in one batch."""


def continued(model, examples):
    """Each prompt with the model's own continuation, up to and with an end of text."""
    firsts = [example.sequences[0] for example in examples]
    prompts = [sequence.token_ids[: sequence.positions[0] + 1] for sequence in firsts]
    answers = []
    for start in range(0, len(examples), TOGETHER):
        group = slice(start, start + TOGETHER)
        counts = [len(sequence.targets) for sequence in firsts[group]]
        rows = [example.source_row for example in examples[group]]
        made = ls.generate(model, prompts[group], max_new_tokens=max(counts), eos_ids=(), source_rows=rows)
        for new, count in zip(made.tokens, counts, strict=True):
            end = next((place + 1 for place, token in enumerate(new) if token in model.eos_ids), count)
            answers.append(new[: min(end, count)])
    same = [list(sequence.targets) == answer for sequence, answer in zip(firsts, answers, strict=True)]
    return ls.Task.from_ids(prompts, answers, name="own"), same


def chosen(run, model, examples):
    """The same options with the model's own choice as the right one."""
    depths = run.depths.filter(run.depths["depth"] == model.trained_depth).sort("row")
    choices = depths["chosen_option"].to_list()
    prompts = [example.sequences[0].token_ids[: example.sequences[0].positions[0] + 1] for example in examples]
    options = [[sequence.targets for sequence in example.sequences] for example in examples]
    same = [choice == example.answer for choice, example in zip(choices, examples, strict=True)]
    return ls.Task.from_ids(prompts, options=options, answers=choices, name="own"), same


def main():
    """Measure both references and print how far they agree, with 95% intervals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="toy-ouro")
    parser.add_argument("--task", default="stories")
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--transition", type=int, default=4)
    parser.add_argument("--dtype", default="float32", help="in BF16 near ties between tokens depend on the batch")
    parser.add_argument("--output", default="runs/own-reference", help="the folder of the two runs")
    given = parser.parse_args()
    model = ls.load_model(given.model, dtype=given.dtype)
    examples = list(ls.load_task(given.task, limit=given.limit).encode(ls.load_tokenizer(given.model)))

    settings = {"transitions": given.transition, "depths": model.trained_depth, "dtype": given.dtype}
    settings |= {"limit": given.limit}

    def measured(task, name):
        return ls.measure(given.model, task, output=f"{given.output}/{name}", **settings)

    theirs = measured(given.task, "given")
    task, same = continued(model, examples) if examples[0].answer is None else chosen(theirs, model, examples)
    one, two = (run.records.sort("row") for run in (measured(task, "own"), theirs))
    a, q, scale, outcome = (
        (one[c].to_numpy(), two[c].to_numpy()) for c in ("slope", "quadratic", "quadratic_scale", "outcome")
    )
    gains = np.stack(two["grid_gain"].to_list())
    at_own, at_given = (gains[np.arange(len(gains)), nearest_action(GRID, s).index] for s in scale)
    estimates = Bootstrap().estimate(
        {
            "same answer": Mean(same),
            "same sign of A": Mean(np.sign(a[0]) == np.sign(a[1])),
            "same sign of Q": Mean(np.sign(q[0]) == np.sign(q[1])),
            "same outcome": Mean(outcome[0] == outcome[1]),
            "rank correlation of A": Spearman(*a),
            "rank correlation of α̂": Spearman(*scale),
            "gain of the full step": Mean(two["gain"].to_numpy()),
            "gain at the own answer's α̂": Mean(at_own),
            "gain at the given reference's α̂": Mean(at_given),
            "kept": Ratio(at_own, at_given),
        }
    )
    for name, estimate in estimates.items():
        interval = estimate.interval and f" [{estimate.interval.low:.6f}, {estimate.interval.high:.6f}]"
        print(f"{name}: {'none' if estimate.value is None else f'{estimate.value:.6f}'}{interval or ''}")


if __name__ == "__main__":
    main()
