"""The manifest: its one form, what it refuses, and the layout margins that follow from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from loopscope.errors import LoopscopeError
from loopscope.store import Manifest
from loopscope.store.manifest import DEEPEST, MOST_UNITS, decode_manifest

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
def test_what_is_not_a_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"schema version|schema_version|Field required"):
        decode_manifest(data, "run")


ABSURD: list[Any] = [None, -1, 10**12, 10**30, 1e308, float("nan"), True, "x" * 1000, [], {}, "\ud800"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every scalar and list of a manifest."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield path
        yield from places(value[0], (*path, 0))
    else:
        yield path


def changed(payload: dict[str, Any], path: tuple[Any, ...], value: Any) -> bytes:
    copy = json.loads(json.dumps(payload))
    at = copy
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return json.dumps(copy).encode()


def test_an_absurd_value_is_refused_in_one_line_or_is_a_value_of_the_field(make_manifest: Make) -> None:
    """Every field of the declaration, with every absurd value: never anything but a refusal or a valid manifest."""
    settings = {"lens": 3, "scales_to": 2.0, "protocol": "paper", "certify": True, "training_step": 5, "note": "x"}
    payload = json.loads(make_manifest(settings=settings).encode())
    refused = accepted = 0
    for path in places(payload):
        for value in ABSURD:
            try:
                manifest = decode_manifest(changed(payload, path, value), "run")
                units = manifest.units()
            except (ValueError, LoopscopeError) as error:
                refused += "\n" not in str(error) and len(str(error)) < 400
            else:
                accepted += 1
                assert len(units) <= MOST_UNITS
                assert max(manifest.depths) <= DEEPEST
                assert manifest.lens <= 100
    assert refused > 300
    assert refused + accepted == len(list(places(payload))) * len(ABSURD)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("batch", "size"), -1),
        (("depths", 0), -1),
        (("depths", 4), 10**6),
        (("transitions",), list(range(100_000))),
        (("tasks", 0, "rows"), 3 * 900_000),
        (("settings", "lens"), 10**9),
        (("settings", "lens"), -3),
        (("settings", "scales_to"), 1e308),
        (("settings", "scales_to"), float("nan")),
        (("settings", "protocol"), "mine"),
        (("settings", "training_step"), -5),
        (("unit_size",), 10**30),
        (("schema_version",), 10**30),
        (("schema_version",), -1),
    ],
)
def test_a_value_out_of_its_range_is_refused(path: tuple[Any, ...], value: Any, make_manifest: Make) -> None:
    payload = json.loads(make_manifest(settings={"lens": 3}).encode())
    with pytest.raises((ValueError, LoopscopeError)):
        decode_manifest(changed(payload, path, value), "run").units()
