"""The monitor: its numbers are those of `loopscope measure`, and the training does not notice it."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest
import torch

import loopscope as ls
from loopscope.api import measure_with
from loopscope.monitor_log import read_monitor_log
from loopscope.store import StoredRun


def trained(model, steps, monitor=None, *, seed=1):
    """A training that draws from every global stream; the monitor is asked where gradients are there."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(1, steps + 1):
        width = random.randint(4, 9) + int(np.random.randint(0, 3))  # noqa: NPY002
        loss = model.loss(torch.randint(0, model.vocabulary_size, (4, width)))
        loss.backward()
        if monitor is not None:
            monitor.step(step)
        optimiser.step()
        optimiser.zero_grad()
    return optimiser


def means_of(run: StoredRun, transition: int) -> dict[str, float]:
    """What a run says of an update, in the words of a monitor."""
    rows = StoredRun(run.path).read("questions").filter(transition=transition).sort("row")
    gain, slope, quadratic = (rows[name].to_numpy() for name in ("gain", "slope", "quadratic"))
    quarter = np.stack(rows["grid_gain"].to_list())[:, 5]
    outcome, best = rows["outcome"].to_numpy(), rows["quadratic_gain"].to_numpy()
    found = {
        "gain": gain,
        "slope": slope,
        "quadratic": quadratic,
        "accumulated_curvature": gain - slope,
        "utility_before": rows["utility_before"].to_numpy(),
        "utility_after": rows["utility_after"].to_numpy(),
        "quadratic_scale": rows["quadratic_scale"].to_numpy(),
        "quarter_gain": quarter,
        "quadratic_gain": best,
        "progressing": outcome == ls.Outcome.PROGRESSING,
        "neutral": outcome == ls.Outcome.NEUTRAL,
        "directional": outcome == ls.Outcome.DIRECTIONAL_FAILURE,
        "finite_step": outcome == ls.Outcome.FINITE_STEP_FAILURE,
        "harmful": gain < 0,
        "sign_slope": (slope > 0) == (gain > 0),
        "sign_quadratic": (slope + quadratic > 0) == (gain > 0),
        "share": (slope > 0)[gain < 0],
        "quarter_recovery": quarter[(gain < 0) & (slope > 0)] > 0,
        "quadratic_recovery": best[(gain < 0) & (slope > 0)] > 0,
    }
    return {name: float(np.mean(values)) for name, values in found.items() if len(values)}


@pytest.mark.parametrize("affine", [True, False])
def test_its_numbers_are_those_of_measure_for_the_saved_checkpoint(tmp_path, small, task, affine):
    model = small(affine=affine)
    monitor = ls.Monitor(model, task, transitions=[1, 2, 6], depths=[4], every=10)
    optimiser = trained(model, 30)
    record = monitor.measure(30)
    torch.save(model.state_dict(), tmp_path / "checkpoint.pt")
    trained(model, 2)  # goes on: what was found is of the checkpoint

    again = small(affine=affine)
    again.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    asked = {"transitions": [1, 2, 6], "depths": [4]}
    run = measure_with(again, task, **asked, output=tmp_path / "run")
    # A run interpolates φ of a nonlinear readout between the scales of its derivatives; the monitor evaluates it.
    evaluated = measure_with(again, task, **asked, interpolate=False, output=tmp_path / "every-scale")
    assert [row["transition"] for row in record.updates] == [1, 2, 6]
    for row in record.updates:
        expected, at_every_scale = (means_of(each, row["transition"]) for each in (run, evaluated))
        expected |= {name: at_every_scale[name] for name in ("quarter_gain", "quadratic_gain")}
        assert row["questions"] == 12
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-9)
        assert row["gain_se"] == pytest.approx(
            StoredRun(run.path).read("questions").filter(transition=row["transition"])["gain"].std() / 12**0.5, rel=1e-6
        )
    stored = StoredRun(run.path).read("depths")
    assert [row["depth"] for row in record.depths] == [1, 2, 3, 4, 6, 7]
    for row in record.depths:
        assert row["utility"] == pytest.approx(stored.filter(depth=row["depth"])["utility"].mean(), abs=1e-9)
    assert optimiser.param_groups[0]["lr"] == 1e-2


