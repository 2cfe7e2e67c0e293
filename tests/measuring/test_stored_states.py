"""`keep_states=` and `continue_from=`: bit for bit the run that walked the whole way, or one line that says why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import loopscope as ls
from loopscope.errors import LoopscopeError
from loopscope.measuring.continued import StateSource
from loopscope.measuring.replay import replay
from loopscope.measuring.stored_states import _described, _rebuilt
from loopscope.store import StoredRun, verify

GOLDEN = Path(__file__).resolve().parents[1] / "models" / "golden"
IDS = [
    {"prompt_ids": [3, 5, 9, 2], "solution_ids": [11, 4, 7]},
    {"prompt_ids": [8, 1], "solution_ids": [6, 2, 2, 10, 4]},
    {"prompt_ids": [12, 7, 7, 3, 1], "solution_ids": [9]},
]
TEXTS = ["arithmetic", "arithmetic-mc"]
KEPT = 2
HOW: dict[str, Any] = {"unit_size": 2, "progress_style": "none", "device": "cpu"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def source(place: Path, checkpoint: Callable[..., str]) -> StoredRun:
    """A small Ouro on three questions of two tasks, kept at depth 2."""
    return ls.measure(checkpoint("ouro"), TEXTS, output=place / "kept", depths=1, keep_states=KEPT, limit=3, **HOW)


def same_tables(one: StoredRun, other: StoredRun) -> None:
    tables = [table.name for table in one.manifest.tables()]
    assert tables == [table.name for table in other.manifest.tables()]
    for table in tables:
        for unit in one.units:
            held, found = (run.layout.shard(table, unit).read_bytes() for run in (one, other))
            assert held == found, (table, unit)


CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "ouro": ("ouro", TEXTS, {"limit": 3, "tokens": True, "scalar_checks": 1}),
    "ouro, BF16, options in one row": (
        *("ouro", "arithmetic-mc"),
        {"limit": 3, "dtype": "bfloat16", "share_context": True, "level": "quick"},
    ),
    "huginn": ("huginn", TEXTS, {"limit": 2, "batch_size": 2, "level": "quick"}),
    "hrm_text, which carries z_L along": ("hrm_text", ls.Task.from_rows(IDS), {"tokens": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_continued_run_is_the_one_that_walked_the_whole_way(case: str, place: Path, checkpoint: Callable[..., str]):
    family, tasks, more = CASES[case]
    model = str(GOLDEN / family) if family == "hrm_text" else checkpoint(family)
    decides = {name: more[name] for name in ("limit", "dtype", "share_context", "batch_size") if name in more}
    folder = place / case.partition(",")[0] / str(len(case))
    ls.measure(model, tasks, output=folder / "kept", depths=1, level="quick", keep_states=KEPT, **decides, **HOW)
    asked = {"transitions": [KEPT, 3], "depths": 5, **more, **HOW}
    whole = ls.measure(model, tasks, output=folder / "whole", **asked)
    said: list[str] = []
    further = {"continue_from": folder / "kept", "keep_states": 4}
    continued = ls.measure(model, tasks, output=folder / "on", **asked, **further, notify=said.append)
    assert not said
    assert continued.manifest.depths == tuple(sorted({*whole.manifest.depths, 4}))
    rows = [run.depths.filter(run.depths["depth"] != 4) for run in (whole, continued)]
    assert rows[0].equals(rows[1])
    for table in whole.manifest.tables():
        if table.name != "depths":
            assert whole.read(table.name).equals(continued.read(table.name))
    # And once more from the second run's states.
    last = {**asked, "transitions": 4}
    again = ls.measure(model, tasks, output=folder / "last", **last, continue_from=folder / "on")
    same_tables(ls.measure(model, tasks, output=folder / "walked", **last), again)
    # What verify measures again, it walks the whole way.
    assert verify(continued, replay if family != "hrm_text" else None).findings == ()


def test_states_are_those_of_the_model(source: StoredRun, checkpoint: Callable[..., str]):
    model, tokenizer = ls.load_model(checkpoint("ouro")), ls.load_tokenizer(checkpoint("ouro"))
    examples = list(ls.load_task("arithmetic", limit=3).encode(tokenizer))
    seen = set()
    for unit in [unit for unit in source.units if unit.task == "arithmetic"]:
        held = load_file(source.states(unit))
        for number in range(sum(name.endswith(".rows") for name in held)):
            for place, row in enumerate(held[f"{number:03d}.rows"].tolist()):
                ids = list(examples[row].sequences[0].token_ids)
                assert held[f"{number:03d}.ids"][place, : len(ids)].tolist() == ids
                state = model.states(ls.Batch.from_rows([ids]), [KEPT])[KEPT]
                torch.testing.assert_close(held[f"{number:03d}.state"][place, : len(ids)], state[0])
                seen.add(row)
    assert seen == {0, 1, 2}


def test_a_damaged_file_of_states_is_measured_again(source: StoredRun, place: Path, checkpoint: Callable[..., str]):
    copy = place / "copy"
    shutil.copytree(source.path, copy)
    run = StoredRun(copy)
    path = run.layout.shard("states", run.units[1])
    original = path.read_bytes()
    path.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    assert [finding.kind for finding in verify(copy).findings] == ["damaged"]
    with pytest.raises(LoopscopeError, match="does not match its hash"):
        StoredRun(copy).states(run.units[1])
    (copy / "states" / "000002.safetensors").unlink()
    ls.measure(checkpoint("ouro"), TEXTS, output=copy, depths=1, keep_states=KEPT, limit=3, **HOW)
    assert path.read_bytes() == original
    assert verify(copy).ok
    assert (copy / "complete.json").read_bytes() == (source.path / "complete.json").read_bytes()


def test_the_source_belongs_to_identity(source: StoredRun, place: Path, checkpoint: Callable[..., str]):
    on = ls.measure(checkpoint("ouro"), TEXTS, output=place / "on", depths=3, limit=3, continue_from=source.path, **HOW)
    named = on.manifest.settings["continue_from"]
    assert named == StateSource(source.path).identity
    assert named["depth"] == KEPT
    assert named["records_sha256"] == json.loads((source.path / "complete.json").read_text())["records_sha256"]
    assert "keep_states" in source.manifest.settings
    with pytest.raises(LoopscopeError, match=r"holds another run \(settings\.continue_from"):
        ls.measure(checkpoint("ouro"), TEXTS, output=place / "on", depths=3, limit=3, **HOW)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "other weights": ({"model": "other"}, r"model\.weights"),
    "fewer questions": ({"limit": 2}, r"task\.arithmetic/test\.rows"),
    "other questions": ({"ids": "1-3"}, "ids_sha256"),
    "other batches": ({"batch_size": 2}, r"batch\.policy"),
    "other units": ({"unit_size": 4}, "unit_size was 2"),
    "another dtype": ({"dtype": "bfloat16"}, r"model\.dtype was 'float32'"),
    "options in one row": ({"share_context": True}, r"settings\.share_context"),
    "own answers": ({"reference": "own"}, r"settings\.reference"),
    "an earlier depth": ({"depths": 1}, "goes on from depth 2, and depth 1 lies before it"),
    "a trace": ({"trace": True}, "trace= begins at the first loop"),
    "no such run": ({"continue_from": "nowhere"}, "nowhere is no run"),
    "a number": ({"continue_from": 3}, "continue_from= takes a name or a path"),
    "a depth that is none": ({"keep_states": -1}, "keep_states=-1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(name: str, source: StoredRun, place: Path, checkpoint: Callable[..., str]):
    changed, line = REFUSED[name]
    asked = {"model": checkpoint("ouro"), "depths": 3, "limit": 3, "continue_from": source.path, **HOW, **changed}
    if asked["model"] == "other":
        asked |= {"model": checkpoint("ouro"), "random_weights": True}
    with pytest.raises(LoopscopeError, match=line) as error:
        ls.measure(asked.pop("model"), TEXTS, output=place / "refused", **asked)
    assert "\n" not in str(error.value)
    assert not (place / "refused").exists()


def test_a_run_without_states_or_unfinished_is_refused(source: StoredRun, place: Path, checkpoint: Callable[..., str]):
    ls.measure(checkpoint("ouro"), "arithmetic", output=place / "without", depths=1, limit=1, **HOW)
    with pytest.raises(LoopscopeError, match="keeps no states: measure that run with keep_states=4"):
        StateSource(place / "without")
    copy = place / "unfinished"
    shutil.copytree(source.path, copy)
    (copy / "complete.json").unlink()
    with pytest.raises(LoopscopeError, match="is not finished"):
        StateSource(copy)


def test_other_tokens_than_stored_are_refused(source: StoredRun, place: Path, checkpoint: Callable[..., str]):
    """Whatever else agrees: a file that was made for other tokens does not pass."""
    from loopscope.measuring.layout import collate
    from loopscope.measuring.plan import QuestionEncoder
    from loopscope.measuring.stored_states import StoredStates
    from loopscope.models.walk import Walk

    loaded = ls.load_task("arithmetic", limit=3)
    questions = QuestionEncoder(ls.load_tokenizer(checkpoint("ouro")), None, "error").questions(loaded, loaded.rows, 0)
    stored = StoredStates(source.states(source.units[0]))
    batch = stored.batches(questions)[0]
    midway, model = stored.midway(batch), ls.load_model(checkpoint("ouro"))
    assert midway is not None
    walk = Walk.of(model, collate(batch).batch)
    midway.tensors["ids"][0, 0] += 1
    with pytest.raises(LoopscopeError, match="of other tokens"):
        midway.resume(walk, None)
    assert stored.midway(questions) is None


def test_the_form_of_a_carry_survives():
    found: dict[str, torch.Tensor] = {}
    carry = [torch.ones(2), (None, {"a": torch.zeros(1), "b": 3.5}), "x"]
    form = json.loads(json.dumps(_described(carry, "carry", found, "m")))
    back = _rebuilt(form, found)
    assert (back[1][0], back[1][1]["b"], back[2]) == (None, 3.5, "x")
    assert isinstance(back[1], tuple)
    assert back[0] is carry[0]
    with pytest.raises(LoopscopeError, match="m carries a object along, which keep_states= cannot store"):
        _described(object(), "carry", {}, "m")


def test_the_plan_says_what_states_take(source: StoredRun, checkpoint: Callable[..., str]):
    asked = {"depths": 1, "limit": 3, "unit_size": 2, "device": "cpu", "seconds": 0.01}
    cost = ls.plan(checkpoint("ouro"), TEXTS, keep_states=KEPT, **asked)
    taken = sum(source.states(unit).stat().st_size for unit in source.units)
    assert cost.states == pytest.approx(taken, rel=0.2)
    assert "of it kept states" in str(cost)
    without = ls.plan(checkpoint("ouro"), TEXTS, **asked)
    assert without.states == 0
    assert "kept states" not in str(without)
    on = ls.plan(checkpoint("ouro"), TEXTS, **{**asked, "depths": 3}, continue_from=source.path)
    assert on.batches == without.batches


def test_the_plan_counts_own_answers(checkpoint: Callable[..., str]):
    asked = {"depths": 1, "limit": 2, "unit_size": 1, "device": "cpu", "seconds": 0.01}
    own = ls.plan(checkpoint("ouro"), TEXTS, reference="own", **asked)
    assert 0 < own.answering < own.seconds
    assert "of it for own answers" in str(own)
    assert ls.plan(checkpoint("ouro"), TEXTS, **asked).answering == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("model", ["toy-ouro", "toy-huginn"])
def test_the_same_on_a_gpu(model: str, place: Path):
    asked = {"limit": 8, "unit_size": 4, "device": "cuda", "level": "quick", "progress_style": "none"}
    folder = place / f"gpu-{model}"
    ls.measure(model, TEXTS, output=folder / "kept", depths=1, keep_states=KEPT, **asked)
    whole = ls.measure(model, TEXTS, output=folder / "whole", transitions=4, **asked)
    on = ls.measure(model, TEXTS, output=folder / "on", transitions=4, continue_from=folder / "kept", **asked)
    same_tables(whole, on)
    assert all(check.same == check.compared for check in on.verify(bitwise=True).bitwise)
