"""A checkpoint of about one gigabyte loads in the model's own memory plus a few tensors, and no more."""

import json
import struct
import subprocess
import sys

import pytest

from loopscope.models.families import build_model

CONFIG = {
    "architectures": ["OuroForCausalLM"],
    "model_type": "ouro",
    "vocab_size": 16384,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "rope_theta": 1e6,
}
# Small tensors only: once the C library has seen a large block freed, it keeps blocks of that size for itself.
SMALL = CONFIG | {"num_hidden_layers": 1, "vocab_size": 16, "hidden_size": 64, "intermediate_size": 16}
LARGEST_TENSOR = 16384 * 1024

# VmHWM starts at zero with the program; getrusage's peak would begin with the parent's, which pytest makes large.
MEASURE = """
import sys
import torch
from loopscope import load_model
torch.set_num_threads(1)
load_model(sys.argv[2])  # everything is imported and warmed up before the measurement

def kilobytes(field):
    return int(open("/proc/self/status").read().split(field + ":")[1].split()[0])

before = kilobytes("VmRSS")
model = load_model(sys.argv[1], dtype=sys.argv[3])
print((kilobytes("VmHWM") - before) * 1024)
"""


def write_checkpoint(folder, config):
    """The weights' bytes do not matter here, so one block of them is written again and again: fast, and not sparse."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, tensor in build_model("ouro", config).state_dict().items():
        size = tensor.numel() * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    block = struct.pack("<f", 0.01) * 262_144
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(end // len(block)):
            file.write(block)
        file.write(block[: end % len(block)])
    return end


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("memory")
    write_checkpoint(root / "small", SMALL)
    size = write_checkpoint(root / "large", CONFIG)
    assert size > 1_000_000_000
    yield root, size
    (root / "large" / "model.safetensors").unlink()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peak_memory_is_the_models_own_and_a_few_tensors(folders, dtype):
    root, stored = folders
    arguments = [sys.executable, "-c", MEASURE, str(root / "large"), str(root / "small"), dtype]
    run = subprocess.run(arguments, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    peak = int(run.stdout)
    itemsize = 4 if dtype == "float32" else 2
    model = stored // 4 * itemsize
    print(f"{dtype}: model {model / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB")
    assert 0.9 * model < peak < model + 3 * LARGEST_TENSOR * itemsize
