from __future__ import annotations

import gzip
import itertools
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscope.errors import LoopscopeError
from loopscope.tasks.source_rows import MOST_ROW_BYTES, Selection, parse_ids, read_rows

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
        (b'{"a": 1, "b": 2, "a": 3}', r"a\.jsonl, line 1: not valid JSON \(key 'a' appears twice\)"),
        (b'{"a": {"b": 1, "b": 1}}', r"a\.jsonl, line 1: not valid JSON \(key 'b' appears twice\)"),
        (b'{"a": NaN}', r"a\.jsonl, line 1: not valid JSON \(NaN is not JSON\)"),
        (b'{"a": -Infinity}', r"a\.jsonl, line 1: not valid JSON \(-Infinity is not JSON\)"),
        (b'{"a": "' + b"x" * MOST_ROW_BYTES + b'"}', r"a\.jsonl, line 1 is longer than 8388608 bytes"),
        (b'{"a": 1}'.decode().encode("utf-16"), r"a\.jsonl, line 1: not UTF-8 \(byte 0\)"),
        (b"", r"a\.jsonl has no rows"),
        (b"\n\n", r"a\.jsonl has no rows"),
    ],
    ids=[
        *("cut", "list", "latin-1", "deep", "huge", "twice", "twice within", "nan", "infinity", "long", "utf-16"),
        *("empty", "blank"),
    ],
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


def test_a_gzip_file_that_unpacks_to_one_endless_line_is_refused_in_little_memory(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(b" " * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(LoopscopeError, match="line 1 is longer than 8388608 bytes"):
            list(read_rows(tmp_path / "a.jsonl.gz"))
        assert tracemalloc.get_traced_memory()[1] < 4 * MOST_ROW_BYTES
    finally:
        tracemalloc.stop()


def test_only_regular_files_and_links_to_them_are_read(jsonl: Callable[..., Path], tmp_path: Path) -> None:
    path = jsonl(ROWS)
    (tmp_path / "link.jsonl").symlink_to(path)
    assert [row.fields for row in read_rows(tmp_path / "link.jsonl")] == ROWS
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "endless.jsonl").symlink_to("/dev/zero")
    (tmp_path / "round.jsonl").symlink_to(tmp_path / "round.jsonl")
    for name, complaint in [
        ("pipe.jsonl", "is a pipe or a device; give a regular file"),
        ("endless.jsonl", "is a pipe or a device; give a regular file"),
        ("round.jsonl", "cannot read data file"),
        ("x" * 5000 + ".jsonl", "File name too long"),
        ("a\0b.jsonl", "null"),
    ]:
        with pytest.raises(LoopscopeError, match=complaint):
            list(read_rows(tmp_path / name))


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


def chosen(selection: Selection, total: int) -> list[int]:
    kept: list[int] = []
    for index in range(total):
        if selection.keeps(index, len(kept)):
            kept.append(index)
    return kept


@pytest.mark.parametrize("given", ["", "a", "1-", "-1", "3-1", "1,,2", "1.5", "٣", "1 2", "x" * 5000, "9" * 5000])
def test_bad_ids_are_refused(given: str) -> None:
    with pytest.raises(LoopscopeError, match="ids") as caught:
        parse_ids(given)
    assert len(str(caught.value)) < 300


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True), st.integers(1, 31))
def test_membership_and_check_agree_with_a_set(rows: list[int], total: int) -> None:
    selection = Selection.make(ids=rows)
    assert chosen(selection, 31) == sorted(rows)
    if beyond := sorted(row for row in rows if row >= total):
        with pytest.raises(LoopscopeError, match=f"names row {beyond[0]},"):
            selection.check(total, "x")
    else:
        selection.check(total, "x")


def test_subset_then_ids_then_limit_in_source_order() -> None:
    assert chosen(Selection(range(8), frozenset([7, 1, 3]), 2), 10) == [1, 3]
    assert chosen(Selection(range(3)), 10) == [0, 1, 2]
    assert chosen(Selection.make(limit=5), 3) == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"limit": 0}, "limit=0 is not a whole number of at least 1"),
        ({"ids": []}, "ids= names 0 rows"),
        ({"ids": [1, 2, 1]}, "names row 1 twice"),
        ({"ids": [3, -1]}, "names -1"),
        ({"ids": 5}, "ids=5 is not a list of source rows"),
        ({"ids": "0-5"}, "ids='0-5' is not a list of source rows"),
        ({"ids": [True]}, "ids= names True; source rows are whole numbers"),
        ({"ids": [1.0]}, "ids= names 1.0; source rows are"),
        ({"ids": itertools.count()}, "ids= names 1000001 rows"),
        ({"limit": "5"}, "limit='5' is not a whole number"),
        ({"limit": True}, "limit=True is not a whole number"),
    ],
)
def test_impossible_choices_are_refused(arguments: dict, complaint: str) -> None:
    with pytest.raises(LoopscopeError, match=complaint):
        Selection.make(**arguments)


def test_rows_that_are_not_there_are_refused() -> None:
    with pytest.raises(LoopscopeError, match="row 5, but x has rows 0 to 4"):
        Selection.make(ids=[5]).check(5, "x")
    with pytest.raises(LoopscopeError, match="row 4, but x has rows 0 to 2"):
        Selection(range(3), frozenset([4])).check(5, "x")
    with pytest.raises(LoopscopeError, match="fewer than the 9"):
        Selection(range(9)).check(5, "x")
