"""What each embedded model is and how it is trained: sizes, objective, data mixture, optimiser.

The configurations are those of the official checkpoints at a small size; `models.ouro` and `models.huginn`
read them as they read the official ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from loopscope.errors import LoopscopeError

VOCABULARY = 512


END_ID = 0


Family = Literal["ouro", "huginn"]


@dataclass(frozen=True)
class Mixture:
    """The training text: which problems, in which form, in which fixed shapes.

    Attributes:
        widths: the row widths that problems are padded to; longer ones are left out.
        batch_tokens: tokens of one step, padding included.
        shard_problems: problems that a data worker makes at a time.
        direct_share: share of problems asked for the bare answer, without a worked solution.
        operations: chance of two to six operations, for worked solutions.
        direct_operations: the same for bare answers, which few loops can give only for short problems.
    """

    widths: tuple[int, ...] = (128, 184, 248, 360)
    batch_tokens: int = 32_768
    shard_problems: int = 16_384
    direct_share: float = 0.25
    operations: tuple[float, ...] = (0.2, 0.22, 0.24, 0.17, 0.17)
    direct_operations: tuple[float, ...] = (0.35, 0.25, 0.2, 0.1, 0.1)

    def rows(self, width: int) -> int:
        """How many problems of this width make one batch."""
        return max(1, self.batch_tokens // width)


@dataclass(frozen=True)
class Recipe:
    """One embedded model's training.

    Attributes:
        entropy_weight: β of Ouro's objective, expected loss − β · entropy of the exit distribution.
        backprop_steps: the last recurrences that gradients reach (Huginn).
        recurrence_spread: σ of the log-normal under the Poisson recurrence (Huginn).
        prompt_weight: weight of a question's tokens in the loss; a solution's tokens have 1.
        direct_weight: weight of a bare answer's tokens.
    """

    name: str
    family: Family
    config: Mapping[str, Any]
    mixture: Mixture = Mixture()
    entropy_weight: float = 0.05
    backprop_steps: int = 4
    recurrence_spread: float = 0.5
    prompt_weight: float = 0.1
    direct_weight: float = 2.0
    matrix_rate: float = 0.02
    vector_rate: float = 3e-3
    weight_decay: float = 0.02
    warmup_steps: int = 100
    decay_from: float = 0.45


def ouro_config(hidden: int, inner: int, layers: int, heads: int, loops: int) -> dict[str, Any]:
    """config.json of an Ouro model of these sizes."""
    return {
        "architectures": ["OuroForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": END_ID,
        "early_exit_threshold": 1.0,
        "eos_token_id": END_ID,
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": inner,
        "layer_types": ["full_attention"] * layers,
        "max_position_embeddings": 1024,
        "max_window_layers": layers,
        "model_type": "ouro",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "total_ut_steps": loops,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": VOCABULARY,
    }


def huginn_config(
    hidden: int, inner: int, blocks: tuple[int, int, int], heads: int, recurrence: int, backprop: int
) -> dict[str, Any]:
    """config.json of a Huginn model of these sizes; `blocks` counts prelude, core and coda."""
    prelude, core, coda = blocks
    depth = prelude + core * recurrence + coda
    std = math.sqrt(2 / (5 * hidden))
    return {
        "architecture_class_name": "RecurrentGPT",
        "architectures": ["RavenForCausalLM"],
        "bias": False,
        "block_class_name": "SandwichBlock",
        "block_size": 1024,
        "bos_token_id": END_ID,
        "effective_expected_depth": depth,
        "eos_token_id": END_ID,
        "head_dim": hidden // heads,
        "init_orthogonal": False,
        "init_strategy": "takase",
        "init_values": {
            "embed_scale": math.sqrt(hidden),
            "embedding": std,
            "out_proj": std / math.sqrt(2 * depth),
            "std": std,
        },
        "injection_type": "linear",
        "intermediate_size": inner,
        "mean_backprop_depth": backprop,
        "mean_recurrence": recurrence,
        "mlp_class_name": "GatedMLP",
        "model_type": "huginn_raven",
        "n_embd": hidden,
        "n_heads": heads,
        "n_layers": prelude + core + coda,
        "n_layers_in_coda": coda,
        "n_layers_in_prelude": prelude,
        "n_layers_in_recurrent_block": core,
        "nonlin_name": "SiLU",
        "norm_class_name": "RMSNorm_llama",
        "norm_eps": 1e-6,
        "num_key_value_heads": heads,
        "pad_token_id": END_ID,
        "padded_vocab_size": VOCABULARY,
        "qk_bias": True,
        "rope_base": 10000,
        "sampling_scheme": "poisson-lognormal-filling",
        "state_init": "like-init",
        "tie_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
    }


RECIPES = {
    "toy-ouro": Recipe("toy-ouro", "ouro", ouro_config(hidden=256, inner=768, layers=4, heads=4, loops=4)),
    "toy-huginn": Recipe(
        "toy-huginn",
        "huginn",
        huginn_config(hidden=256, inner=768, blocks=(1, 2, 1), heads=4, recurrence=8, backprop=5),
        backprop_steps=5,
    ),
}


def get_recipe(name: str) -> Recipe:
    """The recipe of an embedded model."""
    if name not in RECIPES:
        raise LoopscopeError(f"unknown embedded model {name!r}: choose one of {', '.join(RECIPES)}")
    return RECIPES[name]
