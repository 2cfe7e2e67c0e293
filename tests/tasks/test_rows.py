from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import polars
import pytest

from loopscope._errors import LoopscopeError
from loopscope.tasks.rows import read_rows

ROWS = [{"prompt": "Größe?\u2028", "n": 1}, {"prompt": "b", "n": 2}]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "A.JSONL"])
def test_jsonl_rows_in_file_order_with_their_lines(jsonl: Callable[..., Path], name: str) -> None:
    path = jsonl(ROWS, name)
    rows = list(read_rows(path))
    assert [row.fields for row in rows] == ROWS
    assert [row.index for row in rows] == [0, 1]
    assert rows[1].where == f"{path}, line 2"


def test_parquet_rows_equal_the_jsonl_ones(tmp_path: Path) -> None:
    nested = [{**row, "choices": {"text": ["x", "y"], "label": ["A", "B"]}} for row in ROWS]
    polars.DataFrame(nested).write_parquet(tmp_path / "a.parquet")
    rows = list(read_rows(tmp_path / "a.parquet"))
    assert [row.fields for row in rows] == nested
    assert rows[1].where.endswith("a.parquet, row 1")


def test_a_line_separator_inside_a_text_does_not_end_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "x\u2028y\x85z"}\n', encoding="utf-8")
    assert next(read_rows(tmp_path / "a.jsonl")).fields == {"a": "x\u2028y\x85z"}


def test_blank_lines_and_a_byte_order_mark_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n{"a": 2}\n\n')
    rows = list(read_rows(tmp_path / "a.jsonl"))
    assert [(row.index, row.fields["a"]) for row in rows] == [(0, 1), (1, 2)]
    assert rows[1].where.endswith("line 3")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"a": 1}\n{"a": \n', r"a\.jsonl, line 2: not valid JSON \(Expecting value at column 7\)"),
        (b"[1, 2]\n", r"a\.jsonl, line 1: a JSON list, but each line must be one JSON object"),
        (b'{"a": 1}\n{"a": "\xff"}\n', r"a\.jsonl, line 2: not UTF-8 \(byte 7\)"),
        (b"[" * 100_000, r"a\.jsonl, line 1: not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", r"a\.jsonl, line 1: not valid JSON"),
        (b"", r"a\.jsonl has no rows"),
        (b"\n\n", r"a\.jsonl has no rows"),
    ],
    ids=["cut", "list", "latin-1", "deep", "huge", "empty", "blank"],
)
def test_a_bad_jsonl_file_names_file_and_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(LoopscopeError, match=complaint) as caught:
        list(read_rows(tmp_path / "a.jsonl"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-20], lambda data: b"not gzip at all", lambda data: data[:30] + b"\x00\xff\x00" + data[33:]],
    ids=["cut short", "another format", "bytes changed"],
)
def test_a_damaged_gzip_file_says_so(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    whole = gzip.compress(b"".join(b'{"a": %d}\n' % (n * 7919) for n in range(200)))
    (tmp_path / "a.jsonl.gz").write_bytes(damage(whole))
    with pytest.raises(LoopscopeError, match=r"a\.jsonl\.gz(, line \d+: not| is a damaged gzip file)") as caught:
        list(read_rows(tmp_path / "a.jsonl.gz"))
    assert "\n" not in str(caught.value)


def test_a_damaged_parquet_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(LoopscopeError, match=r"cannot read .*a\.parquet as Parquet") as caught:
        list(read_rows(tmp_path / "a.parquet"))
    assert "\n" not in str(caught.value)


def test_a_parquet_file_without_rows_says_so(tmp_path: Path) -> None:
    polars.DataFrame({"a": []}, schema={"a": polars.String}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(LoopscopeError, match="has no rows"):
        list(read_rows(tmp_path / "a.parquet"))


def test_missing_file_directory_and_other_kind(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    for name, complaint in [
        ("absent.jsonl", "does not exist"),
        ("folder.jsonl", "is a directory"),
        ("a.csv", r"use one of \.jsonl\.gz"),
    ]:
        with pytest.raises(LoopscopeError, match=complaint):
            list(read_rows(tmp_path / name))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_says_why(jsonl: Callable[..., Path]) -> None:
    path = jsonl(ROWS)
    path.chmod(0)
    with pytest.raises(LoopscopeError, match=r"cannot read .*Permission denied"):
        list(read_rows(path))
