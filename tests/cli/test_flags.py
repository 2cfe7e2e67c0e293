"""`--config`: text as it stands there, the checks of the command line, and files that are no list of flags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loopscope.cli.app import exit_code
from loopscope.cli.flags import MOST_BYTES, read_flags
from loopscope.errors import LoopscopeError

KNOWN = ["transitions", "limit", "unit_size", "tokens", "dtype", "tasks", "config"]


def flags(tmp_path: Path, content: str | bytes) -> dict[str, str]:
    path = tmp_path / "flags.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_flags(str(path), KNOWN)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("limit: 010", {"limit": "010"}),
        ("transitions: 1:30", {"transitions": "1:30"}),
        ("unit-size: true", {"unit_size": "true"}),
        ("--unit_size: 6_4", {"unit_size": "6_4"}),
        ("transitions: [1-4, 8]", {"transitions": "1-4,8"}),
        ("limit: {gsm8k: 100, piqa: 50}", {"limit": "gsm8k=100,piqa=50"}),
        ("dtype: null\nlimit: ~\ntasks:", {}),
        ("", {}),
        ("# nothing", {}),
    ],
)
def test_values_stay_text(content: str, expected: dict[str, str], tmp_path: Path) -> None:
    assert flags(tmp_path, content) == expected


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(f'*{before}' for _ in range(10))}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("limits: 5", "sets unknown flag 'limits'; known flags: dtype, limit"),
        ("config: other.yaml", "sets unknown flag 'config'"),
        ("- limit", "must be a mapping of flags to values"),
        ("limit: {gsm8k: [1]}", "must be a mapping of flags to values"),
        ("limit: " + "[" * 3000 + "]" * 3000, "must be a mapping of flags to values"),
        (BOMB.replace("a:", "limit:", 1).replace("b:", "tasks:", 1), "must be a mapping of flags to values"),
        ("limit: [", "is not YAML"),
        ("limit: *nothing", "is not YAML"),
        ("dtype: café".encode("latin-1"), "is not UTF-8 (byte 10)"),
        ("# " + "x" * MOST_BYTES, "is larger than 1000000 bytes"),
    ],
    ids=lambda given: str(given)[:30],
)
def test_what_is_no_list_of_flags_is_refused(content: str | bytes, expected: str, tmp_path: Path) -> None:
    with pytest.raises(LoopscopeError) as caught:
        flags(tmp_path, content)
    assert expected in str(caught.value)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for path, complaint in [
        (tmp_path / "none.yaml", "does not exist"),
        (tmp_path, "is a directory"),
        (tmp_path / "pipe.yaml", "is a pipe or a device"),
        (Path("/dev/zero"), "is a pipe or a device"),
        (tmp_path / ("x" * 300), "File name too long"),
    ]:
        with pytest.raises(LoopscopeError, match=complaint):
            read_flags(str(path), KNOWN)


def test_flags_of_every_type_reach_the_command(tmp_path: Path) -> None:
    from loopscope.store import StoredRun

    (tmp_path / "flags.yaml").write_text(
        "model: toy-ouro\ntasks: [arithmetic]\ntransitions: 4\ntokens: yes\nnum-fewshot: 1\nlimit: 3\nlevel: quick\n"
    )
    command = ["measure", "--config", str(tmp_path / "flags.yaml"), "--output", str(tmp_path / "run"), "--limit", "2"]
    assert exit_code([*command, "--progress", "none"]) == 0
    manifest = StoredRun(tmp_path / "run").manifest
    assert (manifest.tokens, manifest.settings["num_fewshot"], manifest.tasks[0].rows, manifest.level.value) == (
        True,
        1,
        2,
        "quick",
    )
