"""Where records go: a file that is continued, TensorBoard's own files read back, a run of W&B, a function."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

import loopscope as ls
from loopscope.monitor_log import is_monitor_log, read_monitor_log


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_holds_the_header_and_the_rows_of_every_call(small, task, tmp_path):
    path = tmp_path / "new" / "monitor.jsonl"
    monitor = ls.Monitor(small(), task, transitions=[2, 3], every=5, log=path)
    records = [monitor.step(step) for step in range(11)]
    header, *rows = lines_of(path)
    assert header["format"] == "loopscope-monitor"
    assert (header["model"], header["trained_depth"], header["transitions"]) == ("small", 2, [2, 3])
    assert header["tasks"][0] | {"sha256": ""} == {
        **{"name": "held-out", "split": "all", "questions": 12, "tokens": 72, "sha256": ""}
    }
    assert [record is not None for record in records] == [step % 5 == 0 for step in range(11)]
    assert rows == [dict(row) for record in records if record is not None for row in record.rows]
    log = read_monitor_log(path)
    assert log.updates["step"].to_list() == [0, 0, 5, 5, 10, 10]
    assert log.updates["transition"].to_list() == [2, 3] * 3
    assert log.updates["gain"].to_list()[-1] == records[10].updates[-1]["gain"]
    assert log.depths["depth"].to_list() == [2, 3, 4] * 3
    assert log.calls["questions"].to_list() == [12] * 3
    assert log.calls["share_of_time"].to_list()[0] is None
    assert 0 < log.calls["share_of_time"].to_list()[-1] <= 1


def test_a_resumed_training_goes_on_with_the_file_and_the_later_line_holds(small, task, tmp_path):
    path = tmp_path / "monitor.jsonl"
    model = small()
    first = ls.Monitor(model, task, every=5, log=path)
    first.step(5)
    first.step(10)
    text = path.read_text()
    path.write_text(text[:-20])  # killed while it wrote the last line
    for weight in model.parameters():
        weight.data.mul_(1.1)
    again = ls.Monitor(model, task, every=10, log=path).step(10)
    log = read_monitor_log(path)
    assert log.updates["step"].to_list() == [5, 10]
    assert log.updates["gain"].to_list()[1] == again.updates[0]["gain"]
    assert log.calls["step"].to_list() == [5, 10]
    with pytest.raises(ls.LoopscopeError, match=r"the log of another monitor \(its depths is"):
        ls.Monitor(model, task, transitions=[1], log=path)  # before anything is trained
    assert read_monitor_log(path).calls["step"].to_list() == [5, 10]


def test_files_that_are_none_are_told(tmp_path, small, task):
    (tmp_path / "other.jsonl").write_text('{"loss": 1}\n')
    with pytest.raises(ls.LoopscopeError, match="not a monitor's log"):
        read_monitor_log(tmp_path / "other.jsonl")
    with pytest.raises(ls.LoopscopeError, match="not a monitor's log"):
        ls.Monitor(small(), task, log=tmp_path / "other.jsonl")
    assert not is_monitor_log(tmp_path / "other.jsonl")
    (tmp_path / "newer.jsonl").write_text('{"format": "loopscope-monitor", "version": 2}\n')
    with pytest.raises(ls.LoopscopeError, match="version 2"):
        read_monitor_log(tmp_path / "newer.jsonl")
    (tmp_path / "odd.jsonl").write_text('{"format": "loopscope-monitor", "version": 1}\n{"kind": "depth"}\n')
    with pytest.raises(ls.LoopscopeError, match="line 2"):
        read_monitor_log(tmp_path / "odd.jsonl")
    assert is_monitor_log(tmp_path / "odd.jsonl")
    with pytest.raises(ls.LoopscopeError, match="cannot write"):
        ls.Monitor(small(), task, log=tmp_path / "other.jsonl" / "monitor.jsonl").measure(1)


def test_several_tasks_keep_their_names_and_a_function_gets_numbers_and_the_step(small, task, rows):
    ids = rows.tolist()
    other = ls.Task.from_ids([row[:1] for row in ids[:3]], [row[1:] for row in ids[:3]], name="other")
    seen = []
    record = ls.Monitor(small(), [task, other], log=lambda *given: seen.append(given)).measure(7)
    assert seen == [(record.scalars(), 7)]
    assert [(row["task"], row["questions"]) for row in record.updates] == [("held-out", 12), ("other", 3)]
    scalars = record.scalars()
    assert scalars["loopscope/other/gain/2-3"] == record.updates[1]["gain"]
    assert not any(value is None for value in scalars.values())


def test_tensorboard_files_hold_the_scalars(small, task, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        monitor = ls.Monitor(small(), task, transitions=[2, 3], log=[writer, tmp_path / "monitor.jsonl"])
        records = [monitor.measure(step) for step in (200, 400)]
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == set(records[0].scalars()) | set(records[1].scalars())
    for name in ("loopscope/utility/3", "loopscope/gain/2-3", "loopscope/quadratic_gain/3-4", "loopscope/harmful/3-4"):
        assert [event.step for event in events.Scalars(name)] == [200, 400]
        written = [event.value for event in events.Scalars(name)]
        assert written == pytest.approx([record.scalars()[name] for record in records], rel=1e-6)


class Run:
    """The two calls of a W&B run that a monitor makes, and the counting of steps."""

    def __init__(self, step: int = 0) -> None:
        self.step, self.defined, self.logged = step, [], []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.defined.append((name, step_metric))

    def log(self, values: dict, step: int | None = None) -> None:
        self.logged.append((values, step))


def test_a_run_that_counts_calls_gets_no_step_behind_its_own(small, task):
    few, many = Run(step=3), Run(step=1000)
    monitor = ls.Monitor(small(), task, log=[few, many])
    record = monitor.measure(200)
    assert few.defined == [("loopscope/step", None), ("loopscope/*", "loopscope/step")]
    assert few.logged == [({"loopscope/step": 200, **record.scalars()}, 200)]
    assert many.logged == [({"loopscope/step": 200, **record.scalars()}, None)]


def test_the_module_of_wandb_stands_for_its_active_run(small, task):
    module = ModuleType("wandb")
    module.define_metric, module.run = None, None
    monitor = ls.Monitor(small(), task, log=module)
    with pytest.raises(ls.LoopscopeError, match=r"no active run: call wandb\.init first"):
        monitor.measure(0)
    module.run = Run()
    record = monitor.measure(1)
    assert module.run.logged == [({"loopscope/step": 1, **record.scalars()}, 1)]
