"""Pickled weights become safetensors in a process of their own; what is no plain state dict is refused."""

from __future__ import annotations

import ast
import hashlib
import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import loopscope
from loopscope.cli.app import exit_code
from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.checkpoint import unpickle
from loopscope.models.checkpoint.convert import convert
from loopscope.models.load import load_model
from loopscope.models.tokenizer import load_tokenizer


@pytest.fixture
def pickled(golden_folder, tmp_path):
    """Writes a folder with a family's configuration and a pickled file: `pickled("parcae", change)`."""

    def write(family="parcae", change=None, file="pytorch_model.bin", folder="pickled"):
        tensors = load_file(golden_folder(family) / "model.safetensors")
        path = tmp_path / folder
        path.mkdir()
        (path / "config.json").write_text((golden_folder(family) / "config.json").read_text())
        torch.save(tensors if change is None else change(tensors), path / file)
        return path

    return write


def same_tensors(folder, expected):
    found = load_file(folder / "model.safetensors")
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_a_checkpoint_is_the_same_afterwards(pickled, golden_folder, tmp_path, capsys):
    source = pickled()
    with pytest.raises(LoopscopeError, match=f"`loopscope convert {source} NEW-FOLDER` turns them into safetensors"):
        load_model(source)
    assert exit_code(["convert", str(source), str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'new'}: 63 tensors, 0.6 MB, from pytorch_model.bin\n"
    assert same_tensors(tmp_path / "new", load_file(golden_folder("parcae") / "model.safetensors"))
    batch = Batch.from_rows([[1, 2, 3]])
    expected = load_model(golden_folder("parcae")).states(batch, [3])[3]
    assert torch.equal(load_model(tmp_path / "new").states(batch, [3])[3], expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "pickled"]
    config, weights = (tmp_path / "new" / name for name in ("config.json", "model.safetensors"))
    assert weights.stat().st_mode == config.stat().st_mode, "readable by whoever may read the folder"


def test_the_published_container(golden_folder, tmp_path):
    """The file that the published code itself wrote, where it is at hand."""
    beside = Path(__file__).resolve().parents[3].parent / "shared" / "golden" / "parcae" / "pytorch_model.bin"
    if not beside.is_file():
        pytest.skip("the published container is kept outside the repository and is not here")
    unpickle.main(str(beside), str(tmp_path / "model.safetensors"))
    assert same_tensors(tmp_path, load_file(golden_folder("parcae") / "model.safetensors"))


def test_a_training_checkpoint_of_a_compiled_model(pickled, golden_folder, tmp_path):
    def nested(held):
        names = {name: f"_orig_mod.{name.removeprefix('gpt.')}" for name in held}
        return {
            "model": {names[name]: held[name] for name in held},
            "optimizer": {"state": {0: torch.zeros(3)}},
            "iter_num": 7,
        }

    source = pickled("loopformer", nested, "ckpt.pt")
    done = convert(source / "ckpt.pt", tmp_path / "new")
    assert done.left_out == ("iter_num", "optimizer")
    batch = Batch.from_rows([[1, 2, 3]])
    expected = load_model(golden_folder("loopformer")).states(batch, [3])[3]
    assert torch.equal(load_model(done.folder).states(batch, [3])[3], expected)


def test_tied_tensors_get_memory_of_their_own(tmp_path):
    weight = torch.ones(3, 2)
    torch.save({"wte.weight": weight, "lm_head.weight": weight}, tmp_path / "tied.bin")
    unpickle.main(str(tmp_path / "tied.bin"), str(tmp_path / "tied.safetensors"))
    found = load_file(tmp_path / "tied.safetensors")
    assert torch.equal(found["lm_head.weight"], weight)
    assert torch.equal(found["wte.weight"], weight)


def test_shards_keep_their_index(pickled, golden_folder, tmp_path):
    source = pickled(change=lambda held: {n: held[n] for n in list(held)[::2]}, file="a.bin")
    tensors = load_file(golden_folder("parcae") / "model.safetensors")
    torch.save({n: tensors[n] for n in list(tensors)[1::2]}, source / "b.bin")
    with pytest.raises(LoopscopeError, match="holds 2 pickled files"):
        convert(source, tmp_path / "new")
    names = list(tensors)
    weight_map = {name: ("a.bin", "b.bin")[index % 2] for index, name in enumerate(names)}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    done = convert(source, tmp_path / "new")
    assert (done.tensors, done.files) == (63, ("a.bin", "b.bin"))
    assert load_model(done.folder).card.parameters == 144000


class Nasty:
    """Would write a file if anybody unpickled it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_code_in_a_pickle_is_never_run(pickled, tmp_path):
    source = pickled(change=lambda held: held | {"extra": Nasty(tmp_path / "it ran")})
    with pytest.raises(LoopscopeError, match="is refused: it holds more than tensors and plain containers") as caught:
        convert(source, tmp_path / "new")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pickled"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda held: held | {"step": 3}, "'step' is a int, not a tensor of floating-point weights"),
        (lambda held: held | {"count": torch.tensor([1, 2])}, r"'count' is a torch.int64"),
        (lambda held: held | {"_orig_mod.lm_head.weight": torch.zeros(1)}, "'lm_head.weight' is there twice"),
        (lambda held: [torch.zeros(1)], "it holds a list"),
        (lambda held: {}, "it holds no tensors"),
    ],
)
def test_anything_but_weights_is_refused(change, line):
    with pytest.raises(unpickle.RefusedError, match=line):
        unpickle.weights_of(change({"lm_head.weight": torch.zeros(1)}))


@pytest.mark.parametrize("content", [b"", b"not a pickle at all", pickle.dumps([1, 2, 3], protocol=2)[:-4]])
def test_a_file_that_is_no_pickle_gets_one_line(tmp_path, content):
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(unpickle.RefusedError, match=r"^it ") as caught:
        unpickle.load(str(tmp_path / "x.bin"))
    assert "\n" not in str(caught.value)


def test_other_mistakes_get_one_line(pickled, golden_folder, tmp_path):
    source = pickled()
    with pytest.raises(LoopscopeError, match="is there already: give a folder that does not exist yet"):
        convert(source, source)
    with pytest.raises(LoopscopeError, match="and is safetensors already: nothing to convert"):
        convert(golden_folder("tmlt"), tmp_path / "new")
    with pytest.raises(LoopscopeError, match="does not exist"):
        convert(tmp_path / "nowhere", tmp_path / "new")
    (source / "config.json").unlink()
    with pytest.raises(LoopscopeError, match=r"has no config\.json"):
        convert(source, tmp_path / "new")


def test_from_the_hub_with_the_tokenizer_of_another_repository(local_hub, pickled, tmp_path):
    source, repo = pickled(), "SandyResearch/parcae-140m"
    tokenizer = Path(loopscope.__file__).parent / "models" / "embedded" / "toy-ouro" / "tokenizer.json"
    local_hub.files[repo] = {path.name: path.read_bytes() for path in source.iterdir()}
    local_hub.files["SandyResearch/parcae-tokenizer"] = {"tokenizer.json": tokenizer.read_bytes()}
    with pytest.raises(LoopscopeError, match=f"`loopscope convert {repo} FOLDER` turns them into safetensors"):
        load_model("parcae-140m")
    done = convert("parcae-140m", tmp_path / "new")
    assert load_model(done.folder).family == "parcae"
    assert (done.folder / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    assert load_tokenizer("parcae-140m").sha256 == hashlib.sha256(tokenizer.read_bytes()).hexdigest()


def test_nothing_else_opens_a_pickle():
    """One file calls torch.load, with weights_only, and none imports a library that unpickles by itself."""
    root, loads = Path(loopscope.__file__).parent, []
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "pickle.load", "pickle.loads"):
                loads.append((path.name, {word.arg: ast.unparse(word.value) for word in node.keywords}))
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Unpickler"):
                loads.append((path.name, {}))
    assert loads == [("unpickle.py", {"map_location": "'cpu'", "weights_only": "True"})]
