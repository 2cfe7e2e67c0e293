"""Models compared, on six small looped models with random weights; relative steps beside norms of the states."""

import json

import numpy as np
import pytest
import torch

import loopscope as ls
from loopscope.models.batch import Batch
from loopscope.models.load import load_model
from loopscope.path import GRID, Outcome
from loopscope.stats import Bootstrap
from loopscope.studies import table

QUICK = Bootstrap(resamples=50)
IFM = {
    "arch": "huginn", "num_layers": 4, "model_dim": 16, "num_heads": 2, "ffn_hidden_dim": 24, "vocab_size": 30,
    "swiglu": True, "apply_rmsnorm": True, "loop_times": 8,
}  # fmt: skip
PRIOR = {
    "huginn_depth_control": True,
    "huginn_sampling_scheme": "poisson-lognormal-capped",
    "huginn_poisson_lognormal_target_mean": 5.0,
}
NOISE = {"huginn_state_init": "normal"}
VARIANTS = {
    "ouro": ({"arch": "transformer", "loop_times": 4}, ("ouro", "none", "fixed 4")),
    "middle": ({"huginn_state_init": "input", "huginn_input_injection": "none"}, ("middle", "none", "fixed 8")),
    "huginn": (NOISE, ("huginn", "diagonal", "fixed 8")),
    "split": (
        NOISE | {"huginn_hierarchical_state": "split_hl", "huginn_split_module_repeats": 2},
        ("split_hl x2", "diagonal", "fixed 2"),
    ),
    "linear": (
        NOISE | PRIOR | {"huginn_input_injection": "linear", "num_experts": 3, "num_activated_experts": 2}
        | {"expert_inter_dim": 8},
        ("huginn, experts", "linear", "Poisson-lognormal, mean 5"),
    ),
    "learned": (
        NOISE | PRIOR | {"huginn_depth_prior": "learned", "huginn_depth_prior_entropy": 0.01}
        | {"huginn_prelude_orthogonal": True, "huginn_prelude_norm": "rms"},
        ("huginn", "orthogonal, normed input", "learned, entropy 0.01"),
    ),
}  # fmt: skip
ATTRACTOR = {
    "_class_name": "AttractorConfig", "n_embd": 16, "num_attention_heads": 2, "n_backbone_layers": 1, "vocab_size": 30,
    "intermediate_size": 24, "block_size": 32, "norm_class_name": "RMSNorm", "nonlin_name": "ReLU2", "qk_norm": True,
}  # fmt: skip
PROMPTS, SOLUTIONS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [3, 1]], [[9, 8], [7, 6, 5], [4], [2, 2, 2]]


def saved(folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def measured(models, folder, **settings):
    task = ls.Task.from_ids(PROMPTS, SOLUTIONS)
    args = {"random_weights": True, "seed": 3}
    return ls.measure(models, task, model_args=args, dtype="float64", device="cpu", output=folder, **settings)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    models = [saved(folder / name, {"model": IFM | fields}) for name, (fields, _) in VARIANTS.items()]
    return measured(models, folder / "runs", transitions="1,2")


def test_one_row_per_run_with_what_the_family_says_of_it(compared):
    rows = table("families", compared, QUICK).rows
    found = [(row["topology"], row["injection"], row["depth_prior"]) for row in rows]
    assert found == [expected for _, expected in VARIANTS.values()]
    assert {row["updates"] for row in rows} == {"1→2, 2→3"}
    folder, listed = (table("families", runs, QUICK).to_csv() for runs in (compared[0].path.parent, compared))
    assert sorted(folder.splitlines()) == sorted(listed.splitlines())


def test_its_numbers_follow_from_the_records(compared):
    for run, row in zip(compared, table("families", compared, QUICK).rows, strict=True):
        records = run.records
        gain, slope, quadratic = (records[name].to_numpy() for name in ("gain", "slope", "quadratic"))
        harmful = gain < 0
        share = (harmful & (slope > 0)).sum() / harmful.sum() if harmful.any() else None
        assert row["share"].value == pytest.approx(share)
        assert row["sign_slope"].value == pytest.approx((np.sign(slope) == np.sign(gain)).mean())
        assert row["sign_quadratic"].value == pytest.approx((np.sign(slope + quadratic) == np.sign(gain)).mean())
        means = run.depths.select("depth", "utility").group_by("depth").mean().sort("utility")
        assert row["best_depth"].value == means["depth"][-1]
        by_scale = np.mean(records["grid_gain"].to_list(), axis=0)
        assert row["fitted_scale"].value == GRID[int(by_scale.argmax())]
        assert row["fitted_gain"].value == pytest.approx(by_scale.max())
        assert row["fitted_scale"].interval.low <= row["fitted_scale"].value <= row["fitted_scale"].interval.high


def test_several_updates_of_a_question_are_resampled_together(records, synthetic):
    paths = synthetic.Paths.of([0.5, -0.5, 0.5], [-1.0, -1.0, 1.0])
    both, one = (records(synthetic.Task("sums", dict.fromkeys(ts, paths)), name=f"{len(ts)}") for ts in ([3, 4], [4]))
    found, alone = (table("families", each, QUICK).rows[0] for each in (both, one))
    for name in ("share", "sign_slope", "fitted_scale"):
        assert found[name] == alone[name], name
    assert found["share"].value == 0.5
    assert (found["topology"], found["injection"], found["depth_prior"]) == (None, None, None)


def test_relative_steps_are_those_of_the_states(tmp_path):
    folder = saved(tmp_path / "attractor", ATTRACTOR)
    run = measured(folder, tmp_path / "run", transitions="0-3")
    rows = table("convergence", run, QUICK).rows
    model = load_model(folder, model_args={"random_weights": True, "seed": 3}, dtype=torch.float64)
    steps = []
    for prompt, solution in zip(PROMPTS, SOLUTIONS, strict=True):
        with torch.no_grad():
            states = model.states(Batch.from_rows([prompt + solution]), range(5))
        steps.append([((states[t + 1] - states[t]).norm() / states[t].norm()).item() for t in range(4)])
    assert [row["residual"].value for row in rows] == pytest.approx(np.mean(steps, axis=0), rel=1e-9)
    assert [row["largest"] for row in rows] == pytest.approx(np.max(steps, axis=0), rel=1e-9)
    for row in rows:
        found = run.records.filter(transition=row.condition.transition)["outcome"].to_list()
        assert row["progressing"].value == found.count(Outcome.PROGRESSING.label) / 4
        assert sum(row[name].value for name in ("progressing", "neutral", "directional", "finite_step")) == 1
