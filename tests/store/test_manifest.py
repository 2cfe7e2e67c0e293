"""The manifest: its one form, what it refuses, and when the same command continues a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from loopscope.errors import LoopscopeError
from loopscope.store import Manifest, StoredRun
from loopscope.store.manifest import BatchInfo, decode_manifest
from loopscope.store.writer import open_or_create

Contents = Callable[[Path], dict[str, bytes]]
Make = Callable[..., Manifest]


def test_a_manifest_survives_the_round_trip(make_manifest: Make) -> None:
    manifest = make_manifest()
    assert decode_manifest(manifest.encode(), "run") == manifest
    assert decode_manifest(manifest.encode(), "run").encode() == manifest.encode()
    ranges = [(unit.task, unit.start, unit.stop) for unit in manifest.units()]
    assert ranges == [("sums", 0, 3), ("sums", 3, 6), ("sums", 6, 7), ("choices", 0, 3), ("choices", 3, 5)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depths": (1, 2, 4)}, r"lack the ends \[5\]"),
        ({"depths": (2, 1, 4, 5)}, "must increase"),
        ({"transitions": (-1,)}, "greater than or equal to 0"),
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


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"\xff", b'{"schema_version": "x"}', b"[" * 200_000])
def test_what_is_not_a_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^(the whole|schema_version): .*"):
        decode_manifest(data, "run")


def changed(payload: dict[str, Any], path: tuple[Any, ...], value: Any) -> bytes:
    copy = json.loads(json.dumps(payload))
    at = copy
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return json.dumps(copy).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("batch", "size"), -1),
        (("depths", 4), 10**6),
        (("transitions",), list(range(100_000))),
        (("tasks", 0, "rows"), 3 * 900_000),
        (("settings", "lens"), 10**9),
        (("settings", "scales_to"), 1e308),
        (("settings", "protocol"), "mine"),
        (("settings", "training_step"), -5),
        (("schema_version",), 10**30),
    ],
)
def test_a_value_out_of_its_range_is_refused(path: tuple[Any, ...], value: Any, make_manifest: Make) -> None:
    payload = json.loads(make_manifest(settings={"lens": 3}).encode())
    with pytest.raises((ValueError, LoopscopeError)):
        decode_manifest(changed(payload, path, value), "run").units()


def changes(manifest: Manifest, task_info: Callable[..., Any]) -> Iterator[tuple[dict[str, Any], str]]:
    model, (sums, choices) = manifest.model, manifest.tasks
    weights = {"model.safetensors": "0" * 64}
    yield {"model": model.model_copy(update={"revision": "def"})}, "model.revision was 'abc123', is now 'def'"
    yield {"model": model.model_copy(update={"weights": weights})}, "the model is not the same (model.safetensors)"
    other = sums.model_copy(update={"data_sha256": "0" * 64, "limit": 9})
    yield {"tasks": (other, choices)}, "task.sums/test.limit was 7, is now 9; task.sums/test.data is not the same"
    more = task_info("more", "solution", 2)
    yield {"tasks": (sums, choices, more)}, "tasks was ['sums/test', 'choices/test'], is now"
    yield {"tasks": (sums,)}, "is now ['sums/test']"
    yield {"transitions": (4,)}, "transitions was [1, 4], is now [4]"
    yield {"level": "grid", "paths": False}, "level was 'full', is now 'grid'"
    yield {"libraries": {"torch": "2.14.0"}}, "libraries.torch was '2.13.0', is now '2.14.0'"
    yield {"seeds": {"initial_state": 1}}, "seeds.initial_state was 20260904, is now 1"
    yield {"batch": BatchInfo(policy="auto")}, "batch.policy was 'paper', is now 'auto'"
    yield {"settings": {"length_policy": "refuse", "x": 1}}, "settings.x was 'absent', is now 1"
    yield {"code_sha256": "0" * 64}, "code is not the same"
    many = {"device": "cuda", "tokens": False, "unit_size": 2, "seeds": {"initial_state": 1}, "transitions": (4,)}
    yield many, "; and 2 more"


def test_every_difference_is_refused_and_named(
    copy: Path, undisturbed: Path, make_manifest: Make, task_info: Callable[..., Any], contents: Contents
) -> None:
    for change, expected in changes(make_manifest(), task_info):
        with pytest.raises(LoopscopeError) as caught:
            open_or_create(copy, make_manifest(**change))
        message = str(caught.value)
        assert expected in message
        assert message.endswith("): choose another output=, or add overwrite=True to measure again")
        assert "\n" not in message
    assert contents(copy) == contents(undisturbed)


def test_a_folder_with_other_files_is_refused_untouched(tmp_path: Path, make_manifest: Make) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    with pytest.raises(LoopscopeError, match=r"not of a run \(thesis.tex\)"):
        open_or_create(tmp_path / "run", make_manifest())
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", ["report.html", "questions/extra.parquet", "units/000099.json", "tokens/old/1"])
def test_a_strange_file_inside_a_run_is_left_alone(name: str, copy: Path, make_manifest: Make) -> None:
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).write_text("not ours")
    with open_or_create(copy, make_manifest()) as writer:
        assert writer.status == "finished"
    assert (copy / name).read_text() == "not ours"


HARM: dict[str, Callable[[str], str | None]] = {
    "deleted": lambda text: None,
    "cut": lambda text: text[:200],
    "another type": lambda text: text.replace('"unit_size": 3', '"unit_size": "three"'),
    "lone surrogate": lambda text: text.replace('"refuse"', '"\\ud800"'),
    "another update": lambda text: text.replace("    4\n  ],", "    3\n  ],", 1),
    "more rows": lambda text: text.replace('"rows": 7', '"rows": 7000000000', 1),
    "another seed": lambda text: text.replace("20260904", "20260905"),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_lost_or_altered_manifest_is_one_line_and_a_copy_of_it_is_enough(
    harm: str, copy: Path, undisturbed: Path, make_manifest: Make, contents: Contents
) -> None:
    """Readers and writers say the same, without a word that the directory chose."""
    path = copy / "manifest.json"
    harmed = HARM[harm](path.read_text())
    path.unlink() if harmed is None else path.write_text(harmed)
    before = contents(copy)
    for use in (lambda: StoredRun(copy).finished, lambda: open_or_create(copy, make_manifest())):
        with pytest.raises(
            LoopscopeError, match=r"manifest\.json .*: put back a copy of it, or choose another output=$"
        ) as caught:
            use()
        assert "\n" not in str(caught.value)
    assert contents(copy) == before
    shutil.copy(undisturbed / "manifest.json", path)
    with open_or_create(copy, make_manifest()) as writer:
        assert writer.status == "finished"
