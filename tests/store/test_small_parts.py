"""Hashing, events, atomic writes and the cost of importing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loopscope.store as store
from loopscope._errors import LoopscopeError
from loopscope.store import code_sha256, ids_sha256
from loopscope.store.atomic import partial_path, publish, write_atomically, write_partial
from loopscope.store.events import EventLog, read_events


@given(st.lists(st.text()), st.lists(st.text()))
def test_only_equal_identifier_lists_have_equal_digests(one: list[str], two: list[str]) -> None:
    assert (ids_sha256(one) == ids_sha256(two)) == (one == two)


def test_the_code_digest_sees_measuring_code_and_nothing_else(tmp_path: Path) -> None:
    for name in ("measure/a.py", "report/b.py", "_version.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    before = code_sha256(tmp_path)
    (tmp_path / "report" / "b.py").write_text("x = 2\n")
    (tmp_path / "measure" / "notes.txt").write_text("not code")
    assert code_sha256(tmp_path) == before
    (tmp_path / "measure" / "a.py").write_text("x = 2\n")
    changed = code_sha256(tmp_path)
    assert changed != before
    (tmp_path / "measure" / "a.py").rename(tmp_path / "measure" / "c.py")
    assert code_sha256(tmp_path) != changed


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")
    write_partial(target, b"new")
    assert target.read_bytes() == b"old"
    publish([target])
    assert target.read_bytes() == b"new"
    assert not partial_path(target).exists()


def test_writing_into_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LoopscopeError, match=r"cannot write .*gone/file.partial: No such file or directory"):
        write_atomically(tmp_path / "gone" / "file", b"x")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
    write_atomically(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_torn_event_is_skipped_and_the_next_one_whole(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.append("one", value=1)
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "to')
    log.append("two")
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["one", "two"]
    assert read_events(tmp_path / "none") == []


def test_importing_the_store_brings_in_no_heavy_library() -> None:
    heavy = ["torch", "numpy", "pyarrow", "polars", "pydantic"]
    script = f"import sys, loopscope.store; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_resolves_to_the_same_thing_twice() -> None:
    for name in store.__all__:
        first = getattr(store, name)
        assert not isinstance(first, type(store)), f"{name} is a module"
        assert getattr(store, name) is first
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        store.nonsense  # noqa: B018
