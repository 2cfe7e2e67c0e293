"""Fetching by hub name, against a server on this machine that speaks the hub's protocol."""

import errno
import json
import os
import subprocess
import sys

import pytest

from loopscope.errors import LoopscopeError
from loopscope.models.checkpoint import CONFIG, INDEX, TOKENIZER, WEIGHTS
from loopscope.models.hub import HubRepository

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


def complaint(*arguments, **keywords):
    with pytest.raises(LoopscopeError) as caught:
        HubRepository(*arguments, **keywords).fetch_weights()
    message = str(caught.value)
    assert "\n" not in message
    assert arguments[0] in message
    return message


def test_fetches_configuration_and_weights_and_nothing_else(single):
    folder = HubRepository(REPO).fetch_weights()
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG, WEIGHTS]
    assert (folder / WEIGHTS).read_bytes() == b"weights"


def test_fetches_the_shards_that_the_index_names(sharded):
    folder = HubRepository(REPO).fetch_weights()
    assert sorted(path.name for path in folder.iterdir()) == sorted([CONFIG, INDEX, *SHARDS])


def test_description_moves_no_weights(sharded):
    folder = HubRepository(REPO).fetch_description()
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG, INDEX]


def test_tokenizer_moves_no_weights(single):
    single.files[REPO]["tokenizer_config.json"] = b"{}"
    folder = HubRepository(REPO).fetch_tokenizer()
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG, TOKENIZER, "tokenizer_config.json"]


@pytest.mark.parametrize("revision", [None, "main", "v1/x", COMMIT])
def test_every_way_to_name_a_revision_ends_at_the_commit(single, revision):
    repository = HubRepository(REPO, revision)
    assert repository.fetch_weights().name == COMMIT
    assert repository.revision == COMMIT


def test_branch_is_looked_up_anew_every_time(single):
    for _ in range(2):
        single.requests.clear()
        HubRepository(REPO).fetch_weights()
        assert any("/api/models/" in request for request in single.requests)


@pytest.mark.parametrize("revision", [None, "v1/x", COMMIT])
def test_cached_model_loads_offline(single, revision):
    HubRepository(REPO, revision).fetch_weights()
    single.requests.clear()
    repository = HubRepository(REPO, revision, offline=True)
    assert (repository.fetch_weights() / WEIGHTS).read_bytes() == b"weights"
    assert repository.revision == COMMIT
    assert single.requests == []


def test_pinned_cached_model_asks_nobody_even_online(sharded):
    HubRepository(REPO, COMMIT).fetch_weights()
    sharded.requests.clear()
    HubRepository(REPO, COMMIT).fetch_weights()
    assert sharded.requests == []


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_cached_model_loads_when_the_network_is_down(single, monkeypatch, revision):
    HubRepository(REPO, revision).fetch_weights()
    unreachable(monkeypatch)
    assert (HubRepository(REPO, revision).fetch_weights() / WEIGHTS).read_bytes() == b"weights"


def unreachable(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.mark.parametrize("revision", [None, pytest.param(COMMIT, marks=pytest.mark.slow)])
def test_no_network(local_hub, monkeypatch, revision):
    """Slow with a commit: huggingface_hub asks for the files several times then."""
    unreachable(monkeypatch)
    assert "cannot be reached" in complaint(REPO, revision)


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_offline_and_not_cached(single, revision):
    message = complaint(REPO, revision, offline=True)
    assert "not in the cache" in message
    assert single.requests == []


def test_offline_with_configuration_but_no_weights(single):
    HubRepository(REPO, COMMIT).fetch_description()
    assert "not in the cache" in complaint(REPO, COMMIT, offline=True)


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_repository_not_found(single, revision):
    assert "the hub has no model" in complaint("maker/other", revision)


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_gated_repository(single, revision):
    single.gated.add(REPO)
    message = complaint(REPO, revision)
    assert "gated" in message
    assert "HF_TOKEN" in message


@pytest.mark.parametrize("revision", ["nowhere", "f" * 40, "abcdef12"])
def test_revision_not_found(single, revision):
    assert f"no revision '{revision}'" in complaint(REPO, revision)


def test_hub_is_broken(single):
    single.broken = True
    assert "answered 500" in complaint(REPO)


def test_pickled_weights_only(single):
    del single.files[REPO][WEIGHTS]
    message = complaint(REPO)
    assert "pytorch_model.bin" in message
    assert "never read" in message


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "voll"), RuntimeError("IO error: No space left on device (os error 28)")]
)
def test_disk_that_fills_up_on_the_way(single, monkeypatch, error):
    import huggingface_hub

    def full(*arguments, **keywords):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    message = complaint(REPO)
    assert "full" in message
    assert "HF_HOME" in message


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError()])
def test_connection_that_breaks_on_the_way(single, monkeypatch, error):
    import huggingface_hub

    def broken(*arguments, **keywords):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    assert "cannot be reached" in complaint(REPO)


def test_bug_in_transfer_keeps_its_traceback(single, monkeypatch):
    import huggingface_hub

    def wrong(*arguments, **keywords):
        raise ZeroDivisionError

    monkeypatch.setattr(huggingface_hub, "snapshot_download", wrong)
    with pytest.raises(ZeroDivisionError):
        HubRepository(REPO).fetch_weights()


@pytest.mark.parametrize("name", ["nameonly", "../x", "a/../b", "a/b/c", "a/b c", ""])
def test_name_that_is_no_hub_name(name):
    with pytest.raises(LoopscopeError, match="not a hub name"):
        HubRepository(name)


@pytest.mark.parametrize("revision", ["../../x", "/etc", "a b"])
def test_revision_that_is_none(revision):
    with pytest.raises(LoopscopeError, match="not a revision"):
        HubRepository(REPO, revision)


def test_shard_name_that_leaves_the_folder_is_never_asked_for(sharded):
    sharded.files[REPO][INDEX] = json.dumps({"weight_map": {"a": "../../x.safetensors"}}).encode()
    with pytest.raises(LoopscopeError, match="not a file in its folder"):
        HubRepository(REPO).fetch_weights()
    assert not any("x.safetensors" in request for request in sharded.requests)


def test_environment_is_honoured(single, tmp_path):
    """HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE, in a process of their own because they are read once."""
    code = f"from loopscope.models.hub import HubRepository as R; print(R({REPO!r}).fetch_weights())"
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
