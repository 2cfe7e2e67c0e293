import pytest

from loopscope.report.provenance import provenance, warnings_of
from loopscope.store import StoredRun


@pytest.fixture
def make(tmp_path, synthetic):
    def make(folder, /, **model):
        made = synthetic.Made([synthetic.Question("q", ["a"])] * 2, model=model, tokens=False)
        return synthetic.write_run(tmp_path / folder, made)

    return make


def test_a_published_model_needs_no_warning(make):
    assert warnings_of([make("run")]) == []


def test_random_weights_are_named_before_anything_else(make):
    lines = warnings_of([make("a", name="toy-a", toy=True), make("b", name="noise", random_weights=True, weights={})])
    assert lines == [
        "noise has random weights. Its numbers describe no trained model.",
        "Small model shipped with loopscope, here to show the method: toy-a.",
    ]


def test_an_unfinished_run_says_so(make):
    run = make("run")
    run.layout.record(run.units[0]).unlink()
    (line,) = warnings_of([StoredRun(run.path)])
    assert line.startswith("run is unfinished: 0 of 2 questions are measured so far")


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
