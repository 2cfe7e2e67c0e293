import pytest

from loopscope.report.provenance import provenance, warnings_of


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
    run.layout.complete.unlink()
    assert "run is unfinished" in warnings_of([run])[0]


def test_every_entry_has_words(make):
    entries = {entry["term"]: entry["text"] for entry in provenance(make("run"))}
    assert entries["Updates"] == "3→4, 4→5"
    assert entries["Task riddles"] == "test split: all 2 questions with reference solutions"
    assert entries["Command"] == "loopscope measure --model some/looped-model"
    assert all(entries.values())
