"""The published checkpoints: where they are, which commit is meant, and their configuration.

The configuration is enough to build a model of the same size with random weights and no network. Commits are
pinned where they are known; without one the newest is taken, and the commit is recorded with the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loopscope.models import published_configs as configs

RUN_DTYPE = "bfloat16"
"""What a published checkpoint is run in unless told otherwise, however it is stored: the paper's protocol."""


@dataclass(frozen=True)
class Published:
    """One published checkpoint.

    Attributes:
        name: the short name, lower case.
        repo_id: its name on the hub.
        revision: the pinned commit, if one is known.
        family: a name of `families`.
        parameters: unique parameters, a tied head counted once; None where they are not known.
        trained_depth: the number of loops it was trained for (on average, where that was drawn); None where unknown.
        stored_dtype: how the weights are stored; they are run in `RUN_DTYPE`.
        config: the part of config.json that decides shapes and arithmetic; empty where it is not known.
        certain: what was checked against the published code, counts or files, in one line.
        note: what is not certain about the entry, in one line; empty where everything was read from its own files.
        tokenizer_repo: the hub name of its tokenizer, where that is not its own.
    """

    name: str
    repo_id: str
    revision: str | None
    family: str
    parameters: int | None
    trained_depth: int | None
    stored_dtype: str
    config: Mapping[str, Any]
    certain: str = ""
    note: str = ""
    tokenizer_repo: str | None = None


def _ouro(name: str, revision: str, layers: int, parameters: int, bos: int = 0, eos: int = 0) -> Published:
    config = configs.ouro(layers, bos, eos)
    return Published(name.lower(), f"ByteDance/{name}", revision, "ouro", parameters, 4, "bfloat16", config)


def _huginn() -> Published:
    commit = "bb6621b65e90b6a4b9b29ef88dc83866d450470c"
    repo_id = "tomg-group-umd/huginn-0125"
    return Published("huginn-0125", repo_id, commit, "huginn", 3_564_976_800, 32, "float32", configs.huginn())


def _retrofit(
    name: str, base: Mapping[str, Any], stack: tuple[int, int, int], family: str, parameters: int, depth: int
) -> Published:
    config = configs.retrofit(base, stack, depth)
    return Published(name.lower(), f"smcleish/{name}", None, family, parameters, depth, "float32", config)


def _retrofits() -> list[Published]:
    bases = [
        ("Recurrent-Llama-3.2", configs.LLAMA, (4, 6, 4), "retrofit-llama", 1_385_228_288),
        ("Recurrent-TinyLlama-3T", configs.TINYLLAMA, (4, 8, 4), "retrofit-llama", 844_171_264),
        ("Recurrent-OLMo-2-0425", configs.OLMO, (4, 6, 4), "retrofit-olmo", 1_359_071_232),
    ]
    small = "Recurrent-Llama-3.2-2-4-2-untrained"
    found = [_retrofit(small, configs.LLAMA, (2, 4, 2), "retrofit-llama", 1_020_299_264, 32)]
    for name, base, stack, family, parameters in bases:
        # The conversion leaves Huginn's own mean recurrence in the file.
        found.append(_retrofit(f"{name}-untrained", base, stack, family, parameters, 32))
        for depth in (4, 8, 16, 32):
            trained = f"{name}-train-recurrence-{depth}"
            found.append(_retrofit(trained, base, stack, family, parameters, depth))
    return found


def _nanbeige(name: str, revision: str | None, *, certain: str, note: str) -> Published:
    size, repo_id, config = 4_169_800_704, f"Nanbeige/{name}", configs.NANBEIGE
    return Published(
        name.lower(), repo_id, revision, "nanbeige", size, 2, "bfloat16", config, certain=certain, note=note
    )


