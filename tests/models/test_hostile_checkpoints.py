"""Checkpoints made to do harm: each is refused in one short line, soon, and nothing outside of it is read."""

import json
import os
import struct
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from loopscope.errors import LoopscopeError
from loopscope.models import load_model, load_tokenizer

LONGEST_LINE = 1000
SECONDS = 20
"""Of this process, so that a busy machine does not count."""


def config(**fields):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def text(name, data):
    def change(folder):
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())

    return change


def header(edit):
    """The header of the weights changed as JSON, the bytes after it as they were."""

    def change(folder):
        path = folder / "model.safetensors"
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        table = json.loads(data[8 : 8 + length])
        edited = edit(table)
        new = edited if isinstance(edited, bytes) else json.dumps(table).encode()
        path.write_bytes(struct.pack("<Q", len(new)) + new + data[8 + length :])

    return change


def first(table):
    return next(name for name in table if name != "__metadata__")


def field(**fields):
    return header(lambda table: table[first(table)].update(fields))


def raw(edit):
    def change(folder):
        path = folder / "model.safetensors"
        path.write_bytes(edit(path.read_bytes()))

    return change


def tensors(edit):
    def change(folder):
        path = folder / "model.safetensors"
        held = load_file(path)
        edit(held)
        save_file(held, path)

    return change


def index(weight_map, also=lambda folder: None):
    """An index over the weights, which move into a shard."""

    def change(folder):
        held = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").rename(folder / "shard.safetensors")
        named = weight_map(dict.fromkeys(held, "shard.safetensors"))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
        also(folder)

    return change


def linked(name, target):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target(folder) if callable(target) else target)

    return change


def pipe(name):
    def change(folder):
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def sparse(name, size):
    def change(folder):
        with (folder / name).open("ab") as file:
            file.truncate(size)

    return change


NAN, INFINITE = float("nan"), float("inf")
LONG = "x" * 5000

OURO = {
    # config.json as a file
    "no config": lambda folder: (folder / "config.json").unlink(),
    "config of a list": text("config.json", "[]"),
    "config nested deeply": text("config.json", '{"a":' * 100_000),
    "config of a gigabyte": sparse("config.json", 2**30),
    "config is a pipe": pipe("config.json"),
    "config is endless": linked("config.json", "/dev/zero"),
    # config.json's values
    "architecture of thousands of characters": config(architectures=[LONG], model_type=None),
    "vocabulary NaN": config(vocab_size=NAN),
    "vocabulary beyond any memory": config(vocab_size=10**15),
    "more layers than are stored": config(num_hidden_layers=300),
    "threshold NaN": config(early_exit_threshold=NAN),
    "base of the rotation beyond floats": config(rope_theta=10**400),
    "scaling by NaN": config(rope_scaling={"rope_type": "linear", "factor": NAN}),
    "end token beyond the vocabulary": config(eos_token_id=10**6),
    # model.safetensors
    "half a header": raw(lambda data: data[:100]),
    "one byte long": raw(lambda data: data + b"\0"),
    "header of exabytes": raw(lambda data: b"\xff" * 8 + data[8:]),
    "pickle": raw(lambda data: b"\x80\x04}q\x00." + data),
    "header nested deeply": header(lambda table: b"[" * 1_000_000),
    "name of a million characters": header(lambda table: table.update({"x" * 10**6: table.pop(first(table))})),
    "offsets negative": field(data_offsets=[-8, 0]),
    "offsets beyond 64 bits": field(data_offsets=[0, 2**80]),
    "shape negative": field(shape=[-1, 4]),
    "shape of a million dimensions": field(shape=[1] * 10**6),
    "type unknown": field(dtype="F7"),
    "type of 8 bits": tensors(
        lambda held: held.update({"lm_head.weight": held["lm_head.weight"].to(torch.float8_e5m2)})
    ),
    "tensor too many": tensors(lambda held: held.update({LONG: torch.zeros(1)})),
    "tensor transposed": tensors(lambda held: held.update({"lm_head.weight": held["lm_head.weight"].T.contiguous()})),
    "weights are a pipe": pipe("model.safetensors"),
    # model.safetensors.index.json
    "index to another folder": index(lambda named: dict.fromkeys(named, "../shard.safetensors")),
    "index to a name too long": index(lambda named: dict.fromkeys(named, LONG + ".safetensors")),
    "index of a list": index(lambda named: [*named]),
    "index without a tensor": index(lambda named: dict([*named.items()][1:])),
    "index nested deeply": index(lambda named: named, text("model.safetensors.index.json", "[" * 100_000)),
}

HUGINN = {
    "drawn state infinite": config(init_values={"std": INFINITE, "embed_scale": 1.0}),
    "scale beyond floats": config(init_values={"std": 0.1, "embed_scale": 1e300}),
    "recurrence beyond counting": config(mean_recurrence=10**18),
}

LLAMA = {
    "scaling of Llama 3 upside down": config(
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 4.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        }
    ),
}

TOKENIZERS = {
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(missing_ok=True),
    "tokenizer nested deeply": text("tokenizer.json", '{"a":' * 100_000),
    "tokenizer of an unknown model": text("tokenizer.json", '{"version": "1.0", "model": {"type": "Evil"}}'),
    "token id beyond 32 bits": text(
        "tokenizer.json", '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":99999999999},"unk_token":"a"}}'
    ),
    "token id beyond the vocabulary": text(
        "tokenizer.json", '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":4294967295},"unk_token":"a"}}'
    ),
    "token id negative": text(
        "tokenizer.json", '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":-1},"unk_token":"a"}}'
    ),
    "merges of unknown tokens": text(
        "tokenizer.json", '{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":["b c"]}}'
    ),
    "pattern that does not compile": text(
        "tokenizer.json",
        '{"version":"1.0","pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated",'
        '"invert":false},"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}',
    ),
    "tokenizer in a loop of links": linked("tokenizer.json", "tokenizer.json"),
    "tokenizer is a pipe": lambda folder: os.mkfifo(folder / "tokenizer.json"),
}


def refused(load):
    started = time.process_time()
    with pytest.raises(LoopscopeError) as caught:
        load()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < LONGEST_LINE, message[:200]
    assert time.process_time() - started < SECONDS
    return message


@pytest.mark.parametrize("case", OURO)
def test_ouro_checkpoint(tiny, case):
    folder = tiny("ouro")
    OURO[case](folder)
    refused(lambda: load_model(folder))


@pytest.mark.parametrize("case", HUGINN)
def test_huginn_checkpoint(tiny, case):
    folder = tiny("huginn")
    HUGINN[case](folder)
    refused(lambda: load_model(folder))


@pytest.mark.parametrize("case", LLAMA)
def test_looped_checkpoint(tiny, case):
    folder = tiny("loop")
    LLAMA[case](folder)
    refused(lambda: load_model(folder, model_args="loop=1-2"))


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