def test_a_training_of_200_steps_ends_with_identical_weights(small, task, tmp_path):
    plain, watched = small(), small()
    alone = trained(plain, 200)
    streams = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    monitor = ls.Monitor(watched, task, transitions=[1, 2, 3], every=10, log=tmp_path / "monitor.jsonl")
    beside = trained(watched, 200, monitor)
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, watched.state_dict()[name]), name
    for one, other in zip(alone.state.values(), beside.state.values(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in ("exp_avg", "exp_avg_sq", "step"))
    assert torch.equal(streams[0], torch.get_rng_state())
    assert streams[1] == random.getstate()
    assert streams[2] == np.random.get_state()[1].tolist()  # noqa: NPY002
    assert len((tmp_path / "monitor.jsonl").read_text().splitlines()) == 1 + 20 * (4 + 3 + 1)


def test_an_error_in_the_middle_leaves_the_model_in_training_mode(small, task):
    model = small()
    monitor = ls.Monitor(model, task)
    with torch.no_grad():
        model.up.weight.fill_(float("nan"))
    with pytest.raises(ls.LoopscopeError, match="no finite state for question"):
        monitor.measure(1)
    assert model.training
    assert all(weight.requires_grad for weight in model.parameters())


def same(one, other) -> None:
    assert len(one.updates) == len(other.updates) > 0
    for row, twin in zip((*one.depths, *one.updates), (*other.depths, *other.updates), strict=True):
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "step"}
        assert numbers == pytest.approx({name: twin[name] for name in numbers}, abs=1e-9)


def test_batches_are_questions_whose_references_the_loss_counts(small, rows, task):
    model = small()
    expected = ls.Monitor(model, task).measure(1)
    labels = rows.clone()
    labels[:, :3] = -100
    same(ls.Monitor(model, {"input_ids": rows, "labels": labels}).measure(1), expected)
    # The same rows, padded on the left.
    padded = torch.cat([torch.zeros(12, 2, dtype=torch.int64), rows], 1)
    masked = torch.cat([torch.full((12, 2), -100), labels], 1)
    mask = torch.cat([torch.zeros(12, 2), torch.ones_like(rows)], 1)
    current = ls.Monitor(model, transitions=[2])
    same(current.step(200, {"input_ids": padded, "labels": masked, "attention_mask": mask}), expected)
    # Inputs and targets apart, one token ahead.
    same(current.step(200, (rows[:, :-1], labels[:, 1:])), expected)
    everything = ls.Monitor(model, rows).measure(1)
    ids = rows.tolist()
    whole = ls.Task.from_ids([row[:1] for row in ids], [row[1:] for row in ids])
    same(everything, ls.Monitor(model, whole).measure(1))
    assert everything.updates[0]["gain"] != expected.updates[0]["gain"]


def test_options_tell_how_often_the_right_one_is_chosen(tmp_path, small, rows):
    model = small()
    ids = rows.tolist()
    options = [[row[3:5], row[5:8], row[8:]] for row in ids]
    task = ls.Task.from_ids([row[:3] for row in ids], options=options, answers=[n % 3 for n in range(12)])
    record = ls.Monitor(model, task, transitions=[2]).measure(1)
    run = measure_with(model, task, transitions=[2], output=tmp_path / "run")
    for row in record.depths:
        chosen = run.depths.filter(depth=row["depth"]).sort("row")["chosen_option"].to_list()
        assert row["accuracy"] == np.mean([c == n % 3 for n, c in enumerate(chosen)])
    assert record.updates[0]["gain"] == pytest.approx(run.records["gain"].mean(), abs=1e-9)
    assert "loopscope/accuracy/3" in record.scalars()


