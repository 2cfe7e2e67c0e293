"""The manifest: its one form, what it refuses, and the layout margins that follow from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from loopscope.store import Manifest
from loopscope.store.manifest import ManifestDamageError, decode_manifest

Make = Callable[..., Manifest]


def test_a_manifest_survives_the_round_trip(make_manifest: Make) -> None:
    manifest = make_manifest()
    assert decode_manifest(manifest.encode(), "run") == manifest
    assert decode_manifest(manifest.encode(), "run").encode() == manifest.encode()


def test_units_follow_from_the_manifest(make_manifest: Make) -> None:
    ranges = [(unit.task, unit.start, unit.stop) for unit in make_manifest().units()]
    assert ranges == [("sums", 0, 3), ("sums", 3, 6), ("sums", 6, 7), ("choices", 0, 3), ("choices", 3, 5)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depths": (1, 2, 4)}, r"lack the ends \[5\]"),
        ({"depths": (2, 1, 4, 5)}, "must increase"),
        ({"transitions": (4, 4)}, "must increase"),
        ({"transitions": (-1,)}, "greater than or equal to 0"),
        ({"unit_size": 0}, "greater than or equal to 1"),
        ({"level": "everything"}, "'quick', 'grid' or 'full'"),
        ({"level": "grid"}, "paths are stored at level full only"),
        ({"code_sha256": "short"}, "pattern"),
        ({"tasks": ()}, "at least 1"),
        ({"colour": "red"}, "Extra inputs"),
    ],
)
def test_a_contradictory_manifest_is_refused(change: dict[str, Any], message: str, make_manifest: Make) -> None:
    with pytest.raises(ValidationError, match=message):
        make_manifest(**change)


def test_a_task_may_occur_once(make_manifest: Make, task_info: Callable[..., Any]) -> None:
    task = task_info("sums", "solution", 3)
    with pytest.raises(ValidationError, match="may occur once"):
        make_manifest(tasks=(task, task))


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"\xff", b'{"schema_version": "x"}'])
def test_what_is_no_manifest_is_damage(data: bytes) -> None:
    with pytest.raises(ManifestDamageError):
        decode_manifest(data, "run")
