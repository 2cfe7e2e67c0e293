"""Digests, and JSON that is not what loopscope wrote."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.store import StoredRun, ids_sha256, verify
from loopscope.store.hashing import code_sha256


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


@pytest.fixture
def copy(tmp_path: Path, undisturbed: Path) -> Path:
    shutil.copytree(undisturbed, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["manifest.json", "events.jsonl"])
def test_a_pipe_in_place_of_a_file_is_one_line(name: str, copy: Path) -> None:
    (copy / name).unlink()
    os.mkfifo(copy / name)
    with pytest.raises(LoopscopeError, match=rf"cannot read .*{name} \(it is not a regular file"):
        StoredRun(copy).events  # noqa: B018


@pytest.mark.parametrize("content", ["", "[" * 200_000, '{"a":' * 100_000])
def test_a_record_that_is_no_json_is_one_line(content: str, copy: Path) -> None:
    (copy / "units" / "000001.json").write_text(content)
    with pytest.raises(LoopscopeError, match="unit 000001: the record does not match its own digest"):
        StoredRun(copy).read("questions")
    assert [finding.where for finding in verify(copy).findings] == ["unit 000001"]


def test_values_that_json_cannot_hold_are_damage(copy: Path) -> None:
    path = copy / "manifest.json"
    text = path.read_text()
    for value in ('"\\ud800"', "9" * 5_000):
        path.write_text(text.replace('"length_policy": "refuse"', f'"length_policy": {value}'))
        with pytest.raises(LoopscopeError, match=r"manifest.json is damaged"):
            StoredRun(copy)
