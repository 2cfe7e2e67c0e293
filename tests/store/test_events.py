"""The log of a run: whole lines count, nothing depends on it."""

from collections.abc import Callable
from pathlib import Path

from loopscope.store import Manifest, StoredRun, open_or_create

Make = Callable[..., Manifest]


def test_lines_that_are_torn_or_not_objects_are_left_out(tmp_path: Path, make_manifest: Make) -> None:
    with open_or_create(tmp_path / "run", make_manifest()) as writer:
        writer.log("one", value=1, name="\udcff ∑")
    with (tmp_path / "run" / "events.jsonl").open("ab") as file:
        file.write(b"[]\n" + b"[" * 200_000 + b'\n{"event": "to')
    open_or_create(tmp_path / "run", make_manifest()).close()
    events = StoredRun(tmp_path / "run").events
    assert [event["event"] for event in events] == ["new", "one", "resumed"]
    assert events[1]["name"] == "\udcff ∑"


def test_a_run_without_its_log_is_read(tmp_path: Path, make_manifest: Make) -> None:
    open_or_create(tmp_path / "run", make_manifest()).close()
    (tmp_path / "run" / "events.jsonl").unlink()
    assert StoredRun(tmp_path / "run").events == []
