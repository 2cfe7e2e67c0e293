"""The log of a run."""

import os
from pathlib import Path

import pytest

from loopscope.store.run import read_events
from loopscope.store.writer import EventLog


def test_a_torn_event_is_skipped_and_the_next_one_whole(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.end_torn_line()
    log.append("one", value=1, name="\udcff ∑")
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "to')
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["one"]
    log.end_torn_line()
    log.append("two")
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["one", "two"]
    assert read_events(tmp_path / "none") == []


def test_a_line_that_is_not_json_is_skipped(tmp_path: Path) -> None:
    lines = ('{"event": "one", "sha256": "of an earlier version"}', '{"event": "to', "[]", "[" * 200_000)
    (tmp_path / "events.jsonl").write_text("\n".join([*lines, '{"event": "two"}', ""]))
    assert read_events(tmp_path / "events.jsonl") == [{"event": "one"}, {"event": "two"}]


def test_an_event_that_fits_only_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("one")
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:9]))
    log.append("two")
    monkeypatch.undo()
    log.append("three")
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["one", "three"]
