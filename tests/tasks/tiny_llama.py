"""A tiny Llama-style model with weights that any machine can make again.

Weights come from raw PCG64 output, which NumPy keeps fixed, so that figures computed elsewhere on the
same weights (lm_eval_figures.json) can be compared with ours without storing a checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 0,
}
SEED = 20260904


def weights() -> dict[str, np.ndarray]:
    """Every tensor under its checkpoint name, float32."""
    vocabulary, hidden, inner, head = 49152, 32, 48, 8
    generator = np.random.PCG64(SEED)

    def uniform(shape: tuple[int, ...], deviation: float) -> np.ndarray:
        raw = generator.random_raw(int(np.prod(shape))) >> np.uint64(11)
        unit = raw.astype(np.float64) * 2.0**-53
        return ((2 * unit - 1) * np.sqrt(3) * deviation).astype(np.float32).reshape(shape)

    tensors = {"model.embed_tokens.weight": uniform((vocabulary, hidden), 1.0)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        shapes = {
            "self_attn.q_proj": (4 * head, hidden),
            "self_attn.k_proj": (2 * head, hidden),
            "self_attn.v_proj": (2 * head, hidden),
            "self_attn.o_proj": (hidden, 4 * head),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for name, shape in shapes.items():
            tensors[f"{prefix}{name}.weight"] = uniform(shape, 1.5 / np.sqrt(shape[1]))
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = 1 + uniform((hidden,), 0.1)
    tensors["model.norm.weight"] = 1 + uniform((hidden,), 0.1)
    tensors["lm_head.weight"] = uniform((vocabulary, hidden), 2 / np.sqrt(hidden))
    return tensors


def write_checkpoint(folder: Path) -> None:
    """The model as a Hugging Face checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
    save_file(weights(), folder / "model.safetensors", metadata={"format": "pt"})
