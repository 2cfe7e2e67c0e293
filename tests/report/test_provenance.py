import pytest

from loopscope.report.provenance import DRAWING, provenance, warnings_of
from loopscope.store import StoredRun


@pytest.fixture
def make(tmp_path, synthetic):
    def make(folder, /, **model):
        made = synthetic.Made([synthetic.Question("q", ["a"])] * 2, model=model, tokens=False)
        return synthetic.write_run(tmp_path / folder, made)

    return make


def test_a_published_model_needs_no_warning(make):
    assert warnings_of([make("run")]) == []


def test_toy_models_are_named_together(make):
    (line,) = warnings_of([make("a", name="toy-a", toy=True), make("b", name="toy-b", toy=True)])
    assert line.startswith("toy-a and toy-b are small models")


def test_random_weights_are_named_before_anything_else(make):
    lines = warnings_of([make("a", name="toy-a", toy=True), make("b", name="noise", random_weights=True, weights={})])
    assert lines[0] == "noise has random weights. Its numbers describe no trained model."


def test_an_unfinished_run_says_so(make):
    run = make("run")
    run.layout.record(run.units[0]).unlink()
    (line,) = warnings_of([StoredRun(run.path)], "loopscope report run --output page.html")
    assert line.startswith("run is unfinished: 0 of 2 questions are measured so far")
    assert line.endswith("write the page again: `loopscope report run --output page.html`.")


def test_every_entry_has_words(make):
    entries = {entry["term"]: entry["text"] for entry in provenance(make("run"))}
    assert entries["Updates"] == "3→4, 4→5"
    assert entries["Task riddles"] == "test split: all 2 questions with reference solutions"
    assert "Command" not in entries
    assert all(entries.values())


def entries(run):
    return {entry["term"]: entry["text"] for entry in provenance(run)}


def test_weights_are_said_to_be_what_the_manifest_says(make, synthetic):
    one, other = synthetic.digest("one"), synthetic.digest("other")
    found = {
        name: entries(make(name, **model))["Weights"]
        for name, model in {
            "files": {"weights": {"model.safetensors": one}},
            "hub": {"weights": {"a.safetensors": one, "b.safetensors": other}, "revision": "abc"},
            "memory": {"weights": {"tensors": one, "class mine.Model": other}, "family": "custom", "dtype": "float32"},
            "older": {"weights": {}, "family": "custom", "dtype": "float32"},
            "random": {"weights": {}, "random_weights": True},
        }.items()
    }
    assert found == {
        "files": f"model.safetensors (SHA-256 {one}); read as bfloat16",
        "hub": f"revision abc; a.safetensors (SHA-256 {one}), b.safetensors (SHA-256 {other}); read as bfloat16",
        "memory": f"of a model built in Python: tensors (SHA-256 {one}), class mine.Model (SHA-256 {other}); "
        "used as float32",
        "older": "not recorded: the model was built in Python and no weight file was read; used as float32",
        "random": "none were read: they are random",
    }


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"family": "huginn"}, "initial_state 20260904"),
        ({"family": "retrofit-llama", "weights": {}, "random_weights": True}, "initial_state 20260904"),
        ({"family": "ouro"}, None),
        ({"family": "ouro", "weights": {}, "random_weights": True}, None),
        ({"family": "custom", "weights": {}}, "initial_state 20260904, if the model draws one"),
        ({"family": "custom", "weights": {"tensors": "0" * 64}}, "initial_state 20260904"),
    ],
)
def test_a_seed_is_named_where_something_is_drawn(make, model, said):
    """Manifests of older versions name the seed of the initial state whatever the model."""
    run = make("run", **model)
    assert run.manifest.seeds == {"initial_state": 20260904}
    assert entries(run).get("Seeds") == said


def test_the_families_that_draw_a_state_are_those_whose_models_do():
    from loopscope.models.families import build_model
    from loopscope.models.initial_state import InitialState
    from loopscope.models.registry import PUBLISHED

    one_of = {model.family: model for model in PUBLISHED if model.config}
    assert set(one_of) > {"ouro", *DRAWING}
    for family, published in one_of.items():
        model = build_model(family, published.config)
        assert isinstance(getattr(model, "initial_state", None), InitialState) == (family in DRAWING)