def test_autocast_is_that_of_the_monitor_and_not_of_the_place_where_it_is_called(small, task):
    model = small()
    monitor = ls.Monitor(model, task)
    plain = monitor.measure(1)
    with torch.autocast("cpu", torch.bfloat16):
        same(monitor.measure(1), plain)
        loss = model.loss(torch.arange(8).reshape(2, 4))
    loss.backward()
    assert all(weight.grad is not None for weight in (model.up.weight, model.unembed.weight))
    rounded = ls.Monitor(model, task, autocast="bfloat16").measure(1)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model.eval()
        state = ls.Walk.of(model, ls.Batch.of(torch.tensor(task.rows[0]["prompt_ids"])[None])).to(2).state
    model.train()
    assert state.dtype == torch.float32  # the norm's, of BF16 products
    difference = abs(rounded.updates[0]["gain"] - plain.updates[0]["gain"])
    assert 0 < difference < 0.05


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler looks at it
def test_wrappers_are_taken_off_and_nothing_is_compiled_for_the_monitor(small, task, rows):
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    def train(watch: bool) -> tuple[list, dict]:
        compiled.clear()
        torch._dynamo.reset()
        model = small()
        block = torch.compile(model.step, backend=backend)
        looped = ls.wrap(embed=model.words, step=lambda state: block(state, None), head=model.unembed, trained_depth=2)
        monitor = ls.Monitor(torch.compile(looped, backend=backend), task, every=1) if watch else None
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(1, 5):
            state = model.words(rows)
            for _ in range(2):
                state = block(state, None)
            torch.nn.functional.cross_entropy(model.unembed(state).flatten(0, 1), rows.flatten()).backward()
            if monitor is not None:
                assert monitor.step(step) is not None
            optimiser.step()
            optimiser.zero_grad()
        return len(compiled), model.state_dict()

    (graphs, weights), (graphs_beside, weights_beside) = train(False), train(True)
    assert graphs_beside == graphs > 0
    assert all(torch.equal(weights[name], weights_beside[name]) for name in weights)


@pytest.fixture
def second_of_two():
    """A process group of two of which this process is the second; nothing is sent anywhere."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_of_several_processes_the_first_measures_or_each_its_own(small, task, tmp_path, second_of_two):
    model = torch.nn.parallel.DistributedDataParallel(small())
    log = tmp_path / "monitor.jsonl"
    assert ls.Monitor(model, task, log=log).measure(1) is None
    assert not list(tmp_path.iterdir())
    found = ls.Monitor(model, task, log=log, ranks="all").measure(1)
    assert [path.name for path in tmp_path.iterdir()] == ["monitor.rank1.jsonl"]
    assert read_monitor_log(tmp_path / "monitor.rank1.jsonl").header["world"] == 2
    torch.distributed.destroy_process_group()
    same(found, ls.Monitor(small(), task).measure(1))


def test_calls_keep_no_tensor(small, task):
    model = small(affine=False)
    model.double()  # so that the readout's float32 weights are copies
    monitor = ls.Monitor(model, task, transitions=[1, 2])

    def alive() -> int:
        return sum(type(held) in (torch.Tensor, torch.nn.Parameter) for held in gc.get_objects())

    monitor.measure(0)
    gc.collect()
    gc.disable()  # nothing waits for the collector: on a GPU that would be a batch's memory
    before = alive()
    for step in range(3):
        monitor.measure(step)
    gc.enable()
    assert alive() <= before
    assert not model._casts


def test_mistakes_are_one_line(small, task, rows):
    model = small()
    for call, words in (
        (lambda: ls.Monitor("toy-ouro", task), "the model that is trained"),
        (lambda: ls.Monitor(torch.nn.Linear(2, 2), task), "lacks"),
        (lambda: ls.Monitor(model, task, every=0), "every=0 is too small"),
        (lambda: ls.Monitor(model, task, ranks="some"), "choose first, all"),
        (lambda: ls.Monitor(model, task, log=3), "takes a file name"),
        (lambda: ls.Monitor(model, task, autocast="int8"), "not a dtype"),
        (lambda: ls.Monitor(model).measure(1), "nothing to measure"),
        (lambda: ls.Monitor(model, {"input_ids": rows, "labels": rows + 1}), "labels must be the input_ids"),
        (lambda: ls.Monitor(model, (rows, rows)), "one token ahead"),
        (lambda: ls.Monitor(model, torch.full((2, 5), 99)).measure(1), "outside its vocabulary of 48"),
        (lambda: ls.Monitor(model, {"input_ids": rows, "labels": torch.full_like(rows, -100)}), "no row"),
    ):
        with pytest.raises(ls.LoopscopeError, match=words):
            call()
    del model.__class__.trained_depth
    try:
        model.trained_depth = None
        with pytest.raises(ls.LoopscopeError, match="name updates with transitions="):
            ls.Monitor(model, task)
    finally:
        model.__class__.trained_depth = 2
