"""Readers refuse what does not match its hash, and the same command repairs it; see also `test_flipped_bits.py`."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from loopscope.errors import LoopscopeError
from loopscope.run import Run
from loopscope.store import Manifest, verify
from loopscope.store.run import StoredRun


def test_a_frame_that_was_scanned_before_the_damage_is_refused_when_it_is_collected(copy: Path) -> None:
    lazy = Run(copy).tokens.select(pl.col("gain").sum())
    assert lazy.collect().height == 1
    shard = copy / "tokens" / "000003.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(LoopscopeError, match=r"tokens/000003\.parquet does not match its hash; the same `measure`"):
        lazy.collect()


def test_the_same_command_repairs_what_readers_refuse(
    copy: Path, make_manifest: Callable[..., Manifest], measure: Callable[..., StoredRun], undisturbed: Path
) -> None:
    before = StoredRun(undisturbed).records
    for name in ("questions/000002.parquet", "units/000001.json"):
        data = bytearray((copy / name).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / name).write_bytes(data)
    with pytest.raises(LoopscopeError, match="the same `measure` command repairs it"):
        Run(copy).records  # noqa: B018
    assert measure(copy, make_manifest()).records.equals(before)
    assert verify(copy).ok
