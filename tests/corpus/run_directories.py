"""Run directories: manifests, commit records, shards, logs, and what is put beside them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from case import Case, call, command
from flags import measure, model_of
from place import Place

MANIFEST, RECORD, SHARD = "manifest.json", "units/000000.json", "questions/000000.parquet"
DEEP = b'{"schema_version": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


def manifest(**changes: Any) -> Callable[[bytes], bytes]:
    """A manifest with fields changed, written as the program writes it."""

    def apply(data: bytes) -> bytes:
        content = json.loads(data)
        for key, value in changes.items():
            at = content
            *outer, last = key.split("__")
            for name in outer:
                at = at[int(name) if name.isdecimal() else name]
            if value is ...:
                del at[last]
            else:
                at[last] = value
        return json.dumps(content).encode()

    return apply


MANIFESTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda b: b"", "nothing"),
    "a list": (lambda b: b"[]", "no object"),
    "null": (lambda b: b"null", "no object"),
    "an empty object": (lambda b: b"{}", "no run"),
    "NUL bytes": (lambda b: bytes(len(b)), "a lost sector"),
    "not UTF-8": (lambda b: b"\xff\xfe" + b, "no text"),
    "deep": (lambda b: DEEP, "deeper than any manifest"),
    "deep objects": (lambda b: b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "deeper than any manifest"),
    "a number of 5,000 digits": (lambda b: b'{"schema_version": ' + b"1" * 5000 + b"}", "no number"),
    "another schema": (manifest(schema_version=99), "of a later version"),
    "schema as text": (manifest(schema_version="x"), "no number"),
    "no model": (manifest(model=...), "needed"),
    "model as text": (manifest(model="toy-ouro"), "no object"),
    "no tasks": (manifest(tasks=[]), "needed"),
    "tasks as an object": (manifest(tasks={}), "no list"),
    "a task without rows": (manifest(tasks__0__rows=0), "nothing measured"),
    "rows without end": (manifest(tasks__0__rows=10**12), "more units than there are"),
    "rows as text": (manifest(tasks__0__rows="many"), "no number"),
    "a level that is not": (manifest(level="ful"), "no such level"),
    "depths empty": (manifest(depths=[]), "nothing measured"),
    "depths negative": (manifest(depths=[-1]), "no depth"),
    "transitions as text": (manifest(transitions="4"), "no list"),
    "an unknown field": (manifest(extra=1), "of another program"),
    "a hash that is none": (manifest(code_sha256="x"), "no hash"),
    "unit_size 0": (manifest(unit_size=0), "no units"),
    "unit_size as text": (manifest(unit_size="two"), "no number"),
}


def reading(name: str, why: str, file: str, change: Callable[[bytes], bytes]) -> Iterator[Case]:
    """The same damage read by a command and by a call."""
    yield command(f"tables of a run: {name}", why, "tables", lambda p: p.spoiled_run(file, change), "--name=mechanism")
    yield call(f"Run: {name}", why, lambda p: opened(p.spoiled_run(file, change)))


def opened(path: str | Path) -> Any:
    from loopscope import Run

    run = Run(path)
    return run.records, run.depths, run.examples, run.table("mechanism")


def cases() -> Iterator[Case]:
    for name, (change, why) in MANIFESTS.items():
        yield from reading(f"manifest: {name}", why, MANIFEST, change)
    for at in sorted(random.Random(20260904).sample(range(1, 1200), 12)):
        yield call(
            f"generated: Run with its manifest cut at {at}",
            "half an object",
            lambda p, at=at: opened(p.spoiled_run(MANIFEST, lambda b: b[:at])),
        )
    yield from _verify()
    yield from _shards()
    yield from _links()
    yield from _continuing()
    yield from _near_misses()


def _verify() -> Iterator[Case]:
    """`verify` says what is wrong: findings on stdout, one line on stderr, exit code 2."""
    damage: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
        "a commit record cut off": (RECORD, lambda b: b[:-20], "half an object"),
        "an empty commit record": (RECORD, lambda b: b"", "nothing"),
        "a deep commit record": (RECORD, lambda b: DEEP, "deeper than any record"),
        "a commit record that is a list": (RECORD, lambda b: b"[]", "no object"),
        "another sum in a commit record": (RECORD, lambda b: b.replace(b"0", b"1", 1), "not its own"),
        "a shard cut off": (SHARD, lambda b: b[:-8], "its end is missing"),
        "an empty shard": (SHARD, lambda b: b"", "nothing"),
        "a shard of zeros": (SHARD, lambda b: bytes(len(b)), "a lost sector"),
        "a shard with a flipped bit": (SHARD, lambda b: flip(b, len(b) // 2), "another number"),
        "a shard with a flipped footer": (SHARD, lambda b: flip(b, len(b) - 20), "no Parquet"),
        "a deep manifest": (MANIFEST, lambda b: DEEP, "no manifest"),
    }  # fmt: skip
    for name, (file, change, why) in damage.items():
        yield command(
            f"verify: {name}",
            why,
            "verify",
            lambda p, file=file, change=change: p.spoiled_run(file, change),
            "--no-replay",
        )
    yield command("verify: a shard is missing", "it was deleted", "verify", lambda p: without(p, SHARD), "--no-replay")
    yield command(
        "verify: a record is missing", "it was deleted", "verify", lambda p: without(p, RECORD), "--no-replay"
    )
    yield command(
        "verify: a stranger among the shards",
        "no unit has it",
        "verify",
        lambda p: with_file(p, "questions/mine.parquet"),
        "--no-replay",
    )
    yield command("verify: weights that changed", "another model", "verify", changed_weights)


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def without(place: Place, *files: str) -> str:
    run = place.own_run()
    for file in files:
        (run / file).unlink()
    return str(run)


def with_file(place: Place, file: str, content: bytes = b"x") -> str:
    run = place.own_run()
    (run / file).write_bytes(content)
    return str(run)


def changed_weights(place: Place) -> str:
    """A run whose log names a checkpoint that has other weights now."""
    from place import measure_run

    model = place.own_model()
    output = place.here / "measured"
    measure_run(model, output)
    path = model / "model.safetensors"
    path.write_bytes(flip(path.read_bytes(), len(path.read_bytes()) - 1))
    return str(output)


def _shards() -> Iterator[Case]:
    """What `verify` would find is never read as numbers."""
    for name, file, at in (
        ("questions, in the middle", SHARD, 0.5),
        ("questions, at the start", SHARD, 0.02),
        ("questions, in the footer", SHARD, 0.95),
        ("depths, in the middle", "depths/000000.parquet", 0.5),
        ("questions of the last unit", "questions/000001.parquet", 0.3),
    ):

        def flipped(data: bytes, at: float = at) -> bytes:
            return flip(data, int(at * len(data)))

        yield command(
            f"tables: a flipped bit in {name}",
            "another number",
            "tables",
            lambda p, file=file, change=flipped: p.spoiled_run(file, change),
        )
        yield call(
            f"Run: a flipped bit in {name}",
            "another number",
            lambda p, file=file, change=flipped: opened(p.spoiled_run(file, change)),
        )
    for number in range(12):
        at = random.Random(number).random()
        yield command(
            f"generated: report, a flipped bit at {at:.3f} of the questions",
            "another number",
            "report",
            lambda p, at=at: p.spoiled_run(SHARD, lambda b: flip(b, int(at * len(b)))),
            "--output=r.html",
        )
    yield command(
        "tables of two runs, one damaged",
        "another number",
        "tables",
        lambda p: str(p.run),
        lambda p: p.spoiled_run(SHARD, lambda b: flip(b, len(b) // 2)),
    )
    yield call(
        "Run.tokens with a flipped bit",
        "another number",
        lambda p: tokens(p.spoiled_run("tokens/000000.parquet", lambda b: flip(b, len(b) // 2))),
    )


def tokens(path: str) -> Any:
    from loopscope import Run

    found = Run(path).tokens
    return found.collect() if hasattr(found, "collect") else found


def _links() -> Iterator[Case]:
    def replaced(file: str, make: Callable[[Path], object]) -> Callable[[Place], str]:
        def act(place: Place) -> str:
            run = place.own_run()
            (run / file).unlink(missing_ok=True)
            make(run / file)
            return str(run)

        return act

    for name, make, why in (
        ("a folder", lambda path: path.mkdir(), "no file"),
        ("a FIFO", os.mkfifo, "nobody writes to it"),
        ("a link to nothing", lambda path: path.symlink_to("nothing"), "no file"),
        ("a link to itself", lambda path: path.symlink_to(path), "no file"),
        ("a link to an endless device", lambda path: path.symlink_to("/dev/zero"), "it never ends"),
    ):
        for file in (MANIFEST, RECORD, SHARD):
            if file == MANIFEST:
                yield command(f"tables: {file} is {name}", why, "tables", replaced(file, make), "--name=mechanism")
            yield command(f"verify: {file} is {name}", why, "verify", replaced(file, make), "--no-replay")
    for file in (".loopscope.lock", "events.jsonl"):

        def secret(place: Place, file: str = file) -> str:
            run = Path(without(place, RECORD))
            kept = Path(place.file("precious.txt", "keep me"))
            (run / file).unlink(missing_ok=True)
            (run / file).symlink_to(kept)
            return f"--output={run}"

        yield command(
            f"measure into a run whose {file} is a link",
            "what it leads to is not ours",
            *measure(transitions="2", limit="4", level="grid", output=None),
            "--tokens",
            "--protocol=loopscope:unit_size=2",
            model_of,
            secret,
        )
        yield command(
            f"measure into a run whose {file} is a FIFO",
            "nobody reads it",
            *measure(transitions="2", limit="4", level="grid", output=None),
            "--tokens",
            "--protocol=loopscope:unit_size=2",
            model_of,
            lambda p, file=file: f"--output={replaced(file, os.mkfifo)(p)}",
        )


def _continuing() -> Iterator[Case]:
    """The same folder with another command."""
    flags = {"transitions": "2", "limit": "4", "level": "grid", "output": None}
    rest = ["--tokens", "--protocol=loopscope:unit_size=2"]

    def again(name: str, why: str, *more: str, **changes: Any) -> Case:
        arguments = measure(**{**flags, **changes})
        return command(
            f"measure into another run: {name}",
            why,
            *arguments,
            *(more or rest),
            model_of,
            lambda p: f"--output={p.own_run()}",
        )

    yield again("other updates", "another run", transitions="3")
    yield again("more questions", "another run", limit="5")
    yield again("another level", "another run", level="quick")
    yield again("another task", "another run", tasks="arithmetic-mc")
    yield again("without tokens", "another run", "--protocol=loopscope:unit_size=2")
    yield again("other units", "another run", "--tokens", "--protocol=loopscope:unit_size=4")
    yield again("another dtype", "another run", *rest, dtype="float64")
    yield again("another readout", "another run", "--tokens", protocol="loopscope:unit_size=2,readout_dtype=float64")
    yield again("another batch", "another run", *rest, **{"batch-size": "1"})

    def same(place: Place, run: str) -> str:
        return f"--output={run}"

    for name, make, why in (
        ("the manifest is missing", lambda p: without(p, MANIFEST), "its records stay"),
        ("the manifest is damaged", lambda p: p.spoiled_run(MANIFEST, lambda b: b[:-20]), "its records stay"),
        (
            "the manifest was altered",
            lambda p: p.spoiled_run(MANIFEST, manifest(code_sha256="0" * 64)),
            "its records name another",
        ),
        (
            "the manifest is of a later version",
            lambda p: p.spoiled_run(MANIFEST, manifest(schema_version=99)),
            "its records are of this one",
        ),
    ):
        yield command(
            f"measure into a run where {name}",
            why,
            *measure(**flags),
            *rest,
            model_of,
            lambda p, make=make: same(p, make(p)),
        )


def _near_misses() -> Iterator[Case]:
    flags = measure(transitions="2", limit="4", level="grid", output=None)
    rest = ["--tokens", "--protocol=loopscope:unit_size=2"]
    for name, make, why in (
        ("a shard is cut", lambda p: p.spoiled_run(SHARD, lambda b: b[:-8]), "it is measured again"),
        ("a record is missing", lambda p: without(p, RECORD), "it is measured again"),
        ("the log is missing", lambda p: without(p, "events.jsonl"), "a new one begins"),
        ("a stranger is among the shards", lambda p: with_file(p, "questions/mine.parquet"), "it is left alone"),
        ("a note lies beside", lambda p: with_file(p, "note.txt"), "it is left alone"),
    ):
        yield command(
            f"accepted: measure again where {name}",
            why,
            *flags,
            *rest,
            model_of,
            lambda p, make=make: f"--output={make(p)}",
            accepted=True,
        )
    yield command(
        "accepted: tables of an unfinished run",
        "what is there counts",
        "tables",
        lambda p: without(p, "units/000001.json"),
        "--name=mechanism",
        accepted=True,
    )
    yield command(
        "accepted: tables of a run behind a link",
        "a folder",
        "tables",
        lambda p: linked(p),
        "--name=mechanism",
        accepted=True,
    )
    yield call(
        "accepted: Run with a torn log",
        "the last line of a kill",
        lambda p: opened(p.spoiled_run("events.jsonl", lambda b: b[:-10])),
        accepted=True,
    )


def linked(place: Place) -> str:
    (place.here / "link").symlink_to(place.run)
    return str(place.here / "link")
