"""Writes a trained model as the checkpoint folder of its family: config.json, model.safetensors, tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save
from tokenizers import Tokenizer

from loopscope.toys.build import Toy
from loopscope.toys.recipe import Recipe
from loopscope.toys.state import write_atomically

LIMIT = 8_000_000
"""The most bytes an embedded model's folder may take."""


def export(model: Toy, recipe: Recipe, tokenizer: Tokenizer, folder: Path) -> int:
    """Rounds the weights to BF16 and writes the folder; returns its size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    left_out = model.tied_tensors()
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name not in left_out
    }
    files = {
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
        "config.json": (json.dumps(dict(recipe.config), indent=2) + "\n").encode(),
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
    }
    for name, data in files.items():
        write_atomically(folder / name, data)
    size = sum(len(data) for data in files.values())
    if size > LIMIT:
        raise AssertionError(f"{recipe.name} takes {size} bytes, more than {LIMIT}")
    return size
