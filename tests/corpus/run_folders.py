"""Run directories: damaged ones, ones that a stranger altered and sealed again, ones that another call continues."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from harness import EITHER, EVIL, GOOD, RUN, SOLUTIONS, Argument, Case, Place, call, command

MANIFEST, RECORD, SHARD = "manifest.json", "units/000000.json", "questions/000000.parquet"
TABLES = ("questions", "depths", "examples", "tokens", "trace")


def read_everything(path: Path) -> Any:
    """Every reading of a run that needs no model; figures of the page are given as what they show, not drawn."""
    import loopscope as ls
    from loopscope.report import write_report
    from loopscope.stats import Bootstrap
    from loopscope.studies.figures import FigureResult

    run = ls.Run(path)
    for name in TABLES:
        run.read(name)
    run.table("mechanism", Bootstrap(resamples=5))
    str(run)
    with mock.patch.object(FigureResult, "drawn", lambda figure, *_: repr(figure.shown).encode()):
        return write_report([run], path.parent / "report.html", Bootstrap(resamples=5))


def sealed(path: Path) -> Path:
    """A run whose records name its manifest and its shards as they are now."""
    from loopscope.store.manifest import sha256_bytes
    from loopscope.store.run import UnitRecord

    manifest = sha256_bytes((path / MANIFEST).read_bytes())
    for file in sorted((path / "units").glob("*.json")):
        record = UnitRecord.decode(file.read_bytes())
        found = {}
        for shard in record.shards:
            data = (path / shard.table / f"{file.stem}.parquet").read_bytes()
            found[shard.table] = shard.model_copy(update={"bytes": len(data), "sha256": sha256_bytes(data)})
        update = {"manifest_sha256": manifest, "shards": tuple(found.values())}
        file.write_bytes(record.model_copy(update=update).encode())
    return path


def resealed(place: Place, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of the run with its manifest changed and sealed again."""
    path = place.copy("run")
    content = json.loads((path / MANIFEST).read_text())
    change(content)
    (path / MANIFEST).write_text(json.dumps(content, indent=2) + "\n")
    return sealed(path)


def spoiled(place: Place, file: str, change: Callable[[bytes], bytes | None]) -> Path:
    """A copy of the run with one file changed, or removed."""
    path = place.copy("run")
    held = path / file
    data = change(held.read_bytes()) if held.exists() else change(b"")
    if data is None:
        held.unlink()
    else:
        held.write_bytes(data)
    return path


def flip(data: bytes, at: float) -> bytes:
    index = int(at * len(data))
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


def cases() -> Iterator[Case]:
    yield from _damaged()
    yield from _altered()
    yield from _code()
    yield from _continued()


def _damaged() -> Iterator[Case]:
    chance = random.Random(20260904)
    for file in (MANIFEST, RECORD, *(f"{table}/00000{n}.parquet" for table in TABLES for n in range(2))):
        at = chance.random()
        for name, arguments in {"verify": ["--no-replay"], "report": ["--output=r.html"]}.items():
            yield command(
                f"{name}: a flipped bit at {at:.3f} of {file}",
                name, lambda p, f=file, at=at: spoiled(p, f, lambda b: flip(b, at)), *arguments,
            )  # fmt: skip
    for file, change in ((RECORD, None), (SHARD, None), ("questions/mine.parquet", b"x")):
        yield command(
            f"verify: {file} {'added' if change else 'removed'}", "verify",
            lambda p, f=file, c=change: spoiled(p, f, lambda _: c), "--no-replay",
        )  # fmt: skip
    yield command(
        "tables of an unfinished run", "tables", lambda p: spoiled(p, "units/000001.json", lambda _: None),
        "--name=mechanism", wanted=GOOD,
    )  # fmt: skip
    yield command("tables of a link", "tables", linked, "--name=mechanism", wanted=GOOD)


def linked(place: Place) -> Path:
    (place.here / "link").symlink_to(place.run)
    return place.here / "link"


def _altered() -> Iterator[Case]:
    """Sound hashes over what no measurement writes; each field of the manifest is in `declared`."""
    manifests: dict[str, Callable[[dict[str, Any]], object]] = {
        "100,000 transitions": lambda m: m.update(transitions=list(range(100_000))),
        "900,000 units": lambda m: (m.update(unit_size=1), m["tasks"][0].update(rows=900_000)),
        "transitions that fall": lambda m: m.update(transitions=[3, 2]),
        "transitions without their depths": lambda m: m.update(transitions=[7]),
        "a task twice": lambda m: m.update(tasks=m["tasks"] * 2),
        "a lens of 10^9": lambda m: m["settings"].update(lens=10**9),
        "a lens of text": lambda m: m["settings"].update(lens="x"),
        "longer steps without end": lambda m: m["settings"].update(scales_to=1e308),
        "another schema": lambda m: m.update(schema_version=99),
        "schema as text": lambda m: m.update(schema_version="x"),
    }
    for name, change in manifests.items():
        yield call(f"altered manifest: {name}", lambda p, c=change: read_everything(resealed(p, c)))
    for table in TABLES:
        for what in ("nan", "1e308", "-1", "null", "text", "no rows"):
            yield call(f"altered {table}: {what}", lambda p, t=table, w=what: read_everything(altered(p, t, w)), EITHER)


