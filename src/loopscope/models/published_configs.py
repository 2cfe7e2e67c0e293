"""The configurations of the published checkpoints: the part of config.json that decides shapes and arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What the three retrofitted bases do not share. Huginn's `rope_base` stands in their files too, and is not used.
_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA: dict[str, Any] = {
    "n_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
    "norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": _SCALING, "max_position_embeddings": 131072,
}  # fmt: skip
TINYLLAMA: dict[str, Any] = {
    "n_heads": 32, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 5632, "vocab_size": 32000,
    "norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 2048,
}  # fmt: skip
OLMO: dict[str, Any] = {
    "n_heads": 16, "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 100352,
    "norm_eps": 1e-6, "rope_theta": 500000.0, "max_position_embeddings": 4096,
}  # fmt: skip


def ouro(layers: int, bos: int, eos: int) -> dict[str, Any]:
    """Ouro's sizes differ in their layers alone."""
    return {
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


def huginn() -> dict[str, Any]:
    """Huginn-0125."""
    return _raven(
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


def retrofit(base: Mapping[str, Any], stack: tuple[int, int, int], depth: int) -> dict[str, Any]:
    """A base grown into prelude, core and coda of so many layers."""
    prelude, core, coda = stack
    return _raven(
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


NANBEIGE: dict[str, Any] = {
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

HRM_TEXT: dict[str, Any] = {
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

_QWEN3: dict[str, Any] = {
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
LOOPUS: dict[str, Any] = {
    "model_type": "lds",
    "base_config_dict": _QWEN3,
    "encoder_layer_indices": [0, 1],
    "reasoning_layer_indices": list(range(2, 27)),
    "decoder_layer_indices": [27],
    "N": 20,
    "q_threshold": 0.9,
    "q_eval_interval": 1,
    "halting_strategy": "threshold",
}
LOOPFORMER: dict[str, Any] = {
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


def parcae(width: int, layers: int) -> dict[str, Any]:
    """Parcae's sizes are a width and a number of layers in each part."""
    return {
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
