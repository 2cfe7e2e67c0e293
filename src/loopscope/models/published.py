"""The published checkpoints: where they are, which commit is meant, and their configuration.

The configuration is enough to build a model of the same size with random weights and no network. Commits are
pinned where they are known; without one the newest is taken, and the commit is recorded with the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RUN_DTYPE = "bfloat16"
"""What a published checkpoint is run in unless told otherwise, however it is stored: the paper's protocol."""


@dataclass(frozen=True)
class Published:
    """One published checkpoint.

    Attributes:
        name: the short name, lower case.
        repo_id: its name on the hub.
        revision: the pinned commit, if one is known.
        family: a name of `families.detect.FAMILIES`.
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


# What the three retrofitted bases do not share. Huginn's `rope_base` stands in their files too, and is not used.
_LLAMA_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA: dict[str, Any] = {
    "n_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
    "norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": _LLAMA_SCALING, "max_position_embeddings": 131072,
}  # fmt: skip
_TINYLLAMA: dict[str, Any] = {
    "n_heads": 32, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 5632, "vocab_size": 32000,
    "norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 2048,
}  # fmt: skip
_OLMO: dict[str, Any] = {
    "n_heads": 16, "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 100352,
    "norm_eps": 1e-6, "rope_theta": 500000.0, "max_position_embeddings": 4096,
}  # fmt: skip


def _ouro(name: str, revision: str, layers: int, parameters: int, bos: int = 0, eos: int = 0) -> Published:
    config = {
        "architectures": ["OuroForCausalLM"],
        "model_type": "ouro",
        "vocab_size": 49152,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 65536,
        "tie_word_embeddings": False,
        "total_ut_steps": 4,
        "early_exit_threshold": 1.0,
        "bos_token_id": bos,
        "eos_token_id": eos,
    }
    return Published(name.lower(), f"ByteDance/{name}", revision, "ouro", parameters, 4, "bfloat16", config)


def _raven(*, prelude: int, core: int, coda: int, **fields: Any) -> dict[str, Any]:
    return {
        "architectures": ["RavenForCausalLM"],
        "model_type": "huginn_raven",
        "n_layers": prelude + core + coda,
        "n_layers_in_prelude": prelude,
        "n_layers_in_recurrent_block": core,
        "n_layers_in_coda": coda,
        "bias": False,
        "injection_type": "linear",
        "state_init": "like-init",
        **fields,
    }


def _huginn() -> Published:
    config = _raven(
        prelude=2,
        core=4,
        coda=2,
        n_embd=5280,
        n_heads=55,
        num_key_value_heads=55,
        head_dim=96,
        intermediate_size=17920,
        vocab_size=65536,
        padded_vocab_size=65536,
        block_size=4096,
        mean_recurrence=32,
        rope_base=50000,
        norm_eps=1e-6,
        qk_bias=True,
        tie_embeddings=True,
        init_values={"std": 0.008703882797784892, "embed_scale": 72.6636084983398},
        bos_token_id=65504,
        eos_token_id=65505,
        pad_token_id=65509,
    )
    commit = "bb6621b65e90b6a4b9b29ef88dc83866d450470c"
    repo_id = "tomg-group-umd/huginn-0125"
    return Published("huginn-0125", repo_id, commit, "huginn", 3_564_976_800, 32, "float32", config)


def _retrofit(
    name: str, base: Mapping[str, Any], stack: tuple[int, int, int], family: str, parameters: int, depth: int
) -> Published:
    prelude, core, coda = stack
    config = _raven(
        prelude=prelude,
        core=core,
        coda=coda,
        n_embd=2048,
        padded_vocab_size=base["vocab_size"],
        mean_recurrence=depth,
        qk_bias=False,
        tie_embeddings=False,
        # Inherited from Huginn, whose width it was computed from; the drawn state has this std at 2048, too.
        init_values={"std": 0.008703882797784892, "embed_scale": 1.0},
        **base,
    )
    return Published(name.lower(), f"smcleish/{name}", None, family, parameters, depth, "float32", config)


def _retrofits() -> list[Published]:
    bases = [
        ("Recurrent-Llama-3.2", _LLAMA, (4, 6, 4), "retrofit-llama", 1_385_228_288),
        ("Recurrent-TinyLlama-3T", _TINYLLAMA, (4, 8, 4), "retrofit-llama", 844_171_264),
        ("Recurrent-OLMo-2-0425", _OLMO, (4, 6, 4), "retrofit-olmo", 1_359_071_232),
    ]
    small = "Recurrent-Llama-3.2-2-4-2-untrained"
    found = [_retrofit(small, _LLAMA, (2, 4, 2), "retrofit-llama", 1_020_299_264, 32)]
    for name, base, stack, family, parameters in bases:
        # The conversion leaves Huginn's own mean recurrence in the file.
        found.append(_retrofit(f"{name}-untrained", base, stack, family, parameters, 32))
        for depth in (4, 8, 16, 32):
            trained = f"{name}-train-recurrence-{depth}"
            found.append(_retrofit(trained, base, stack, family, parameters, depth))
    return found


def _nanbeige(name: str, revision: str | None, *, certain: str, note: str) -> Published:
    config = {
        "architectures": ["NanbeigeForCausalLM"],
        "model_type": "nanbeige",
        "vocab_size": 166144,
        "hidden_size": 3072,
        "intermediate_size": 10752,
        "num_hidden_layers": 22,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 70_000_000,
        "rope_scaling": None,
        "max_position_embeddings": 262144,
        "num_loops": 2,
        "loop_loss_weights": [],
        "skip_loop_final_norm": False,
        "tie_word_embeddings": False,
    }
    size, repo_id = 4_169_800_704, f"Nanbeige/{name}"
    return Published(
        name.lower(), repo_id, revision, "nanbeige", size, 2, "bfloat16", config, certain=certain, note=note
    )


def _hrm_text() -> list[Published]:
    config = {
        "architectures": ["HrmTextForCausalLM"],
        "model_type": "hrm_text",
        "vocab_size": 65536,
        "hidden_size": 1536,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 128,
        "H_cycles": 2,
        "L_cycles": 3,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "initializer_range": 0.025515518153991442,
        "embedding_scale": 39.191835884530846,
        "prefix_lm": True,
        "pad_token_id": 5,
        "bos_token_id": 6,
        "eos_token_id": 11,
    }
    return [
        Published(
            "hrm-text-1b",
            "sapientinc/HRM-Text-1B",
            None,
            "hrm-text",
            1_182_795_264,
            2,
            "bfloat16",
            config,
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
    base = {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 40960,
    }
    config = {
        "model_type": "lds",
        "base_config_dict": base,
        "encoder_layer_indices": [0, 1],
        "reasoning_layer_indices": list(range(2, 27)),
        "decoder_layer_indices": [27],
        "N": 20,
        "q_threshold": 0.9,
        "q_eval_interval": 1,
        "halting_strategy": "threshold",
    }
    return Published(
        "qwen3_1.7b_loopus",
        "Thrillcrazyer/Qwen3_1.7B_LoopUS",
        None,
        "loopus",
        2_032_274_433,
        20,
        "bfloat16",
        config,
        certain="the parameter count (gate and exit head in float32), arithmetic (published code was run)",
        note="which layers loop (from a training command) and 20 steps (second hand); later code gives the exit head "
        "the change of a step instead of the state",
    )


def _parcae(size: str, width: int, layers: int, parameters: int) -> Published:
    config = {
        "_class_name": "ParcaeConfig",
        "n_embd": width,
        "num_attention_heads": width // 128,
        "num_key_value_heads": width // 128,
        "intermediate_size": 4 * width,
        "n_layers_in_prelude": layers,
        "n_layers_in_recurrent_block": layers,
        "n_layers_in_coda": layers,
        "recurrent_embedding_dimension": width,
        "recurrent_intermediation_embedding_dimension": 4 * width,
        "vocab_size": 32768,
        "padded_vocab_size": 32768,
        "block_size": 2048,
        "norm_eps": 1e-5,
        "mean_recurrence": 8,
        "mean_backprop_depth": 4,
        "qk_norm": True,
        "prelude_norm": True,
        "tie_embeddings": True,
        "bias": False,
        "qk_bias": False,
        "nonlin_name": "ReLU2",
        "mlp_class_name": "BaseMLP",
        "injection_type": "diagonal",
        "state_init": "like-init",
        "init_strategy": "scaled-zero",
        "rope_settings": {"use_rope": True, "rope_condense_ratio": 1, "rope_base": 50000},
    }
    return Published(
        f"parcae-{size}",
        f"SandyResearch/parcae-{size}",
        None,
        "parcae",
        parameters,
        8,
        "float32",
        config,
        certain="sizes and arithmetic, from the published code; stored as pytorch_model.bin: `loopscope convert` first",
        note="the roles of its special tokens and the licence of its weights, which are not stated",
        tokenizer_repo="SandyResearch/parcae-tokenizer",
    )


def _loopformers() -> list[Published]:
    name = "LoopFormer-3block-8iterations"
    config = {
        "model_type": "loopformer",
        "architectures": ["LoopFormerGPTForCausalLM"],
        "block_size": 1024,
        "vocab_size": 50304,
        "n_layer": 3,
        "n_head": 32,
        "n_embd": 2048,
        "intermediate_dim": 5120,
        "dropout": 0.0,
        "bias": False,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "pad_token_id": 50256,
        "dtype": "bfloat16",
    }
    sure = "arithmetic, from the published code; the bytes of its weights"
    unsure = "config.json, which others quote in part; the licence of its weights, which is not stated"
    other = "its name, which others quote in part; its sizes and steps; the licence of its weights"
    gpt2 = "openai-community/gpt2"
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
