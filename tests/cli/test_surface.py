"""The command line is a contract: a flag that vanishes or changes its name must be meant."""

import typer

from loopscope.cli.app import app

SURFACE = {
    "check": "--device --dtype --model-args model",
    "compare": "--format --name runs",
    "control": "--check-cost --format --heads --model --output --outside-cost --policy "
    "--target-cost --tasks --template --tier runs",
    "demo": "--all --output --progress --questions",
    "diff": "--fail-if --format --tasks --transitions first second",
    "figures": "--format --name --output runs",
    "lm-eval": "",
    "measure": "--apply-chat-template --batch-size --certify --config --data-dir --depths --device --dtype --engine "
    "--ids --initial-state --lens --level --limit --long --model --model-args --num-fewshot --output --overwrite "
    "--paths --plan --progress --protocol --scales-to --share-context --tasks --template --tokenizer "
    "--tokens --trace --transitions --workers",
    "models": "",
    "reproduce": "--checkpoints --config --data-dir --device --engine --limit --long --models --only "
    "--output --plan --progress --protocol --random-weights --stand-ins --tasks --tokenizer "
    "--updates-only --verify --workers",
    "push": "--public repository run",
    "report": "--lens-questions --output --with-command runs",
    "studies": "",
    "tables": "--all --format --name runs",
    "tasks": "",
    "verify": "--bitwise --data-dir --device --model --replay --tasks --template --tokenizer run",
}


def test_commands_and_flags_are_those_agreed():
    group = typer.main.get_command(app)
    found = {}
    for name in group.list_commands(None):  # type: ignore[attr-defined]
        params = group.get_command(None, name).params  # type: ignore[attr-defined]
        found[name] = " ".join(sorted(option for parameter in params for option in parameter.opts))
    assert found == SURFACE
