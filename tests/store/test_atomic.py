"""A file is whole or absent."""

import os
from pathlib import Path

import pytest

from loopscope.errors import LoopscopeError
from loopscope.store.atomic import write_atomically


def test_writing_into_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LoopscopeError, match=r"cannot write .*gone/file.partial: No such file or directory"):
        write_atomically(tmp_path / "gone" / "file", b"x")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
    write_atomically(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"
