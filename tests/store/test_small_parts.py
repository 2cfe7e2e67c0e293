"""Hashing, events, atomic writes and the cost of importing."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loopscope.store as store
from loopscope.errors import LoopscopeError
from loopscope.store import code_sha256, hashing, ids_sha256
from loopscope.store.atomic import partial_path, publish, write_atomically, write_partial
from loopscope.store.hashing import EventLog, read_events


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


def test_a_file_is_hashed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    asked: list[Path] = []

    def counted(path: Path) -> str:
        asked.append(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr(hashing, "sha256_file", counted)
    for _ in range(2):
        assert hashing.sha256_once(path) == hashlib.sha256(b"one").hexdigest()
    assert len(asked) == 2, "a file that has just changed may change again within one tick of its clock"
    monkeypatch.setattr(hashing, "_SETTLED_NS", -1)
    for _ in range(3):
        assert hashing.sha256_once(path) == hashlib.sha256(b"one").hexdigest()
    assert len(asked) == 3
    times = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert hashing.sha256_once(path) == hashlib.sha256(b"two").hexdigest()
    path.unlink()
    path.write_bytes(b"six")
    assert hashing.sha256_once(path) == hashlib.sha256(b"six").hexdigest()


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
