"""Logs of a monitor that nobody's monitor wrote are refused in one line, and a pipe is never opened."""

import json
import os
from pathlib import Path

import pytest

from loopscope.errors import LoopscopeError
from loopscope.monitor_log import MonitorLogWriter, is_monitor_log, read_monitor_log
from loopscope.studies import open_records

HEADER = {"format": "loopscope-monitor", "version": 1, "rank": 0}
ROW = {"kind": "update", "step": 1, "task": "sums", "transition": 1, "gain": 0.5}


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join([json.dumps(HEADER), json.dumps(ROW), *lines, ""]))
    return path


def test_a_log_is_read(tmp_path: Path) -> None:
    log = read_monitor_log(written(tmp_path / "log", json.dumps(ROW | {"step": 0, "gain": None})))
    assert log.updates["gain"].to_list() == [None, 0.5]
    assert log.calls.height == 0


@pytest.mark.parametrize(
    "line",
    [
        "{" * 10,
        '{"kind": "update", "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
        json.dumps(ROW | {"gain": float("nan")}),
        json.dumps(ROW | {"gain": {"a": 1}}),
        json.dumps(ROW | {"step": 2, "gain": "much"}),
        json.dumps(ROW | {"kind": "other"}),
        "[]",
    ],
)
def test_a_line_that_is_not_one_of_a_log_is_one_line_of_error(line: str, tmp_path: Path) -> None:
    path = written(tmp_path / "log", line)
    assert is_monitor_log(path)
    with pytest.raises(LoopscopeError, match=r"delete the line|disagree in the types") as caught:
        read_monitor_log(path)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_neither_read_nor_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not is_monitor_log(tmp_path / "pipe")
    with pytest.raises(LoopscopeError, match=r"is not a run|cannot read"):
        open_records(str(tmp_path / "pipe"))
    with pytest.raises(LoopscopeError, match="is a pipe or a device"):
        MonitorLogWriter(tmp_path / "pipe").write(HEADER, [ROW])
