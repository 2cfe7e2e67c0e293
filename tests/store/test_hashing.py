"""Digests, and JSON that is not what loopscope wrote."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.regular_files import MOST_BYTES
from loopscope.store import Manifest, StoredRun, ids_sha256, open_or_create, verify
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


DEEP = {
    "lists": b"[" * 200_000,
    "closed lists": b"[" * 5_000 + b"]" * 5_000,
    "objects": b'{"a":' * 100_000,
    "a deep setting": b'{"schema_version": 1, "settings": {"x": ' + b"[" * 3_000 + b"]" * 3_000 + b"}}",
}


@pytest.fixture
def copy(tmp_path: Path, undisturbed: Path) -> Path:
    shutil.copytree(undisturbed, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("content", list(DEEP))
def test_a_deep_manifest_is_one_line(content: str, copy: Path, make_manifest: Callable[..., Manifest]) -> None:
    (copy / "manifest.json").write_bytes(DEEP[content])
    with pytest.raises(LoopscopeError, match=r"manifest\.json is damaged"):
        StoredRun(copy)
    with pytest.raises(LoopscopeError, match=r"manifest\.json is damaged"):
        open_or_create(copy, make_manifest())


@pytest.mark.parametrize("content", list(DEEP))
def test_a_deep_record_is_one_line(content: str, copy: Path) -> None:
    (copy / "units" / "000001.json").write_bytes(DEEP[content])
    with pytest.raises(LoopscopeError, match="unit 000001: the record does not match its own digest"):
        StoredRun(copy).read("questions")
    assert [finding.where for finding in verify(copy).findings] == ["unit 000001"]


@pytest.mark.parametrize("name", ["manifest.json", "events.jsonl"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "endless", "huge"])
def test_a_file_that_is_none_is_one_line(kind: str, name: str, copy: Path) -> None:
    path = copy / name
    path.unlink()
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "endless":
            path.symlink_to("/dev/zero")
        case "huge":
            with path.open("wb") as file:
                file.truncate(MOST_BYTES + 1)
    expected = "it has more than 64 MiB" if kind == "huge" else "it is not a regular file"
    with pytest.raises(LoopscopeError, match=rf"cannot read .*{name} \({expected}") as caught:
        StoredRun(copy).events  # noqa: B018
    assert "\n" not in str(caught.value)


def test_values_that_json_cannot_hold_are_damage(copy: Path) -> None:
    path = copy / "manifest.json"
    text = path.read_text()
    for value in ('"\\ud800"', "9" * 5_000):
        path.write_text(text.replace('"length_policy": "refuse"', f'"length_policy": {value}'))
        with pytest.raises(LoopscopeError, match=r"manifest.json is damaged"):
            StoredRun(copy)
