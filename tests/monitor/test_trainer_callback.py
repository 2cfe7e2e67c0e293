"""The callback in the Trainer of transformers: the same weights as without it, and the numbers of a monitor."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import loopscope as ls
from loopscope.monitor_log import read_monitor_log

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


class Trained(nn.Module):
    """What a Trainer calls: token ids and labels in, a loss out; the looped model is inside."""

    def __init__(self, looped) -> None:
        super().__init__()
        self.looped = looped

    def forward(self, input_ids, labels=None):
        return {"loss": self.looped.loss(input_ids)}


def train(model, folder, callbacks, rows, **arguments):
    data = [{"input_ids": row, "labels": row} for row in rows]
    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=6,
        per_device_train_batch_size=4,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        seed=5,
        **arguments,
    )
    trainer = transformers.Trainer(model=model, args=settings, train_dataset=data, callbacks=callbacks)
    trainer.train()
    return trainer


def test_the_trainer_ends_with_the_same_weights_and_the_log_is_a_monitors(small, task, rows, tmp_path):
    alone = Trained(small())
    train(alone, tmp_path / "alone", [], rows)
    watched = Trained(small())
    log = tmp_path / "monitor.jsonl"
    callback = ls.LoopscopeCallback(task, lambda model: model.looped, transitions=[1, 2], every=3, log=log)
    train(watched, tmp_path / "watched", [callback], rows)
    for name, weight in alone.state_dict().items():
        assert torch.equal(weight, watched.state_dict()[name]), name
    found = read_monitor_log(log)
    assert found.calls["step"].to_list() == [3, 6]
    assert found.header["autocast"] is None
    last = ls.Monitor(watched.looped, task, transitions=[1, 2]).measure(6)
    assert [row["gain"] for row in last.updates] == pytest.approx(found.updates["gain"].to_list()[2:], abs=1e-9)
    assert callback.last.step == 6
    assert callback.monitor.model is watched.looped


def test_it_takes_the_trainers_arithmetic_and_a_looped_model_given_as_it_is(small, task, rows, tmp_path):
    model = Trained(small())
    callback = ls.LoopscopeCallback(task, model.looped, every=6)
    train(model, tmp_path, [callback], rows, bf16=True)
    assert callback.last.step == 6
    plain = ls.Monitor(model.looped, task).measure(6)
    rounded = ls.Monitor(model.looped, task, autocast="bfloat16").measure(6)
    assert callback.last.updates[0]["gain"] == pytest.approx(rounded.updates[0]["gain"], abs=1e-9)
    assert rounded.updates[0]["gain"] != pytest.approx(plain.updates[0]["gain"], abs=1e-9)


def test_what_it_cannot_watch_is_one_line(small, task, rows, tmp_path):
    with pytest.raises(ls.LoopscopeError, match="shows its callbacks no batch"):
        ls.LoopscopeCallback(None)
    with pytest.raises(ls.LoopscopeError, match="lacks"):
        train(Trained(small()), tmp_path, [ls.LoopscopeCallback(task)], rows)


def test_without_transformers_the_line_names_the_extra():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import loopscope as ls\n"
        "try:\n    ls.LoopscopeCallback('stories')\n"
        "except ls.LoopscopeError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "LoopscopeCallback needs transformers: pip install transformers\n"
