"""Training under a monitor: the weights are those of a training without, and the log tells what the updates did."""

import pytest
import torch

from loopscope.store.monitor_log import read_monitor_log
from loopscope.toys.budget import Budget
from loopscope.toys.train import train


@pytest.mark.parametrize("family", ["ouro", "huginn"])
def test_a_monitor_changes_no_weight_and_tells_what_updates_do(recipes, tokenizer, tmp_path, family, monkeypatch):
    monkeypatch.setattr("loopscope.toys.watching.QUESTIONS", 2)
    trained, lines = {}, []
    for name, more in (("alone", {}), ("watched", {"monitor_every": 2})):
        trained[name] = train(
            recipes[family],
            tmp_path / name,
            Budget(steps=5),
            seed=3,
            device="cpu",
            workers=0,
            report=lines.append,
            tokenizer=tokenizer,
            **more,
        )
    weights, beside = (trained[name].model.state_dict() for name in ("alone", "watched"))
    assert all(torch.equal(weights[name], beside[name]) for name in weights)
    log = read_monitor_log(tmp_path / "watched" / "monitor.jsonl")
    assert log.calls["step"].to_list() == [2, 4, 5]  # and at the end
    assert log.header["transitions"] == [3]
    assert log.depths["depth"].to_list() == [1, 2, 3, 4] * 3
    assert sum("update 3→4 of 2 held-out stories: gain" in line for line in lines) == 3
    assert not (tmp_path / "alone" / "monitor.jsonl").exists()
