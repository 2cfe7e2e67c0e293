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


def replaced_by_folder(name):
    def change(folder):
        (folder / name).unlink()
        (folder / name).mkdir()

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


def grown(table):
    """So many names that looking each one up among the others would take hours; the last is there twice."""
    many = ",".join(f'"{number}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for number in range(300_000))
    return f'{{{many},"0":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}}}'.encode()


def crowded(table):
    many = ",".join(f'"{number}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for number in range(200_001))
    return f"{{{many}}}".encode()


NAN, INFINITE = float("nan"), float("inf")
LONG = "x" * 5000

OURO = {
    # config.json as a file
    "no config": lambda folder: (folder / "config.json").unlink(),
    "empty config": text("config.json", ""),
    "config of a list": text("config.json", "[]"),
    "config of null": text("config.json", "null"),
    "config not UTF-8": text("config.json", b"\xff\xfe\x00"),
    "config with a byte-order mark": text("config.json", "\ufeff{}"),
    "config nested deeply": text("config.json", '{"a":' * 100_000),
    "config of many digits": text("config.json", '{"vocab_size": ' + "9" * 5000 + "}"),
    "config with a key twice": text("config.json", '{"model_type": "ouro", "vocab_size": 4, "vocab_size": 5}'),
    "config of a gigabyte": sparse("config.json", 2**30),
    "config in a loop of links": linked("config.json", "config.json"),
    "config is a folder": replaced_by_folder("config.json"),
    "config is a pipe": pipe("config.json"),
    "config is endless": linked("config.json", "/dev/zero"),
    # config.json's values
    "architecture of thousands of characters": config(architectures=[LONG], model_type=None),
    "architectures is an object": config(architectures={"a": 1}, model_type=None),
    "model type is a list": config(model_type=["ouro"], architectures=None),
    "vocabulary NaN": config(vocab_size=NAN),
    "vocabulary negative": config(vocab_size=-5),
    "vocabulary zero": config(vocab_size=0),
    "vocabulary true": config(vocab_size=True),
    "vocabulary a string": config(vocab_size=LONG),
    "vocabulary beyond any memory": config(vocab_size=10**15),
    "vocabulary beyond 64 bits": config(vocab_size=2**70),
    "hidden size infinite": config(hidden_size=INFINITE),
    "hidden size a list": config(hidden_size=[64] * 5000),
    "layers beyond any model": config(num_hidden_layers=10**8),
    "more layers than are stored": config(num_hidden_layers=300),
    "heads beyond the width": config(num_attention_heads=10**9),
    "threshold of five": config(early_exit_threshold=5.0),
    "threshold NaN": config(early_exit_threshold=NAN),
    "threshold negative": config(early_exit_threshold=-0.5),
    "epsilon infinite": config(rms_norm_eps=INFINITE),
    "epsilon of a hundred": config(rms_norm_eps=100),
    "base of the rotation beyond floats": config(rope_theta=10**400),
    "base of the rotation zero": config(rope_theta=0),
    "loops beyond counting": config(total_ut_steps=10**18),
    "scaling is a string": config(rope_scaling="linear"),
    "scaling without a factor": config(rope_scaling={"rope_type": "linear"}),
    "scaling by NaN": config(rope_scaling={"rope_type": "linear", "factor": NAN}),
    "end token negative": config(eos_token_id=-7),
    "end token beyond the vocabulary": config(eos_token_id=10**6),
    "end token a long string": config(eos_token_id=LONG),
    "layer kinds of thousands of characters": config(layer_types=[LONG, LONG]),
    # model.safetensors
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "empty weights": raw(lambda data: b""),
    "seven bytes": raw(lambda data: data[:7]),
    "half a header": raw(lambda data: data[:100]),
    "one byte short": raw(lambda data: data[:-1]),
    "one byte long": raw(lambda data: data + b"\0"),
    "header of exabytes": raw(lambda data: b"\xff" * 8 + data[8:]),
    "header above the limit": raw(lambda data: struct.pack("<Q", 60_000_000) + data[8:]),
    "header of length zero": raw(lambda data: bytes(8) + data[8:]),
    "all zeros": raw(lambda data: bytes(len(data))),
    "pickle": raw(lambda data: b"\x80\x04}q\x00." + data),
    "pointer of git-lfs": raw(lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    "header is a list": header(lambda table: b"[]"),
    "header nested deeply": header(lambda table: b"[" * 1_000_000),
    "header not UTF-8": header(lambda table: b'{"\xff": 1}'),
    "300,000 names and one twice": header(grown),
    "more names than allowed": header(crowded),
    "name of a million characters": header(lambda table: table.update({"x" * 10**6: table.pop(first(table))})),
    "entry is null": header(lambda table: table.update({first(table): None})),
    "offsets backwards": field(data_offsets=[8, 0]),
    "offsets negative": field(data_offsets=[-8, 0]),
    "offsets beyond 64 bits": field(data_offsets=[0, 2**80]),
    "offsets of three": field(data_offsets=[0, 1, 2]),
    "offsets NaN": field(data_offsets=[NAN, NAN]),
    "shape negative": field(shape=[-1, 4]),
    "shape beyond 64 bits": field(shape=[2**63, 2**63]),
    "shape of a million dimensions": field(shape=[1] * 10**6),
    "shape a string": field(shape="44"),
    "shape of booleans": field(shape=[True, True]),
    "type unknown": field(dtype="F7"),
    "type a list": field(dtype=["F32"]),
    "type of 8 bits": tensors(
        lambda held: held.update({"lm_head.weight": held["lm_head.weight"].to(torch.float8_e5m2)})
    ),
    "tensor missing": tensors(lambda held: held.pop("lm_head.weight")),
    "tensor too many": tensors(lambda held: held.update({LONG: torch.zeros(1)})),
    "tensor transposed": tensors(lambda held: held.update({"lm_head.weight": held["lm_head.weight"].T.contiguous()})),
    "weights in a loop of links": linked("model.safetensors", "model.safetensors"),
    "weights are a folder": replaced_by_folder("model.safetensors"),
    "weights are a pipe": pipe("model.safetensors"),
    # model.safetensors.index.json
    "index to another folder": index(lambda named: dict.fromkeys(named, "../shard.safetensors")),
    "index to an absolute path": index(lambda named: dict.fromkeys(named, "/etc/passwd.safetensors")),
    "index to a null character": index(lambda named: dict.fromkeys(named, "a\0.safetensors")),
    "index to a name too long": index(lambda named: dict.fromkeys(named, LONG + ".safetensors")),
    "index to a missing file": index(lambda named: dict.fromkeys(named, "none.safetensors")),
    "index to a loop of links": index(lambda named: named, linked("shard.safetensors", "shard.safetensors")),
    "index to numbers": index(lambda named: dict.fromkeys(named, 7)),
    "index of a list": index(lambda named: [*named]),
    "index of nothing": index(lambda named: {}),
    "index without a tensor": index(lambda named: dict([*named.items()][1:])),
    "index with one too many": index(lambda named: named | {LONG: "shard.safetensors"}),
    "index nested deeply": index(lambda named: named, text("model.safetensors.index.json", "[" * 100_000)),
    "index in a loop of links": index(
        lambda named: named, linked("model.safetensors.index.json", "model.safetensors.index.json")
    ),
}

HUGINN = {
    "drawn state infinite": config(init_values={"std": INFINITE, "embed_scale": 1.0}),
    "drawn state negative": config(init_values={"std": -1.0, "embed_scale": 1.0}),
    "drawn state a list": config(init_values=[1.0]),
    "scale beyond floats": config(init_values={"std": 0.1, "embed_scale": 1e300}),
    "no core": config(n_layers_in_recurrent_block=0),
    "negative coda": config(n_layers_in_coda=-1),
    "recurrence beyond counting": config(mean_recurrence=10**18),
    "noise at test time": config(test_time_noise=NAN),
    "vocabulary padded to less": config(padded_vocab_size=1),
}

LLAMA = {
    "architectures is an object": config(architectures={"a": 1}),
    "architectures is a number": config(architectures=7),
    "architectures of lists": config(architectures=[["LlamaForCausalLM"]]),
    "scaling of Llama 3 upside down": config(
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 4.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        }
    ),
    "sliding window": config(sliding_window=128, use_sliding_window=True),
}

TOKENIZERS = {
    "no tokenizer": lambda folder: (folder / "tokenizer.json").unlink(missing_ok=True),
    "empty tokenizer": text("tokenizer.json", ""),
    "tokenizer of a list": text("tokenizer.json", "[]"),
    "tokenizer not UTF-8": text("tokenizer.json", b"\xff\xfe"),
    "tokenizer nested deeply": text("tokenizer.json", '{"a":' * 100_000),
    "tokenizer without a model": text("tokenizer.json", '{"version": "1.0"}'),
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
