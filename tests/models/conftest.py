"""Shared by the models' tests: a hub on this machine, reference outputs, and plain arithmetic to compare with."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from loopscope.models.families.layer_loop import LayerLoop, LayerLoopConfig

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class LocalHub:
    """A small server that speaks the part of the hub's protocol that a download uses."""

    endpoint: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=lambda: {"main": COMMIT, "v1/x": COMMIT})
    sizes: dict[str, int] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: bool = False
    requests: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)

    def answer(self, path: str, query: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a path; sizes of files only where the query asks for them."""
        if self.broken:
            return 500, {}, b""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        api = parts[:2] == ["api", "models"]
        repo, rest = "/".join(parts[2:4] if api else parts[:2]), parts[4:] if api else parts[2:]
        if repo in self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        if repo not in self.files:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        revision = "/".join(rest[1:]) if api else rest[1]
        commit = self.branches.get(revision, revision)
        if commit != COMMIT:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if api and rest[0] == "tree":
            held = [{"type": "file", "path": n, "size": len(b), "oid": "0"} for n, b in self.files[repo].items()]
            return 200, {}, json.dumps(held).encode()
        if api:
            siblings = [{"rfilename": name} for name in self.files[repo]]
            if "blobs=" in query:
                for entry in siblings:
                    name = entry["rfilename"]
                    entry["size"] = self.sizes.get(name, len(self.files[repo][name]))
            return 200, {}, json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
        headers = {"X-Repo-Commit": COMMIT}
        body = self.files[repo].get("/".join(rest[2:]))
        if body is None:
            return 404, headers | {"X-Error-Code": "EntryNotFound"}, b""
        return 200, headers | {"ETag": f'"{hashlib.sha256(body).hexdigest()}"'}, body


@pytest.fixture
def local_hub(monkeypatch, tmp_path):
    """A running hub, an empty cache, and `huggingface_hub` pointed at both."""
    hub = LocalHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path, query = urlsplit(self.path).path, urlsplit(self.path).query
            hub.requests.append(f"{self.command} {path}")
            hub.tokens.add(self.headers.get("Authorization"))
            status, headers, body = hub.answer(path, query)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self):
            self.do_GET()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"

    from huggingface_hub import constants

    for name, value in {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()


GOLDEN = Path(__file__).resolve().parent / "golden"
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "golden"


@pytest.fixture(scope="session")
def reference():
    """Opens `family/case` of the published implementations' outputs: kept here, or beside the repository."""
    from safetensors.torch import load_file

    def opened(family, case):
        name = f"{family}/ref_{case}.safetensors"
        folder = next((folder for folder in (SHARED, GOLDEN) if (folder / name).is_file()), None)
        if folder is None:
            pytest.skip(f"{name} is kept outside the repository and is not here")
        tensors = load_file(folder / name)
        if "input_ids" not in tensors:
            tensors["input_ids"] = load_file(folder / family / "ref_plain.safetensors")["input_ids"]
        tensors.setdefault("attention_mask", tensors["input_ids"].new_ones(tensors["input_ids"].shape))
        tensors["attention_mask"] = tensors["attention_mask"].bool()
        tensors["depths"] = tensors["depths"].tolist() if "depths" in tensors else list(range(1, 9))
        return SimpleNamespace(**tensors, tensors=tensors)

    return opened


@pytest.fixture(scope="session")
def golden_folder():
    """The folder of a family's tiny checkpoint, as a hub repository has it."""

    def folder(family):
        found = next((place / family for place in (GOLDEN, SHARED) if (place / family / "config.json").is_file()), None)
        if found is None:
            pytest.skip(f"the tiny {family} checkpoint is kept outside the repository and is not here")
        return found

    return folder


@pytest.fixture
def golden_variant(golden_folder, tmp_path):
    """A family's tiny checkpoint with other settings or tensors: `change` gets the tensors and returns them."""
    from safetensors.torch import load_file

    def write(family, change=None, **fields):
        source = golden_folder(family)
        path = tmp_path / f"variant-{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        config = json.loads((source / "config.json").read_text()) | fields
        (path / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
        tensors = load_file(source / "model.safetensors")
        save_file(tensors if change is None else change(tensors), path / "model.safetensors")
        return path

    return write


@pytest.fixture(scope="session")
def golden_model(golden_folder):
    """Loads the tiny checkpoint of a family, with choices if there are any; `prepare=False` leaves it trainable."""
    from safetensors.torch import load_file

    from loopscope.models.families import build_model, detect_family
    from loopscope.models.load import load_model

    def build(family, *, dtype=torch.float32, prepare=True):
        name, _, choices = family.partition(":")
        folder = golden_folder(name)
        if prepare:
            return load_model(folder, model_args=choices or None, dtype=dtype)
        config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
        model = build_model(detect_family(config, tensors), config, tensors)
        tensors = {key: value.to(dtype) for key, value in tensors.items() if key not in model.ignored}
        model.load_state_dict(tensors, assign=True, strict=True)
        model.tie()
        return model

    return build


def _plain_rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _plain_rotate(x_SHP, frequencies, pairs, positions=None):
    """Turns the pairs of every head, one position, head and pair at a time."""
    turned = np.array(x_SHP, dtype=np.float64)
    for s in range(x_SHP.shape[0]):
        position = s if positions is None else positions[s]
        for h in range(x_SHP.shape[1]):
            for frequency, (i, j) in zip(frequencies, pairs, strict=True):
                number = complex(x_SHP[s, h, i], x_SHP[s, h, j])
                number *= complex(math.cos(position * frequency), math.sin(position * frequency))
                turned[s, h, i], turned[s, h, j] = number.real, number.imag
    return turned


def _plain_attention(q_SHP, k_SKP, v_SKP):
    """Every position looks back over itself and what came before, one head at a time."""
    width, heads, head_width = q_SHP.shape
    group = heads // k_SKP.shape[1]
    mixed = np.zeros((width, heads, head_width))
    for s in range(width):
        for h in range(heads):
            scores = np.array([q_SHP[s, h] @ k_SKP[t, h // group] for t in range(s + 1)]) / math.sqrt(head_width)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            mixed[s, h] = sum(weights[t] * v_SKP[t, h // group] for t in range(s + 1))
    return mixed.reshape(width, heads * head_width)


@pytest.fixture(scope="session")
def plain():
    """Float64 NumPy arithmetic for one sequence: loops over positions and heads, nothing shared with the package."""

    def frequencies(head_width, theta):
        return [theta ** (-2 * i / head_width) for i in range(head_width // 2)]

    def half_pairs(head_width):
        return [(i, i + head_width // 2) for i in range(head_width // 2)]

    def adjacent_pairs(head_width):
        return [(2 * i, 2 * i + 1) for i in range(head_width // 2)]

    return SimpleNamespace(
        rms_norm=_plain_rms_norm,
        rotate=_plain_rotate,
        attention=_plain_attention,
        frequencies=frequencies,
        half_pairs=half_pairs,
        adjacent_pairs=adjacent_pairs,
    )


@pytest.fixture(scope="session")
def randomise():
    """Fills a model with seeded random weights: matrices of unit gain, norms around one, all else small."""
    import torch

    def fill(model, seed=0):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in sorted(model.named_parameters()):
                draw = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                if "norm" in name or "ln_f" in name:
                    parameter.copy_(1 + 0.2 * draw)
                elif parameter.dim() == 2 and "wte" not in name and "embed" not in name:
                    parameter.copy_(draw / math.sqrt(parameter.shape[1]))
                else:
                    parameter.copy_(0.3 * draw)
        return model

    return fill


_OURO = {
    "architectures": ["OuroForCausalLM"],
    "model_type": "ouro",
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "total_ut_steps": 3,
}
_RAVEN = {
    "architectures": ["RavenForCausalLM"],
    "model_type": "huginn_raven",
    "vocab_size": 40,
    "n_embd": 16,
    "n_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 4,
    "intermediate_size": 24,
    "n_layers": 4,
    "n_layers_in_prelude": 1,
    "n_layers_in_recurrent_block": 2,
    "n_layers_in_coda": 1,
    "norm_eps": 1e-6,
    "block_size": 64,
    "mean_recurrence": 4,
    "qk_bias": True,
    "tie_embeddings": True,
}
_RETROFIT = _RAVEN | {
    "num_key_value_heads": 2,
    "qk_bias": False,
    "tie_embeddings": False,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "init_values": {"std": 0.0087, "embed_scale": 1.0},
}
_LLAMA = {name: value for name, value in _OURO.items() if name != "total_ut_steps"} | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 3,
    "tie_word_embeddings": True,
}
TINY_CONFIGS = {
    "ouro": _OURO,
    "huginn": _RAVEN,
    "retrofit-llama": _RETROFIT,
    "retrofit-olmo": _RETROFIT,
    "loop": _LLAMA,
}


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="session")
def llama_config():
    """What a checkpoint of a small Llama says of itself; layers of other names are told by `architectures`."""
    return dict(LLAMA)


@pytest.fixture(scope="session")
def model_of(golden_model, randomise):
    """A small model of a family, or with "loop" a Llama with a layer that is looped: `model_of(family, dtype)`."""

    def build(family, dtype=torch.float64):
        if family != "loop":
            return golden_model(family, dtype=dtype)
        model = randomise(LayerLoop(LayerLoopConfig.read(LLAMA, chosen={"loop": "1-2"}))).to(dtype)
        model.prepare()
        return model

    return build


@pytest.fixture
def tiny(tmp_path):
    """Writes a tiny checkpoint of a family: `tiny("ouro")` → its folder; `shards=2` splits the weights."""
    from loopscope.models.families import build_model
    from loopscope.models.load import fill_randomly

    def write(family, folder="checkpoint", *, dtype=torch.float32, shards=1, seed=0, **fields):
        config = TINY_CONFIGS[family] | fields
        model = build_model(family, config, None, {"loop": "1-1"} if family == "loop" else None)
        fill_randomly(model, torch.device("cpu"), dtype, seed)
        names = [name for name, _ in model.named_parameters()]
        tensors = {name: model.get_parameter(name).detach().clone() for name in names}
        path = tmp_path / folder
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config))
        if shards == 1:
            save_file(tensors, path / "model.safetensors")
            return path
        files = [f"model-{index + 1:05}-of-{shards:05}.safetensors" for index in range(shards)]
        for index, file in enumerate(files):
            save_file({name: tensors[name] for name in names[index::shards]}, path / file)
        weight_map = {name: files[index % shards] for index, name in enumerate(names)}
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return path

    return write
