"""Checkpoints made to do harm are refused in one short line; the corpus (`tests/corpus`) has the rest of them."""

import json
import os
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from loopscope import load_model, load_tokenizer
from loopscope.errors import LoopscopeError

LONG = "x" * 5000


def config(**fields):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def text(name, data):
    return lambda folder: (folder / name).write_text(data)


def header(edit):
    """The header of the weights as other bytes, the bytes after it as they were."""

    def change(folder):
        path = folder / "model.safetensors"
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        new = edit(json.loads(data[8 : 8 + length]))
        path.write_bytes(struct.pack("<Q", len(new)) + new + data[8 + length :])

    return change


def tensors(edit):
    def change(folder):
        held = load_file(folder / "model.safetensors")
        edit(held)
        save_file(held, folder / "model.safetensors")

    return change


def pipe(name):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


def endless(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")


def huge(folder):
    with (folder / "config.json").open("ab") as file:
        file.truncate(2**30)


CHECKPOINTS = {
    "config of a gigabyte": ("ouro", huge),
    "config is a pipe": ("ouro", pipe("config.json")),
    "config is endless": ("ouro", endless),
    "weights are a pipe": ("ouro", pipe("model.safetensors")),
    "architecture of thousands of characters": ("ouro", config(architectures=[LONG], model_type=None)),
    "vocabulary beyond any memory": ("ouro", config(vocab_size=10**15)),
    "base of the rotation beyond floats": ("ouro", config(rope_theta=10**400)),
    "scaling by NaN": ("ouro", config(rope_scaling={"rope_type": "linear", "factor": float("nan")})),
    "header nested deeply": ("ouro", header(lambda table: b"[" * 1_000_000)),
    "name of a million characters": ("ouro", header(lambda table: json.dumps({"x" * 10**6: table}).encode())),
    "tensor too many": ("ouro", tensors(lambda held: held.update({LONG: torch.zeros(1)}))),
    "tensor transposed": ("ouro", tensors(lambda t: t.update({"lm_head.weight": t["lm_head.weight"].T.contiguous()}))),
    "drawn state infinite": ("huginn", config(init_values={"std": float("inf"), "embed_scale": 1.0})),
    "scale beyond floats": ("huginn", config(init_values={"std": 0.1, "embed_scale": 1e300})),
    "recurrence beyond counting": ("huginn", config(mean_recurrence=10**18)),
}
WORDS = '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":%d},"unk_token":"a"}}'
TOKENIZERS = {
    "token id beyond 32 bits": text("tokenizer.json", WORDS % 99999999999),
    "token id beyond the vocabulary": text("tokenizer.json", WORDS % 4294967295),
    "merges of unknown tokens": text(
        "tokenizer.json", '{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":["b c"]}}'
    ),
    "pattern that does not compile": text(
        "tokenizer.json",
        '{"version":"1.0","pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated",'
        '"invert":false},"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}',
    ),
    "tokenizer is a pipe": pipe("tokenizer.json"),
}


def refused(load):
    with pytest.raises(LoopscopeError) as caught:
        load()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_checkpoint(tiny, case):
    family, change = CHECKPOINTS[case]
    folder = tiny(family)
    change(folder)
    refused(lambda: load_model(folder))


@pytest.mark.parametrize("case", TOKENIZERS)
def test_tokenizer(tiny, case):
    folder = tiny("ouro")
    TOKENIZERS[case](folder)
    refused(lambda: load_tokenizer(folder))


@pytest.mark.parametrize("fields", [{"vocab_size": 2**31 - 1, "hidden_size": 2**20}, {"num_hidden_layers": 10**8}])
def test_random_weights_of_absurd_sizes(tiny, fields):
    folder = tiny("ouro")
    config(**fields)(folder)
    refused(lambda: load_model(folder, model_args={"random_weights": True}))
