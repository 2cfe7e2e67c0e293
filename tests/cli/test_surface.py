"""The command line is a contract: a flag that vanishes or changes its name must be meant."""

import typer

from loopscope.cli.app import app

SURFACE = {
    "check": "--device --dtype --model-args model",
    "compare": "--format --name runs",
    "control": "--check-cost --floor --format --heads --model --output --outside-cost --policy "
    "--target-cost --tasks --template --tier runs",
    "demo": "--output --progress --questions",
    "diff": "--fail-if --format --tasks --transitions first second",
    "figures": "--format --name --output --style --width runs",
    "lm-eval": "",
    "measure": "--address --apply-chat-template --batch-size --certify --config --data-dir --depths "
    "--device --dtype --engine --every-scale --exit-threshold --fewshot-seed --fewshot-split --ids --initial-seed "
    "--initial-state --lens --level --limit --long --model --model-args --num-fewshot --output --paths "
    "--plan --plan-seconds --progress --protocol --random-weights --readout-dtype --revision "
    "--scales-to --seed --share-context --tasks --template --tokenizer --tokens --trace --training-step "
    "--transitions --unit-size --workers",
    "models": "--json",
    "reproduce": "--address --checkpoints --config --data-dir --device --engine --limit --long --models --only "
    "--output --plan --plan-seconds --progress --protocol --random-weights --stand-ins --tasks --tokenizer "
    "--updates-only --workers",
    "report": "--lens-questions --output runs",
    "studies": "",
    "tables": "--format --name --protocol runs",
    "tasks": "--json",
    "verify": "--bitwise --data-dir --device --model --replay --tasks --template --tokenizer run",
}


def test_commands_and_flags_are_those_agreed():
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    found = {
        name: " ".join(sorted(option for parameter in command.params for option in parameter.opts))
        for name, command in commands.items()
    }
    assert found == SURFACE
