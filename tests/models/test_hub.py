"""Fetching by hub name, against a server on this machine that speaks the hub's protocol."""

import json
import os
import subprocess
import sys

import pytest

from loopscope.errors import LoopscopeError
from loopscope.models.checkpoint import (
    CONFIG,
    DESCRIPTION,
    INDEX,
    TOKENIZER,
    TOKENIZER_FILES,
    WEIGHTS,
    fetch,
    fetch_weights,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "maker/looped"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.fixture
def single(local_hub):
    local_hub.files[REPO] = {
        CONFIG: b"{}",
        WEIGHTS: b"weights",
        TOKENIZER: b"{}",
        "modeling.py": b"raise SystemExit",
        "pytorch_model.bin": b"pickle",
        "README.md": b"words",
    }
    return local_hub


@pytest.fixture
def sharded(local_hub):
    index = json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}).encode()
    local_hub.files[REPO] = {CONFIG: b"{}", INDEX: index, SHARDS[0]: b"1", SHARDS[1]: b"2", "other.safetensors": b"3"}
    return local_hub


def fetched(repo=REPO, revision=None, *, offline=None):
    """The folder of a whole checkpoint."""
    folder = fetch(repo, revision, DESCRIPTION, offline=offline)
    fetch_weights(repo, folder, offline=offline)
    return folder


def complaint(*arguments, **keywords):
    with pytest.raises(LoopscopeError) as caught:
        fetched(*arguments, **keywords)
    message = str(caught.value)
    assert "\n" not in message
    assert arguments[0] in message
    return message


def test_fetches_the_shards_that_the_index_names(sharded):
    folder = fetched()
    assert sorted(path.name for path in folder.iterdir()) == sorted([CONFIG, INDEX, *SHARDS])


def test_tokenizer_moves_no_weights(single):
    single.files[REPO]["tokenizer_config.json"] = b"{}"
    folder = fetch(REPO, None, TOKENIZER_FILES, offline=None)
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG, TOKENIZER, "tokenizer_config.json"]


@pytest.mark.parametrize("revision", [None, "main", "v1/x", COMMIT])
def test_every_way_to_name_a_revision_ends_at_the_commit(single, revision):
    assert fetched(revision=revision).name == COMMIT


@pytest.mark.parametrize("revision", [None, "v1/x", COMMIT])
def test_cached_model_loads_offline(single, revision):
    fetched(revision=revision)
    single.requests.clear()
    folder = fetched(revision=revision, offline=True)
    assert (folder / WEIGHTS).read_bytes() == b"weights"
    assert folder.name == COMMIT
    assert single.requests == []


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_offline_and_not_cached(single, revision):
    message = complaint(REPO, revision, offline=True)
    assert "not in the cache" in message
    assert single.requests == []


def test_pickled_weights_only(single):
    del single.files[REPO][WEIGHTS]
    message = complaint(REPO)
    assert "pytorch_model.bin" in message
    assert "never read" in message


def test_shard_name_that_leaves_the_folder_is_never_asked_for(sharded):
    sharded.files[REPO][INDEX] = json.dumps({"weight_map": {"a": "../../x.safetensors"}}).encode()
    with pytest.raises(LoopscopeError, match="not a file in its folder"):
        fetched()
    assert not any("x.safetensors" in request for request in sharded.requests)


def test_environment_is_honoured(single, tmp_path):
    """HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE, in a process of their own because they are read once."""
    code = f"from loopscope.models.checkpoint import *; print(fetch({REPO!r}, None, TOKENIZER_FILES, offline=None))"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env = clean | {"HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_secret", "HF_ENDPOINT": single.endpoint}

    def run(**more):
        return subprocess.run([sys.executable, "-c", code], env=env | more, capture_output=True, text=True)

    offline = run(HF_HUB_OFFLINE="1")
    assert "not in the cache" in offline.stderr
    assert single.requests == []
    online = run()
    assert online.stdout.startswith(str(tmp_path / "home")), online.stderr
    assert "Bearer hf_secret" in single.tokens
    single.requests.clear()
    assert run(HF_HUB_OFFLINE="1").stdout == online.stdout
    assert single.requests == []


@pytest.mark.parametrize(
    ("change", "revision", "remedy"),
    [
        (lambda hub: hub.files.clear(), None, "check the name"),
        (lambda hub: hub.gated.add(REPO), None, "ask for access"),
        (lambda hub: hub.branches.clear(), "no-such-branch", "give a branch, a tag"),
        (lambda hub: setattr(hub, "broken", True), None, "check network"),
    ],
)
def test_what_the_hub_refuses_is_one_line_with_a_remedy(single, change, revision, remedy):
    change(single)
    with pytest.raises(LoopscopeError, match=remedy) as caught:
        fetched(revision=revision)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../x", "a/../b", "a/b/c", "a/b c"])
def test_a_name_that_the_hub_cannot_have_is_never_asked_for(local_hub, name):
    with pytest.raises(LoopscopeError, match="not a hub name"):
        fetched(name)
    assert local_hub.requests == []
