"""Runs on the hub: the folder that is uploaded, and an exchange with a server that speaks the hub's protocol."""

from __future__ import annotations

import base64
import getpass
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import loopscope as ls
from loopscope.cli.app import exit_code
from loopscope.hub import write_hub_folder
from loopscope.stats import Bootstrap
from loopscope.store import Manifest, StoredRun, verify
from loopscope.store.manifest import decode_manifest
from loopscope.store.verification import public_manifest
from tests.hub_server import TOKEN, Hub, Repository, serving

MODEL = """
import loopscope as ls

def build(token, folder):
    return ls.load_model("toy-ouro", device="cpu")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ls.Run:
    """A model built by code in a folder, from arguments that nobody else may see."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / "mine.py").write_text(MODEL)
    rows = [{"id": f"q{n}", "prompt": f"{n} + {n} =", "solution": f" {n + n}"} for n in range(5)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "model": f"{folder}/mine.py:build",
        "model_args": f"token=hf_a_secret,folder={Path.home() / 'checkpoints'}",
        "tasks": f"{folder / 'sums.jsonl'},arithmetic",
        "transitions": "1-2",
        "tokenizer": "toy-ouro",
        "limit": "5",
        "lens": "2",
        "device": "cpu",
        "output": str(folder / "run"),
    }
    words = ["measure", *(word for name, value in given.items() for word in (f"--{name}", value))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["loopscope", *words])  # what the log keeps
        assert exit_code(words) == 0
    return ls.Run(folder / "run")


