"""`loopscope lm-eval …`: lm-evaluation-harness's own command line, with a looped model."""

from __future__ import annotations

import typer


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness with a looped model, at any depth, step scale or policy.

    All arguments are those of lm-eval itself (`loopscope lm-eval run --help`). `--model_args` holds pretrained=MODEL
    and any of depth, scale, chord, omega, policy, tokenizer, dtype, max_length: `--model_args
    pretrained=toy-ouro,depth=4 --tasks arc_easy`.
    """
    from loopscope.lm_eval_backend import run_harness

    run_harness(context.args)
