"""`vocabulary.json`: used only where its hash shows that it is whole, and never in a form that a page cannot show."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from loopscope.errors import LoopscopeError
from loopscope.models.tokenizer import load_tokenizer
from loopscope.store import Manifest, StoredRun, verify
from loopscope.store.hashing import sha256_bytes
from loopscope.store.run import write_vocabulary

TEXT = "Petra hands 12 apples to Adam, who has  none.\nAnswer: 12"
Measure = Callable[..., StoredRun]


@pytest.mark.parametrize("name", ["toy-ouro", "toy-huginn"])
def test_the_texts_of_ids_join_to_the_text_they_came_from(name: str) -> None:
    tokenizer = load_tokenizer(name)
    texts = tokenizer.texts()
    assert len(texts) == tokenizer.vocabulary_size
    assert "".join(texts[each] for each in tokenizer.encode(TEXT)) == TEXT
    assert all(texts[each] for each in tokenizer.eos_ids)


@pytest.fixture
def run(tmp_path: Path, measure: Measure) -> StoredRun:
    run = measure(tmp_path / "run")
    write_vocabulary(run.path, run.manifest, ["month", "day ∑", "half \ud83d of a pair"])
    return run


def test_lone_surrogates_become_what_can_be_shown(run: StoredRun) -> None:
    assert run.vocabulary == ["month", "day ∑", "half ? of a pair"]
    assert verify(run).ok


def test_the_vocabulary_of_another_tokenizer_does_not_count(
    run: StoredRun, make_manifest: Callable[..., Manifest]
) -> None:
    write_vocabulary(run.path, make_manifest(tokenizer_sha256="0" * 64), ["a"])
    assert StoredRun(run.path).vocabulary is None


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"month", b"mouth"),
        lambda data: data.replace(b'"tokenizer_sha256": "', b'"tokenizer_sha256": "0'),
        lambda data: data.replace(b"]", b""),
        lambda data: data.replace(b'"sha256"', b'"sha257"'),
        lambda data: b"",
        lambda data: b"[" * 200_000,
    ],
)
def test_a_damaged_vocabulary_is_named(run: StoredRun, change: Callable[[bytes], bytes]) -> None:
    path = run.layout.vocabulary
    path.write_bytes(change(path.read_bytes()))
    assert [finding.where for finding in verify(run).findings] == [path.name]
    with pytest.raises(LoopscopeError, match="is damaged: remove it and give the same `measure` command again"):
        StoredRun(run.path).vocabulary  # noqa: B018


def test_one_that_is_sealed_again_with_deep_or_lone_halves_is_damaged(run: StoredRun) -> None:
    path = run.layout.vocabulary
    for texts in ('["\\ud800"]', "[" * 3000 + "]" * 3000):
        body = json.dumps({"tokenizer_sha256": run.manifest.tokenizer_sha256, "texts": "TEXTS"}, indent=2)
        body = body.replace('"TEXTS"', texts)
        sealed = body[:-2] + f',\n  "sha256": "{sha256_bytes((body + chr(10)).encode())}"\n}}\n'
        path.write_text(sealed)
        with pytest.raises(LoopscopeError, match="is damaged"):
            StoredRun(run.path).vocabulary  # noqa: B018
