"""The command line is a contract: a flag that vanishes or changes its name must be meant."""

import typer

from loopscope.cli.app import app

SURFACE = {
    "bench": "--data-dir --device --output --quick --rows --tokenizer",
    "certify": "--data-dir --device --model --progress run",
    "check": "--device --dtype --model-args model",
    "compare": "--format --name runs",
    "control": "--cache --check-cost --floor --format --heads --output --outside-cost --policy --prompt --target-cost "
    "--tier runs",
    "convert": "folder source",
    "demo": "--output --progress --questions",
    "diff": "--fail-if --format --output --tasks --transitions first second",
    "figures": "--format --name --output --style --width runs",
    "measure": "--address --apply-chat-template --batch-size --certify --config --continue-from --data-dir --depths "
    "--device --dtype --engine --every-scale --exit-threshold --fewshot-seed --fewshot-split --ids --initial-seed "
    "--initial-state --keep-states --lens --level --limit --long --model --model-args --num-fewshot --output --paths "
    "--plan --plan-seconds --progress --protocol --random-weights --readout-dtype --reference --renormalise --revision "
    "--scales-to --seed --share-context --tasks --template --tokenizer --tokens --trace --training-step --trajectories "
    "--transitions --unit-size --workers",
    "models": "--json",
    "reproduce": "--address --checkpoints --config --data-dir --device --engine --limit --long --models --only "
    "--output --plan --plan-seconds --progress --protocol --random-weights --stand-ins --tasks --tokenizer "
    "--updates-only --workers",
    "report": "--lens-questions --output runs",
    "studies": "",
    "tables": "--format --name --protocol runs",
    "tasks": "--json",
    "train-toy": "--device --minutes --output --save-every --seed name",
    "verify": "--bitwise --data-dir --device --layout --model --replay --tokenizer run",
}


def test_commands_and_flags_are_those_agreed():
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    found = {
        name: " ".join(sorted(option for parameter in command.params for option in parameter.opts))
        for name, command in commands.items()
    }
    assert found == SURFACE
