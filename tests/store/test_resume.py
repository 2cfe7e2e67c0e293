"""The same command continues; another model, datum or setting is refused with the difference named."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loopscope.errors import LoopscopeError
from loopscope.store import BatchInfo, Manifest, StoredRun, open_or_create

Contents = Callable[[Path], dict[str, bytes]]
Make = Callable[..., Manifest]
Measure = Callable[..., StoredRun]


@pytest.fixture
def copy(tmp_path: Path, undisturbed: Path) -> Path:
    shutil.copytree(undisturbed, tmp_path / "run")
    return tmp_path / "run"


def changes(manifest: Manifest, task_info: Callable[..., Any]) -> dict[str, tuple[dict[str, Any], str]]:
    model, (sums, choices) = manifest.model, manifest.tasks
    more = task_info("more", "solution", 2)
    return {
        "model": ({"model": model.model_copy(update={"revision": "def"})}, "model.revision was 'abc123', is now 'def'"),
        "weights": (
            {"model": model.model_copy(update={"weights": {"model.safetensors": "0" * 64}})},
            "model.weights.model.safetensors was",
        ),
        "random": (
            {"model": model.model_copy(update={"random_weights": True})},
            "model.random_weights was False, is now True",
        ),
        "data": (
            {"tasks": (sums.model_copy(update={"data_sha256": "0" * 64}), choices)},
            "task.sums/test.data_sha256 was",
        ),
        "template": (
            {"tasks": (sums, choices.model_copy(update={"template_sha256": "0" * 64}))},
            "task.choices/test.template_sha256 was",
        ),
        "limit": (
            {"tasks": (sums.model_copy(update={"limit": 9}), choices)},
            "task.sums/test.limit was 7, is now 9",
        ),
        "added task": ({"tasks": (sums, choices, more)}, "task.more/test was absent, is now present"),
        "dropped task": ({"tasks": (sums,)}, "task.choices/test was present, is now absent"),
        "order": ({"tasks": (choices, sums)}, "tasks was ['sums/test', 'choices/test'], is now"),
        "transitions": ({"transitions": (4,)}, "transitions was [1, 4], is now [4]"),
        "depths": ({"depths": (1, 2, 4, 5)}, "depths was [1, 2, 3, 4, 5], is now [1, 2, 4, 5]"),
        "level": ({"level": "grid", "paths": False}, "level was 'full', is now 'grid'"),
        "tokens": ({"tokens": False}, "tokens was True, is now False"),
        "device": ({"device": "cuda"}, "device was 'cpu', is now 'cuda'"),
        "library": ({"libraries": {"torch": "2.14.0"}}, "libraries.torch was '2.13.0', is now '2.14.0'"),
        "seed": ({"seeds": {"initial_state": 1}}, "seeds.initial_state was 20260904, is now 1"),
        "batch": ({"batch": BatchInfo(policy="auto")}, "batch.policy was 'paper', is now 'auto'"),
        "unit size": ({"unit_size": 4}, "unit_size was 3, is now 4"),
        "setting": ({"settings": {"length_policy": "skip"}}, "settings.length_policy was 'refuse', is now 'skip'"),
        "new setting": ({"settings": {"length_policy": "refuse", "x": 1}}, "settings.x was absent, is now 1"),
        "version": ({"loopscope_version": "0.2.0"}, "loopscope_version was '0.1.0', is now '0.2.0'"),
        "code": ({"code_sha256": "0" * 64}, "code_sha256 was"),
    }


def test_every_difference_is_refused_and_named(
    copy: Path, undisturbed: Path, make_manifest: Make, task_info: Callable[..., Any], contents: Contents
) -> None:
    for change, expected in changes(make_manifest(), task_info).values():
        with pytest.raises(LoopscopeError) as caught:
            open_or_create(copy, make_manifest(**change, command_line=("loopscope", "measure", "--model", "other")))
        message = str(caught.value)
        assert expected in message
        assert message.endswith("): choose another output=")
        assert "\n" not in message
    assert contents(copy) == contents(undisturbed)


def test_an_older_run_that_names_a_seed_nobody_draws_from_goes_on(copy: Path, make_manifest: Make) -> None:
    with open_or_create(copy, make_manifest(seeds={})) as writer:
        assert writer.status == "finished"


def test_many_differences_are_counted(copy: Path, make_manifest: Make) -> None:
    other = make_manifest(device="cuda", tokens=False, unit_size=2, seeds={"initial_state": 1}, transitions=(4,))
    with pytest.raises(LoopscopeError, match="; and 2 more"):
        open_or_create(copy, other)


def test_another_command_line_with_the_same_settings_continues(
    copy: Path, undisturbed: Path, make_manifest: Make, contents: Contents
) -> None:
    with open_or_create(copy, make_manifest(command_line=("loopscope", "measure", "--progress", "none"))) as writer:
        assert writer.status == "finished"
        assert writer.manifest.command_line == ()
    assert contents(copy) == contents(undisturbed)
    assert StoredRun(copy).events[-1]["command_line"] == ["loopscope", "measure", "--progress", "none"]


def test_a_folder_with_other_files_is_refused_untouched(tmp_path: Path, make_manifest: Make) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    (tmp_path / "run" / "units").mkdir()
    with pytest.raises(LoopscopeError, match=r"not of a run \(thesis.tex and 1 more\)"):
        open_or_create(tmp_path / "run", make_manifest())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["thesis.tex", "units"]


def test_an_empty_folder_is_taken(tmp_path: Path, measure: Measure) -> None:
    (tmp_path / "run").mkdir()
    assert measure(tmp_path / "run").finished


@pytest.mark.parametrize("name", ["questions/extra.parquet", "units/000099.json", "tokens/old/000001.parquet"])
def test_a_strange_file_inside_a_table_is_left_alone(name: str, copy: Path, make_manifest: Make) -> None:
    stranger = copy / name
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_text("not ours")
    with open_or_create(copy, make_manifest()) as writer:
        assert writer.status == "finished"
    assert stranger.read_text() == "not ours"


def test_a_file_beside_the_run_is_left_alone(copy: Path, make_manifest: Make) -> None:
    (copy / "report.html").write_text("<p>")
    with open_or_create(copy, make_manifest()) as writer:
        assert writer.status == "finished"
    assert (copy / "report.html").read_text() == "<p>"


@pytest.mark.parametrize("harm", ["deleted", "cut", "empty", "value"])
def test_a_lost_manifest_is_one_line_and_a_copy_of_it_is_enough(
    harm: str, copy: Path, undisturbed: Path, make_manifest: Make, contents: Contents
) -> None:
    path = copy / "manifest.json"
    text = path.read_text()
    match harm:
        case "deleted":
            path.unlink()
        case "cut":
            path.write_text(text[:200])
        case "empty":
            path.write_text("")
        case "value":
            path.write_text(text.replace('"unit_size": 3', '"unit_size": "three"'))
    before = contents(copy)
    refused(copy, make_manifest())
    assert contents(copy) == before
    path.write_text(text)
    with open_or_create(copy, make_manifest()) as writer:
        assert writer.status == "finished"
    assert contents(copy) == contents(undisturbed)


def refused(run: Path, wanted: Manifest) -> None:
    """Readers and writers say the same, without a word that the directory chose."""
    for use in (lambda: StoredRun(run).finished, lambda: open_or_create(run, wanted)):
        with pytest.raises(
            LoopscopeError, match=r"manifest\.json .*: put back a copy of it, or choose another output=$"
        ) as caught:
            use()
        assert "\n" not in str(caught.value)
        assert "loopscope measure" not in str(caught.value)


ALTERED = {"transitions": ("    4\n  ],", "    3\n  ],"), "unit size": ('"unit_size": 3', '"unit_size": 4')}
ALTERED |= {"rows": ('"rows": 7', '"rows": 7000000000')}
ALTERED |= {"seed": ("20260904", "20260905")}


@pytest.mark.parametrize("field", list(ALTERED))
def test_an_altered_manifest_is_one_line(field: str, copy: Path, make_manifest: Make, contents: Contents) -> None:
    path = copy / "manifest.json"
    altered = path.read_text().replace(*ALTERED[field], 1)
    assert altered != path.read_text()
    path.write_text(altered)
    before = contents(copy)
    refused(copy, make_manifest())
    assert contents(copy) == before


def test_the_same_command_with_other_code_is_not_told_to_repeat_itself(copy: Path, make_manifest: Make) -> None:
    with pytest.raises(LoopscopeError, match=r"code_sha256 was .*: choose another output=$"):
        open_or_create(copy, make_manifest(code_sha256="0" * 64))


def test_a_run_that_measured_nothing_yet_may_be_removed(tmp_path: Path, make_manifest: Make) -> None:
    open_or_create(tmp_path / "run", make_manifest()).close()
    with pytest.raises(LoopscopeError, match=r"choose another output= or remove .*run, which holds no measured unit"):
        open_or_create(tmp_path / "run", make_manifest(device="cuda"))
    shutil.rmtree(tmp_path / "run")
    open_or_create(tmp_path / "run", make_manifest(device="cuda")).close()
