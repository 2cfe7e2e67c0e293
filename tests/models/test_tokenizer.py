"""Tokenizers from tokenizer.json: exact ids, special tokens, and a vocabulary that must fit the model."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from loopscope.errors import LoopscopeError
from loopscope.models.checkpoint import TOKENIZER
from loopscope.models.tokenizer import Tokenizer

OURO = Path(__file__).resolve().parents[2].parent / "shared" / "tokenizers" / "ouro"
needs_ouro = pytest.mark.skipif(not OURO.is_dir(), reason="Ouro's tokenizer is not beside the repository")

WORDS = {"<s>": 0, "</s>": 1, "<pad>": 2, "the": 3, "loop": 4, "a": 5}


def write_tokenizer(folder, *, bos=False, eos=False, config=None, tokenizer_config=None, truncate=None):
    backend = Backend(models.WordLevel(WORDS, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    template = ["<s>"] * bos + ["$A"] + ["</s>"] * eos
    if bos or eos:
        backend.post_processor = processors.TemplateProcessing(
            single=" ".join(template), special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    if truncate:
        backend.enable_truncation(truncate)
        backend.enable_padding()
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / TOKENIZER))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if tokenizer_config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return folder


@needs_ouro
def test_ouro_ids():
    tokenizer = Tokenizer.from_folder(OURO)
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert tokenizer.encode("The capital of France is", special_tokens=True) == [504, 3575, 282, 4649, 314]
    assert tokenizer.vocabulary_size == 49152
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (0, (0,))


@needs_ouro
@pytest.mark.parametrize("text", ["", "x = 12345\n\tπ ≈ 3.14159", "日本語 🙂", "<think> a </think>"])
def test_ouro_decodes_what_it_encodes(text):
    tokenizer = Tokenizer.from_folder(OURO)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bos_only_when_asked(tmp_path):
    tokenizer = Tokenizer.from_folder(write_tokenizer(tmp_path, bos=True))
    assert tokenizer.encode("the loop") == [3, 4]
    assert tokenizer.encode("the loop", special_tokens=True) == [0, 3, 4]
    assert tokenizer.prefix_ids == (0,)


def test_batch_equals_one_by_one(tmp_path):
    tokenizer = Tokenizer.from_folder(write_tokenizer(tmp_path, bos=True))
    texts = ["the", "", "loop the loop"]
    for asked in (False, True):
        assert tokenizer.encode_batch(texts, special_tokens=asked) == [
            tokenizer.encode(text, special_tokens=asked) for text in texts
        ]


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path):
    tokenizer = Tokenizer.from_folder(write_tokenizer(tmp_path, truncate=2))
    assert tokenizer.encode("the the the the") == [3, 3, 3, 3]
    assert tokenizer.encode_batch(["the", "the the"]) == [[3], [3, 3]]


def test_special_ids_come_from_both_files(tmp_path):
    config = {"model_type": "ouro", "bos_token_id": 5, "eos_token_id": [1, 4], "pad_token_id": 2}
    folder = write_tokenizer(
        tmp_path, config=config, tokenizer_config={"bos_token": {"__type": "AddedToken", "content": "<s>"}}
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (0, (1, 4))


def test_huginn_takes_ids_from_the_configuration(tmp_path):
    config = {"model_type": "huginn_raven", "qk_bias": True, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    tokenizer = Tokenizer.from_folder(write_tokenizer(tmp_path, config=config))
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (0, (1,))


def test_retrofit_never_takes_ids_from_the_configuration(tmp_path):
    config = {"model_type": "huginn_raven", "qk_bias": False, "bos_token_id": 3, "eos_token_id": 4, "pad_token_id": 5}
    folder = write_tokenizer(tmp_path, config=config, tokenizer_config={"eos_token": "</s>", "bos_token": None})
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (None, (1,))


def test_larger_vocabulary_than_the_configuration(tmp_path):
    folder = write_tokenizer(tmp_path, config={"vocab_size": 5})
    with pytest.raises(LoopscopeError, match=r"6 tokens and .* only 5"):
        Tokenizer.from_folder(folder)
