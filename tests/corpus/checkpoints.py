"""Checkpoints: configurations, safetensors files, indices, tokenizers."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from case import Case, call, command
from flags import measure
from place import CONFIG, Place

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load(folder: Path | str, **rest: Any) -> Any:
    from loopscope import load_model

    return load_model(folder, **rest)


CONFIGURATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no model_type": ({"model_type": None, "architectures": None}, "no family"),
    "another model": ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "no looped model"),
    "model_type as a list": ({"model_type": ["ouro"], "architectures": 5}, "no text"),
    "model_type as a number": ({"model_type": 1, "architectures": [1]}, "no text"),
    "architectures as an object": ({"model_type": None, "architectures": {"a": 1}}, "no list"),
    "hidden_size 0": ({"hidden_size": 0}, "no width"),
    "hidden_size -16": ({"hidden_size": -16}, "no width"),
    "hidden_size as text": ({"hidden_size": "16"}, "no number"),
    "hidden_size as a float": ({"hidden_size": 16.0}, "no whole number"),
    "hidden_size true": ({"hidden_size": True}, "no number"),
    "hidden_size missing": ({"hidden_size": None}, "needed"),
    "hidden_size without end": ({"hidden_size": 10**30}, "more than there is memory"),
    "another hidden_size": ({"hidden_size": 32}, "the tensors are narrower"),
    "vocab_size huge": ({"vocab_size": 10**12}, "the tensors are smaller"),
    "vocab_size 0": ({"vocab_size": 0}, "no vocabulary"),
    "vocab_size as a list": ({"vocab_size": [512]}, "no number"),
    "another vocab_size": ({"vocab_size": 300}, "the tensors are larger"),
    "layers 0": ({"num_hidden_layers": 0}, "nothing to loop"),
    "layers 1000000": ({"num_hidden_layers": 1_000_000}, "the tensors are fewer"),
    "layers as a list": ({"num_hidden_layers": [1]}, "no number"),
    "heads 0": ({"num_attention_heads": 0}, "no heads"),
    "heads 3": ({"num_attention_heads": 3, "num_key_value_heads": 2}, "cannot be shared"),
    "key heads 0": ({"num_key_value_heads": 0}, "no heads"),
    "head_dim odd": ({"head_dim": 7}, "rotation needs pairs"),
    "head_dim negative": ({"head_dim": -8}, "no width"),
    "steps 0": ({"total_ut_steps": 0}, "never loops"),
    "steps -4": ({"total_ut_steps": -4}, "never loops"),
    "steps as text": ({"total_ut_steps": "4"}, "no number"),
    "threshold 5": ({"early_exit_threshold": 5.0}, "no probability"),
    "threshold as text": ({"early_exit_threshold": "0.5"}, "no number"),
    "threshold negative": ({"early_exit_threshold": -0.5}, "no probability"),
    "epsilon 0": ({"rms_norm_eps": 0}, "division by zero"),
    "epsilon negative": ({"rms_norm_eps": -1e-6}, "no size"),
    "epsilon as text": ({"rms_norm_eps": "1e-6"}, "no number"),
    "theta 0": ({"rope_theta": 0}, "no base"),
    "theta negative": ({"rope_theta": -1e4}, "no base"),
    "theta as a list": ({"rope_theta": [1e4]}, "no number"),
    "unknown activation": ({"hidden_act": "swish9"}, "no such function"),
    "activation as a number": ({"hidden_act": 5}, "no such function"),
    "positions 0": ({"max_position_embeddings": 0}, "no positions"),
    "positions as text": ({"max_position_embeddings": "2048"}, "no number"),
    "tied as text": ({"tie_word_embeddings": "yes"}, "neither true nor false"),
    "tied as a number": ({"tie_word_embeddings": 1}, "neither true nor false"),
    "intermediate_size 0": ({"intermediate_size": 0}, "no width"),
    "intermediate_size as null": ({"intermediate_size": None}, "needed"),
    "rope_scaling as a list": ({"rope_scaling": [1]}, "no object"),
    "rope_scaling of an unknown kind": ({"rope_scaling": {"type": "nothing", "factor": 2.0}}, "no such kind"),
}


def cases() -> Iterator[Case]:
    for name, (changes, why) in CONFIGURATIONS.items():
        yield call(f"config.json: {name}", why, lambda p, changes=changes: load(p.own_model(**changes)))
    yield from _json()
    yield from _headers()
    yield from _shards()
    yield from _tokenizers()
    yield from _folders()
    yield from _near_misses()


def spoiled(file: str, change: Callable[[bytes], bytes]) -> Callable[[Place], Any]:
    """Loading a copy of the checkpoint with one file changed."""

    def act(place: Place) -> Any:
        folder = place.own_model()
        path = folder / file
        path.write_bytes(change(path.read_bytes()))
        return load(folder)

    return act


def _json() -> Iterator[Case]:
    good = json.dumps(CONFIG).encode()
    for name, content, why in (
        ("empty", b"", "nothing"),
        ("a list", b"[1]", "no object"),
        ("null", b"null", "no object"),
        ("cut off", good[:-40], "half an object"),
        ("not UTF-8", b"\xff\xfe{}", "no text"),
        ("deep", b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "deeper than any configuration"),
        ("a number of 5,000 digits", good[:-1] + b', "x": ' + b"1" * 5000 + b"}", "no number"),
        (
            "hidden_size of 5,000 digits",
            good.replace(b'"hidden_size": 16', b'"hidden_size": ' + b"1" * 5000),
            "no number",
        ),
        ("NaN", good.replace(b"1e-06", b"NaN"), "no number"),
        ("Infinity", good.replace(b"10000.0", b"Infinity"), "no number"),
        ("hidden_size twice", good[:-1] + b', "hidden_size": 32}', "which one counts?"),
        ("NUL bytes", b"\x00" * 64, "no JSON"),
    ):
        yield call(f"config.json: {name}", why, spoiled("config.json", lambda _, content=content: content))
    for at in sorted(random.Random(20260904).sample(range(1, len(good) - 1), 12)):
        yield call(
            f"generated: config.json cut at {at}", "half an object", spoiled("config.json", lambda b, at=at: b[:at])
        )


def header(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A safetensors file as header and buffer."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(text: bytes, buffer: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text + buffer


def edited(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """A file whose header was changed and whose buffer was not."""

    def apply(data: bytes) -> bytes:
        table, buffer = header(data)
        change(table)
        return joined(json.dumps(table).encode(), buffer)

    return apply


def first(table: dict[str, Any]) -> dict[str, Any]:
    return next(entry for name, entry in table.items() if name != "__metadata__")


def _headers() -> Iterator[Case]:
    def setting(**fields: Any) -> Callable[[bytes], bytes]:
        return edited(lambda table: first(table).update(fields))

    def removed(key: str) -> Callable[[bytes], bytes]:
        return edited(lambda table: first(table).pop(key) and None)

    def renamed(table: dict[str, Any]) -> None:
        name = next(name for name in table if name != "__metadata__")
        table[name + ".other"] = table.pop(name)

    def crowded(data: bytes) -> bytes:
        names = ", ".join(f'"t{number}": 0' for number in range(300_000))
        return joined(f'{{{names}, "t299999": 1}}'.encode(), b"")

    edits: dict[str, tuple[Callable[[bytes], bytes], str]] = {
        "empty": (lambda b: b"", "nothing"),
        "seven bytes": (lambda b: b[:7], "less than a header"),
        "cut in the header": (lambda b: b[:40], "half a header"),
        "cut in the buffer": (lambda b: b[:-100], "the end is missing"),
        "a byte too many": (lambda b: b + b"\0", "more than the tensors"),
        "a header without end": (lambda b: b"\xff" * 8 + b[8:], "longer than the format allows"),
        "a header longer than the file": (lambda b: (50_000_000).to_bytes(8, "little") + b[8:], "longer than the file"),
        "a header of length 0": (lambda b: bytes(8) + b[8:], "no header"),
        "a header that is a list": (lambda b: joined(b"[1, 2]", header(b)[1]), "no object"),
        "a header that is no JSON": (lambda b: joined(b"{nothing}", header(b)[1]), "no JSON"),
        "a header that is not UTF-8": (lambda b: joined(b'{"\xff": 1}', header(b)[1]), "no text"),
        "a deep header": (lambda b: joined(b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", b""), "deeper than any"),
        "a byte-order mark": (
            lambda b: joined(b"\xef\xbb\xbf" + json.dumps(header(b)[0]).encode(), header(b)[1]),
            "no JSON",
        ),
        "a header in UTF-16": (lambda b: joined(json.dumps(header(b)[0]).encode("utf-16"), header(b)[1]), "no UTF-8"),
        "300,000 names, one twice": (crowded, "which one counts?"),
        "no tensors": (lambda b: joined(b"{}", b""), "no weights"),
        "a name changed": (edited(renamed), "a tensor is missing"),
        "a tensor removed": (edited(lambda table: table.pop(list(table)[-1]) and None), "a tensor is missing"),
        "dtype missing": (removed("dtype"), "half a description"),
        "shape missing": (removed("shape"), "half a description"),
        "offsets missing": (removed("data_offsets"), "half a description"),
        "dtype unknown": (setting(dtype="F12"), "no such dtype"),
        "dtype as a number": (setting(dtype=5), "no such dtype"),
        "dtype of integers": (setting(dtype="I32"), "weights are not integers"),
        "dtype of 8 bits": (setting(dtype="F8_E4M3"), "another size"),
        "shape as text": (setting(shape="16"), "no list"),
        "shape as a number": (setting(shape=16), "no list"),
        "shape with a fraction": (setting(shape=[1.5]), "no whole number"),
        "shape with true": (setting(shape=[True]), "no number"),
        "shape negative": (setting(shape=[-1, 16]), "no size"),
        "shape too large": (setting(shape=[2**40, 2**40]), "another size"),
        "shape of a million ones": (setting(shape=[1] * 1_000_000), "no shape"),
        "shape nested": (setting(shape=[[16]]), "no number"),
        "shape null": (setting(shape=None), "no list"),
        "offsets as text": (setting(data_offsets="0-16"), "no pair"),
        "three offsets": (setting(data_offsets=[0, 1, 2]), "no pair"),
        "offsets backwards": (setting(data_offsets=[64, 0]), "no range"),
        "offsets negative": (setting(data_offsets=[-64, 0]), "no range"),
        "offsets beyond the file": (setting(data_offsets=[10**12, 10**12 + 64]), "no such bytes"),
        "offsets of 5,000 digits": (setting(data_offsets=[0, 10**4000]), "no such bytes"),
        "offsets as floats": (setting(data_offsets=[0.0, 64.0]), "no whole numbers"),
        "an entry that is a list": (edited(lambda table: table.update({"x": [1]})), "no description"),
        "an entry that is null": (edited(lambda table: table.update({"x": None})), "no description"),
        "a git-lfs pointer": (lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "no weights"),
        "a pickle": (lambda b: b"\x80\x04\x95" + b"x" * 100, "never read"),
        "a ZIP file": (lambda b: b"PK\x03\x04" + b"x" * 100, "no safetensors"),
        "HTML": (lambda b: b"<!DOCTYPE html><html>error</html>" * 10, "a page of errors"),
    }
    for name, (change, why) in edits.items():
        yield call(f"safetensors: {name}", why, spoiled(WEIGHTS, change))
    for number in range(20):
        at = random.Random(number).random()
        yield call(
            f"generated: safetensors cut at {at:.3f} of its length",
            "its end is missing",
            spoiled(WEIGHTS, lambda b, at=at: b[: int(at * len(b))]),
        )


def _shards() -> Iterator[Case]:
    def sharded(index: Any, files: tuple[str, ...] = ("a.safetensors",)) -> Callable[[Place], Any]:
        def act(place: Place) -> Any:
            folder = place.own_model()
            weights = (folder / WEIGHTS).read_bytes()
            (folder / WEIGHTS).unlink()
            for file in files:
                (folder / file).write_bytes(weights)
            made = index(header(weights)[0]) if callable(index) else index
            (folder / INDEX).write_bytes(made if isinstance(made, bytes) else json.dumps(made).encode())
            return load(folder)

        return act

    def mapped(to: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda table: {"weight_map": {name: to for name in table if name != "__metadata__"}}

    for name, index, why in (
        ("a list", [1], "no object"),
        ("no JSON", b"{", "half an object"),
        ("no map", {}, "no weight_map"),
        ("an empty map", {"weight_map": {}}, "no tensors"),
        ("a map that is a list", {"weight_map": [1]}, "no object"),
        ("a shard that is missing", mapped("b.safetensors"), "no such file"),
        ("a shard outside", mapped("../a.safetensors"), "leaves its folder"),
        ("a shard with an absolute path", mapped("/etc/passwd"), "leaves its folder"),
        ("a shard that is a pickle", mapped("a.bin"), "never read"),
        ("a shard that is a number", mapped(5), "no file name"),
        ("a shard that is null", mapped(None), "no file name"),
        ("a hidden shard", mapped(".a.safetensors"), "no plain name"),
        ("a shard with NUL", mapped("a\0.safetensors"), "no file name"),
        ("a shard with a long name", mapped("a" * 5000 + ".safetensors"), "no file name"),
        ("an unlisted tensor", lambda t: {"weight_map": {list(t)[-1]: "a.safetensors"}}, "more than the index lists"),
        (
            "a tensor too many",
            lambda t: {"weight_map": mapped("a.safetensors")(t)["weight_map"] | {"x": "a.safetensors"}},
            "less than the index lists",
        ),
        ("deep", b'{"weight_map": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "deeper than any index"),
    ):
        yield call(f"index: {name}", why, sharded(index))
    yield call(
        "index: two shards with the same tensors",
        "which one counts?",
        sharded(
            lambda t: {
                "weight_map": {
                    name: ("a.safetensors", "b.safetensors")[at % 2]
                    for at, name in enumerate(n for n in t if n != "__metadata__")
                }
            },
            ("a.safetensors", "b.safetensors"),
        ),
    )

    def linked(place: Place) -> Any:
        folder = place.own_model()
        outside = place.here / "outside.safetensors"
        (folder / WEIGHTS).rename(outside)
        (folder / "a.safetensors").symlink_to(outside)
        table, _ = header(outside.read_bytes())
        (folder / INDEX).write_text(json.dumps(mapped("a.safetensors")(table)))
        return load(folder)

    yield call("accepted: index: a link", "the hub's cache is made of links", linked, accepted=True)


def _tokenizers() -> Iterator[Case]:
    def spoiled_tokenizer(change: Callable[[bytes], bytes]) -> Callable[[Place], str]:
        def make(place: Place) -> str:
            folder = place.own_model()
            path = folder / "tokenizer.json"
            path.write_bytes(change(path.read_bytes()))
            return f"--model={folder}"

        return make

    for name, change, why in (
        ("empty", lambda b: b"", "nothing"),
        ("no JSON", lambda b: b"{", "half an object"),
        ("a list", lambda b: b"[]", "no object"),
        ("an empty object", lambda b: b"{}", "no model"),
        ("cut in half", lambda b: b[: len(b) // 2], "half an object"),
        ("not UTF-8", lambda b: b"\xff\xfe" + b, "no text"),
        ("an unknown model", lambda b: b'{"version": "1.0", "model": {"type": "Nothing"}}', "no such model"),
        ("deep", lambda b: b"[" * 200_000, "deeper than any tokenizer"),
    ):
        yield command(f"tokenizer.json: {name}", why, *measure(), spoiled_tokenizer(change))

    def without(place: Place) -> str:
        folder = place.own_model()
        (folder / "tokenizer.json").unlink()
        return f"--model={folder}"

    def too_small(place: Place) -> Any:
        from loopscope import load_tokenizer

        return load_tokenizer(place.model, vocabulary_size=10)

    def folder_for_file(place: Place) -> str:
        folder = place.own_model()
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer.json").mkdir()
        return f"--model={folder}"

    def fifo_for_file(place: Place) -> str:
        folder = place.own_model()
        (folder / "tokenizer.json").unlink()
        os.mkfifo(folder / "tokenizer.json")
        return f"--model={folder}"

    yield command("tokenizer.json: missing", "texts cannot be read", *measure(), without)
    yield command("tokenizer.json: a folder", "no file", *measure(), folder_for_file)
    yield command("tokenizer.json: a FIFO", "nobody writes to it", *measure(), fifo_for_file)
    yield call("load_tokenizer: more tokens than embeddings", "ids would be outside", too_small)


def _folders() -> Iterator[Case]:
    def replaced(file: str, make: Callable[[Path], object]) -> Callable[[Place], Any]:
        def act(place: Place) -> Any:
            folder = place.own_model()
            (folder / file).unlink()
            make(folder / file)
            return load(folder)

        return act

    for file in ("config.json", WEIGHTS):
        yield call(f"{file}: missing", "needed", replaced(file, lambda path: None))
        yield call(f"{file}: a folder", "no file", replaced(file, lambda path: path.mkdir()))
        yield call(f"{file}: a FIFO", "nobody writes to it", replaced(file, os.mkfifo))
        yield call(f"{file}: a link to nothing", "no file", replaced(file, lambda path: path.symlink_to("nothing")))
        yield call(f"{file}: a link to itself", "no file", replaced(file, lambda path: path.symlink_to(path)))
        yield call(
            f"{file}: a link to an endless device",
            "it never ends",
            replaced(file, lambda path: path.symlink_to("/dev/zero")),
        )
    yield call(
        "weights as a pickle only",
        "never read",
        replaced(WEIGHTS, lambda path: (path.parent / "pytorch_model.bin").write_bytes(b"\x80\x04")),
    )
    yield call(
        "weights under another name",
        "not the layout",
        replaced(WEIGHTS, lambda path: (path.parent / "mine.safetensors").write_bytes(b"")),
    )
    yield call("a checkpoint that is a file", "no folder", lambda p: load(p.file("dir/x", "x")))
    yield call("an empty folder", "no checkpoint", lambda p: load(p.here))


def _near_misses() -> Iterator[Case]:
    yield call(
        "accepted: config.json with other fields",
        "they are left alone",
        lambda p: load(p.own_model(transformers_version="9.9", auto_map={"AutoModel": "x.py"})),
        accepted=True,
    )
    yield call(
        "accepted: safetensors without metadata",
        "it is optional",
        spoiled(WEIGHTS, edited(lambda table: table.pop("__metadata__") and None)),
        accepted=True,
    )
    yield call(
        "accepted: a header padded with blanks",
        "the format allows it",
        spoiled(WEIGHTS, lambda b: joined(json.dumps(header(b)[0]).encode() + b" " * 64, header(b)[1])),
        accepted=True,
    )
    yield call("accepted: dtype bf16", "a usual short name", lambda p: load(p.model, dtype="bf16"), accepted=True)
    yield call(
        "accepted: random weights from a configuration alone",
        "no weights are needed",
        lambda p: load(config_alone(p), model_args={"random_weights": True}),
        accepted=True,
    )
    yield call(
        "accepted: config.json with a byte of Unicode",
        "UTF-8",
        lambda p: load(p.own_model(note="größe")),
        accepted=True,
    )


def config_alone(place: Place) -> Path:
    return Path(place.file("alone/config.json", json.dumps(CONFIG))).parent