def altered(place: Place, table: str, what: str) -> Path:
    """A run with every number of a shard changed and sealed again."""
    import polars as pl
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    path = place.copy("run")
    file = path / table / "000000.parquet"
    frame, schema = pl.read_parquet(file), pq.read_schema(file)
    numbers = pl.selectors.float() if what in ("nan", "1e308", "null") else pl.selectors.numeric()
    value = pl.lit({"nan": float("nan"), "1e308": 1e308, "-1": -1}.get(what))
    if what == "text":
        frame = frame.with_columns(pl.selectors.numeric().cast(pl.String))
    elif what == "no rows":
        frame = frame.clear()
    else:
        names = pl.selectors.expand_selector(frame, numbers)
        columns = [name for name in names if what != "null" or schema.field(name).nullable]
        frame = frame.with_columns(value.cast(frame.schema[name], strict=False).alias(name) for name in columns)
    written = frame.to_arrow()
    pq.write_table(written if what == "text" else written.cast(schema), file)
    return sealed(path)


CODE: dict[str, dict[str, Any]] = {
    "a file": {"spec": "evil.py:build"},
    "a file and two choices": {"spec": "evil.py:build:a=1:b=2"},
    "a module": {"spec": "evil:build"},
    "model_args": {"model_args": {"inside": "evil.py:build"}},
    "a task of lm_eval": {"tasks": ["lm_eval:evil.yaml"]},
    "a data file": {"tasks": ["arithmetic=evil.jsonl"]},
    "a template": {"template": "evil.toml"},
}
OPENING: dict[str, tuple[Argument, ...]] = {
    "verify": (), "verify --bitwise": (), "control": (), "control --tier=acting": (), "control --tier=answers": (),
    "control --heads=heads": (), "tables --name=mechanism": (), "figures --name=direction-progress --output=out": (),
    "compare": (), "report --output=page.html": (), "diff": (lambda p: p.run,), "push": ("a/b",),
}  # fmt: skip
"""Every command that opens a run, and what else it needs."""


def _code() -> Iterator[Case]:
    """A run that names code which came with it: whatever a command says of it, the code does not run."""
    for named, changes in CODE.items():
        for words, more in OPENING.items():
            name, *flags = words.split()
            sent = partial(mailed, changes)
            yield command(f"{words} of a run that names {named}", name, sent, *more, *flags, wanted=EITHER)
    yield call("lm_eval_scores of a run that names a task's file", scores_of_a_file)


def mailed(changes: dict[str, Any], place: Place) -> Path:
    """The run as a stranger may send it: sound hashes, files beside it, and their names inside."""
    files = {
        "evil.py": EVIL,
        "evil.yaml": "task: evil\ndataset_path: json\ndoc_to_text: !function evil.f\n",
        "evil.jsonl": SOLUTIONS,
        "evil.toml": 'kind = "solution"\n',
    }
    for name, content in files.items():
        place.file(name, content)

    def change(manifest: dict[str, Any]) -> None:
        manifest["model"]["spec"] = changes.get("spec", "toy-ouro")
        manifest["settings"]["model_args"] = changes.get("model_args", {})

    from loopscope.store.run import event_line

    path = resealed(place, change)
    log = [json.loads(line) for line in (path / "events.jsonl").read_text().split("\n") if line]
    for event in log:
        event.pop("sha256")
        if event["event"] == "call":
            event.update({name: value for name, value in changes.items() if name in ("tasks", "template")})
    (path / "events.jsonl").write_bytes(b"".join(map(event_line, log)))
    return path


def scores_of_a_file(place: Place) -> Any:
    """Scores of a run whose only task is called like a file beside it."""
    import loopscope as ls

    place.file("evil.yaml", "task: evil\ndataset_path: json\ndoc_to_text: !function evil.f\n")
    place.file("evil.py", EVIL)
    path = resealed(place, lambda manifest: manifest["tasks"][0].update(name="lm_eval:evil.yaml"))
    return ls.lm_eval_scores(ls.Run(path))


def again(run: Path, model: Path, **changes: Any) -> Any:
    """The call that made the shared run, into another folder."""
    import loopscope as ls

    return ls.measure(str(model), output=run, **RUN | changes)


def _continued() -> Iterator[Case]:
    for changes in ({"transitions": [3]}, {"limit": 5}, {"tasks": ["arithmetic-mc"]}, {"dtype": "float64"}):
        yield call(f"measure into another run: {changes}", lambda p, c=changes: again(p.copy("run"), p.model, **c))
    for file in (".loopscope.lock", "events.jsonl"):
        for name, make in {"a link": lambda path: path.symlink_to("/etc/hostname"), "a FIFO": os.mkfifo}.items():
            begun = partial(replaced, file, make)
            yield call(f"measure: {file} is {name}", lambda p, b=begun: again(b(p), p.model))
    for file, data in ((SHARD, b"x"), (RECORD, None), ("events.jsonl", None), ("questions/mine.parquet", b"x")):
        yield call(
            f"measure again: {file} {data!r}",
            lambda p, f=file, d=data: again(spoiled(p, f, lambda _: d), p.model), GOOD,
        )  # fmt: skip


def replaced(file: str, make: Callable[[Path], object], place: Place) -> Path:
    """An unfinished copy of the run, one of its files replaced by something else."""
    path = spoiled(place, RECORD, lambda b: None)
    (path / file).unlink(missing_ok=True)
    make(path / file)
    return path
