import json

import pytest

import loopscope as ls
from loopscope.errors import LoopscopeError
from loopscope.models.tokenizer import load_tokenizer
from loopscope.store import StoredRun, verify
from loopscope.store.run import VOCABULARY

TEXT = "Petra hands 12 apples to Adam, who has  none.\nAnswer: 12"


@pytest.mark.parametrize("name", ["toy-ouro", "toy-huginn"])
def test_the_texts_of_ids_join_to_the_text_they_came_from(name):
    tokenizer = load_tokenizer(name)
    texts = tokenizer.texts()
    assert len(texts) == tokenizer.vocabulary_size
    assert "".join(texts[each] for each in tokenizer.encode(TEXT)) == TEXT
    assert all(texts[each] for each in tokenizer.eos_ids)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary") / "run"
    ls.measure("toy-ouro", tasks="arithmetic", limit=2, transitions=[2], depths=[1, 2, 3], lens=3, output=folder)
    return StoredRun(folder)


def test_a_run_with_a_lens_says_what_its_ids_read_as(run):
    tokens = run.trace.filter(row=0, depth=1).collect().sort("token")
    reference = run.examples["reference"][0]
    spans = zip(tokens["token_id"], tokens["text_start"], tokens["text_end"], strict=True)
    assert all(run.vocabulary[each].endswith(reference[start:end]) for each, start, end in spans)


def test_the_vocabulary_of_another_tokenizer_does_not_count(run):
    path = run.path / VOCABULARY
    whole = path.read_text(encoding="utf-8")
    content = json.loads(whole)
    del content["sha256"]  # as earlier versions wrote it
    path.write_text(json.dumps(content | {"tokenizer_sha256": "0" * 64}), encoding="utf-8")
    assert StoredRun(run.path).vocabulary is None
    path.write_text(json.dumps(content), encoding="utf-8")
    assert StoredRun(run.path).vocabulary == content["texts"]
    path.write_text(whole, encoding="utf-8")


@pytest.mark.parametrize(
    "change", [("month", "mouth"), ('{"tokenizer_sha256": "', '{"tokenizer_sha256": "0'), ("]", "")]
)
def test_a_damaged_vocabulary_is_named(run, change):
    path = run.path / VOCABULARY
    whole = path.read_text(encoding="utf-8")
    assert change[0] in whole
    path.write_text(whole.replace(*change, 1), encoding="utf-8")
    assert [finding.where for finding in verify(run.path).findings] == [VOCABULARY]
    with pytest.raises(LoopscopeError, match="is damaged: remove it and give the same `measure` command again"):
        StoredRun(run.path).vocabulary  # noqa: B018
    path.write_text(whole, encoding="utf-8")
    assert verify(run.path).ok
