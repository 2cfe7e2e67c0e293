"""The log of a run."""

import os
from pathlib import Path

import pytest

from loopscope.errors import LoopscopeError
from loopscope.store.events import EventLog, read_events


def test_a_torn_event_is_skipped_and_the_next_one_whole(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("one", value=1)
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "to')
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["one"]
    assert log.mend() == 1
    log.append("two")
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["one", "two"]
    assert log.mend() == 0
    assert read_events(tmp_path / "none") == []


def test_an_altered_event_is_one_line_until_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for value in range(3):
        log.append("step", value=value, name="\udcff ∑", nested={"list": [1.5, None]})
    before = read_events(path)
    assert [event["value"] for event in before] == [0, 1, 2]
    assert set(before[0]) == {"time", "event", "value", "name", "nested"}
    path.write_bytes(path.read_bytes().replace(b'"value": 1', b'"value": 7'))
    with pytest.raises(LoopscopeError, match=r"line 2 of .*events.jsonl is not as it was written: the same `measure`"):
        read_events(path)
    assert log.mend() == 1
    assert read_events(path) == [before[0], before[2]]


def test_a_log_without_digests_is_read(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"event": "one"}\n{"event": "to\n{"event": "two"}\n')
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["one", "two"]


def test_an_event_that_fits_only_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("one")
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:9]))
    log.append("two")
    monkeypatch.undo()
    log.append("three")
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["one", "three"]