def _hrm_text() -> list[Published]:
    return [
        Published(
            "hrm-text-1b",
            "sapientinc/HRM-Text-1B",
            None,
            "hrm-text",
            1_182_795_264,
            2,
            "bfloat16",
            configs.HRM_TEXT,
            certain="sizes (config.json as quoted, the parameter count agrees), arithmetic (two implementations agree)",
            note="the form of prompts in training (condition tokens), which no template here writes",
        ),
        Published(
            "kohrm-text-1.4b",
            "LLM-OS-Models/KoHRM-Text-1.4B",
            None,
            "hrm-text",
            None,
            None,
            "bfloat16",
            {},
            certain="the name",
            note="config.json and sizes (layers are counted from the tensors)",
        ),
    ]


def _loopus() -> Published:
    return Published(
        "qwen3_1.7b_loopus",
        "Thrillcrazyer/Qwen3_1.7B_LoopUS",
        None,
        "loopus",
        2_032_274_433,
        20,
        "bfloat16",
        configs.LOOPUS,
        certain="the parameter count (gate and exit head in float32), arithmetic (published code was run)",
        note="which layers loop (from a training command) and 20 steps (second hand); later code gives the exit head "
        "the change of a step instead of the state",
    )


def _parcae(size: str, width: int, layers: int, parameters: int) -> Published:
    return Published(
        f"parcae-{size}",
        f"SandyResearch/parcae-{size}",
        None,
        "parcae",
        parameters,
        8,
        "float32",
        configs.parcae(width, layers),
        certain="sizes and arithmetic, from the published code; stored as a pickle, pytorch_model.bin: docs/models.md",
        note="the roles of its special tokens and the licence of its weights, which are not stated",
        tokenizer_repo="SandyResearch/parcae-tokenizer",
    )


def _loopformers() -> list[Published]:
    name = "LoopFormer-3block-8iterations"
    sure = "arithmetic, from the published code; the bytes of its weights"
    unsure = "config.json, which others quote in part; the licence of its weights, which is not stated"
    other = "its name, which others quote in part; its sizes and steps; the licence of its weights"
    gpt2, config = "openai-community/gpt2", configs.LOOPFORMER
    first = Published(
        name.lower(), f"armenjeddi/{name}", None, "loopformer", 278_169_600, 8, "bfloat16", config, sure, unsure, gpt2
    )
    second = f"{name}-FineWeb300K"
    return [
        first,
        Published(
            second.lower(),
            f"armenjeddi/{second}",
            None,
            "loopformer",
            None,
            None,
            "bfloat16",
            {},
            "arithmetic, from the published code",
            other,
            gpt2,
        ),
    ]


PUBLISHED: tuple[Published, ...] = (
    _ouro("Ouro-1.4B", "574fa66cb8bf5abdc979642d01cf2b79b16bfab1", 24, 1_434_652_673),
    _ouro("Ouro-2.6B", "1ed04250da1a9936042725d302e81c8fa2ab5abd", 48, 2_667_974_657),
    _ouro("Ouro-1.4B-Thinking", "3aaa2224253a92ca45cf2e3d427c360e1ef9c93d", 24, 1_434_652_673),
    _ouro("Ouro-2.6B-Thinking", "f1edd81e7ac41355db670500ceaf204e0f73af68", 48, 2_667_974_657, bos=1, eos=2),
    _huginn(),
    *_retrofits(),
    _nanbeige(
        "Nanbeige4.2-3B",
        "5d54321e9e01e0d026f8e371046678fc384dca39",
        certain="sizes (config.json as quoted, the parameter count agrees), arithmetic (this commit's code was run)",
        note="token ids; the code of other commits",
    ),
    _nanbeige("Nanbeige4.2-3B-Base", None, certain="the name", note="config.json: sizes are taken from Nanbeige4.2-3B"),
    *_hrm_text(),
    _loopus(),
    _parcae("140m", 768, 2, 144_323_136),
    _parcae("370m", 1024, 4, 388_003_328),
    _parcae("770m", 1280, 6, 776_655_680),
    _parcae("1.3b", 1536, 8, 1_338_591_744),
    *_loopformers(),
)