@pytest.fixture(scope="module")
def built(run: ls.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uploaded") / "sums"
    write_hub_folder(run, folder, "someone/sums")
    return folder


def private_words(run: ls.Run) -> list[bytes]:
    places = [Path.home(), tempfile.gettempdir(), run.path, run.path.parent, Path.cwd(), "mine.py", "hf_a_secret"]
    # A login such as "root" is a word of other texts, too: there is no such word in this run's.
    return [str(place).encode() for place in (*places, f"/{getpass.getuser()}")]


def test_the_folder_is_a_sound_run_with_the_same_rows(run: ls.Run, built: Path) -> None:
    again = ls.open_run(built)
    assert verify(again).ok
    assert again.finished
    for table in run.manifest.tables():
        assert again.read(table.name).equals(run.read(table.name))
        for unit in run.units:
            shards = [each.layout.shard(table.name, unit).read_bytes() for each in (run, again)]
            assert shards[0] == shards[1]
    assert again.vocabulary == run.vocabulary
    assert again.backends_used == run.backends_used


def test_nothing_in_the_folder_names_a_place_a_person_or_an_argument(run: ls.Run, built: Path) -> None:
    manifest = run.layout.manifest.read_bytes()
    assert b"hf_a_secret" in manifest
    assert str(run.path.parent).encode() in manifest
    for path in built.rglob("*"):
        for word in private_words(run) if path.is_file() else ():
            assert word not in path.read_bytes(), (path, word)


def test_what_is_left_out_is_no_more_than_that(run: ls.Run, built: Path) -> None:
    one, other = (manifest.model_dump() for manifest in (run.manifest, StoredRun(built).manifest))
    different = {name for name in one if one[name] != other[name]}
    assert different == {"model", "settings"}
    assert {name for name in one["model"] if one["model"][name] != other["model"][name]} == {"spec"}
    assert one["settings"].keys() - other["settings"].keys() == {"model_args"}


def test_a_page_names_paths_and_arguments_only_where_that_is_asked_for(run: ls.Run, tmp_path: Path) -> None:
    for shown in (False, True):
        page = run.report(tmp_path / "page.html", Bootstrap(resamples=20), with_command=shown).read_text()
        packs = (base64.b64decode(packed) for packed in re.findall(r'x-loopscope" id="[^"]*">([^<]+)<', page))
        held = "".join(zlib.decompress(pack, -15).decode(errors="replace") for pack in packs)
        assert '"provenance"' in held
        found = [word for word in map(bytes.decode, private_words(run)) if word in page + held]
        assert ({"hf_a_secret", str(run.path)} <= set(found)) if shown else not found


@pytest.mark.parametrize(
    ("spec", "facts", "public"),
    [
        ("toy-ouro", {"toy": True}, "toy-ouro"),
        ("ByteDance/Ouro-1.4B", {"revision": "abc"}, "ByteDance/Ouro-1.4B"),
        ("loop:meta/llama@main:10-20", {"revision": "abc"}, "loop:meta/llama@main:10-20"),
        ("checkpoints/ann/step-900", {}, "a-model"),
        ("/scratch/ann/step-900", {"toy": True}, "a-model"),
        ("mine.py:build", {}, "a-model"),
    ],
)
def test_a_models_specification_is_public_if_it_is_a_name(
    run: ls.Run, spec: str, facts: dict[str, Any], public: str
) -> None:
    payload = run.manifest.model_dump(mode="json")
    payload["model"] |= {"spec": spec, "name": "a-model", "toy": False} | facts
    payload["settings"] |= {"fewshot_split": "/data/ann/few.jsonl", "note": "read from ~ann/x/few.jsonl"}
    found = public_manifest(Manifest.model_validate_json(json.dumps(payload)))
    assert found.model.spec == public
    assert found.settings["fewshot_split"] == "few.jsonl"
    assert found.settings["note"] == "read from few.jsonl"
    assert found.settings.get("training_step") == (900 if "900" in spec else None)
    assert decode_manifest(found.encode(), "here") == found


def test_an_unfinished_and_a_damaged_run_are_refused_in_one_line(run: ls.Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    shard = next((tmp_path / "run" / "questions").iterdir())
    shard.write_bytes(bytes(reversed(shard.read_bytes())))
    with pytest.raises(ls.LoopscopeError, match=r"is not whole: unit 000.*does not match its hash"):
        ls.Run(tmp_path / "run").push_to_hub("someone/sums")
    with pytest.raises(ls.LoopscopeError, match="is damaged"):
        ls.open_run(tmp_path / "run")
    (tmp_path / "run" / "units" / f"{shard.stem}.json").unlink()
    shard.unlink()
    with pytest.raises(ls.LoopscopeError, match=r"is not whole: unit 000.*not measured yet"):
        ls.Run(tmp_path / "run").push_to_hub("someone/sums")


@pytest.mark.parametrize("name", ["sums", "a/b/c", "", "../sums"])
def test_a_name_that_is_no_data_set_is_a_users_mistake(run: ls.Run, name: str) -> None:
    with pytest.raises(ls.LoopscopeError, match="give owner/name"):
        run.push_to_hub(name)
    with pytest.raises(ls.LoopscopeError, match="give owner/name"):
        ls.open_run(f"hf://{name}")


SERVER = """
import contextlib, io, json, os, sys, traceback
for line in sys.stdin:
    code, arguments, token = json.loads(line)
    os.environ["HF_TOKEN"], sys.argv[1:], said, status = token, arguments, [io.StringIO(), io.StringIO()], 0
    with contextlib.redirect_stdout(said[0]), contextlib.redirect_stderr(said[1]):
        try:
            exec(code, {})
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            status = traceback.print_exc() or 1
    print(json.dumps([status, *(each.getvalue() for each in said)]), flush=True)
"""


class Client:
    """A process that uses a hub: its address and cache are read when `huggingface_hub` is imported."""

    def __init__(self, hub: Hub, cache: Path) -> None:
        environment = os.environ | {
            "HF_ENDPOINT": hub.address,
            "HF_HOME": str(cache),
            "HF_HUB_DISABLE_XET": "1",  # large files then go through LFS
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
        }
        command, pipe = [sys.executable, "-c", SERVER], subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def __call__(self, code: str, *arguments: str, token: str = TOKEN) -> tuple[int, str, str]:
        """The exit status of some code, and what it writes."""
        given, found = self._process.stdin, self._process.stdout
        assert given is not None
        assert found is not None
        print(json.dumps([code, arguments, token]), file=given, flush=True)
        status, out, err = json.loads(found.readline())
        return status, out, err


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as found:
        yield found


@pytest.fixture
def client(hub: Hub, tmp_path: Path) -> Iterator[Client]:
    made = Client(hub, tmp_path / "cache")
    yield made
    made._process.communicate()


COMMAND = "import sys; from loopscope.cli.app import exit_code; sys.exit(exit_code(sys.argv[1:]))"
LOADED = "import sys, datasets; datasets.load_dataset(*sys.argv[1:3], split='train').to_parquet(sys.argv[3])"
OPENED = """
import sys, loopscope as ls
run = ls.open_run(sys.argv[1])
run.read("questions").write_parquet(sys.argv[2])
print(run.finished, run.manifest.digest)
"""


def test_datasets_reads_every_table_of_the_folder(run: ls.Run, built: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    names = [table.name for table in run.manifest.tables()]
    assert set(datasets.get_dataset_config_names(str(built))) == set(names)
    for name in names:
        loaded = datasets.load_dataset(str(built), name, split="train", cache_dir=str(tmp_path))
        assert pl.from_arrow(loaded.data.table).equals(StoredRun(built).read(name))


def test_a_run_goes_to_the_hub_and_comes_back(
    run: ls.Run, built: Path, hub: Hub, client: Client, tmp_path: Path
) -> None:
    pytest.importorskip("datasets")
    status, out, err = client(COMMAND, "push", str(run.path), "someone/sums")
    assert status == 0, err
    assert out.splitlines()[0] == f"{hub.address}/datasets/someone/sums"
    repository = hub.repositories["someone/sums"]
    assert repository.private
    uploaded = {path.relative_to(built).as_posix() for path in built.rglob("*") if path.is_file()}
    assert repository.commits[-1].keys() == uploaded | {".gitattributes"}
    sent = b"".join(hub.bodies) + b"".join(b"".join(files.values()) for files in repository.commits)
    assert not [word for word in private_words(run) if word in sent]

    target = str(tmp_path / "rows.parquet")
    for name in ("hf://someone/sums", "hf://datasets/someone/sums@first"):
        _, out, err = client(OPENED, name, target)
        assert out.split() == ["True", StoredRun(built).manifest.digest], err
        assert pl.read_parquet(target).equals(run.read("questions"))
    assert any("/revision/first" in request for request in hub.requests)
    status, _, err = client(LOADED, "someone/sums", "depths", target)
    assert status == 0, err
    assert pl.read_parquet(target).equals(StoredRun(built).read("depths"))

    # The files of another run are gone when this one has taken its place.
    repository.commits[-1]["questions/000099.parquet"] = b"of another run"
    status, _, err = client(COMMAND, "push", str(run.path), "someone/sums")
    assert status == 0, err
    assert repository.commits[-1].keys() == uploaded | {".gitattributes"}

    shard = "questions/000000.parquet"
    repository.commits[-1][shard] = repository.commits[-1][shard][:-1] + b"?"
    assert "is damaged" in client(OPENED, "hf://someone/sums", target)[2].splitlines()[-1]


def test_what_the_hub_refuses_is_one_line(run: ls.Run, hub: Hub, client: Client) -> None:
    hub.repositories["someone/public"] = Repository(private=False)
    hub.repositories["someone/other"] = Repository(private=True, commits=[{"rows.csv": b"1"}])
    for name, token, words in (
        ("someone/public", TOKEN, "is public: choose another name"),
        ("someone/other", TOKEN, "holds something that is not a run"),
        ("someone/new", "hf_wrong", "cannot push to someone/new"),
    ):
        status, out, err = client(COMMAND, "push", str(run.path), name, token=token)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert words in err
    assert hub.repositories["someone/other"].commits == [{"rows.csv": b"1"}]
    assert len(hub.repositories["someone/public"].commits) == 1
    status, _, err = client(COMMAND, "push", str(run.path), "someone/public", "--public")
    assert status == 0, err
    assert "cannot open hf://someone/nothing" in client(OPENED, "hf://someone/nothing", "x")[2].splitlines()[-1]
