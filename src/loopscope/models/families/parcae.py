"""Parcae: Huginn's skeleton with a learned decay of the state and values that come from the tokens.

    e = ln_prelude(prelude(wte[ids])),    δ = softplus(dt_bias),   a = exp(−δ · exp(A_log))
    s_{t+1} = core(a · s_t + δ · (B e)),  logits_t = lm_head(ln_f(coda(C s_t)))
    block:  x ← x + c_proj(attention(norm_1(x))),   x ← x + proj(½ relu(fc(norm_2(x)))²)

Queries and keys are rotated in interleaved pairs, by the table that the checkpoint stores, and then normed head by
head without a weight. Every other layer adds to its values, with h = norm_1(x),

    v ← v + 2 sigmoid(ve_gate(h[:32])) · value_embeds[layer][token id]

in the coda, too: the readout therefore asks for `context`. A layer does so if both tensors are in the checkpoint.

s_0 is drawn as Huginn's is (`initial_state`); `initial_state=official` follows the published code's calls. In BF16 the
table, A_log and dt_bias are rounded like every other weight, as the published code's cast does; δ and a are then worked
out in float32 and rounded once.

Shapes: B rows, S positions, D hidden width, H heads, P head width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.checkpoint.config import MOST_LOOPS, ConfigFields
from loopscope.models.choices import chosen_word
from loopscope.models.families.parcae_block import GATE_CHANNELS, Decay, ParcaeBlock, ParcaeSizes
from loopscope.models.families.recurrent_depth import RecurrentDepth, RecurrentDepthConfig
from loopscope.models.initial_state import RULES, Rule
from loopscope.models.layers.attention import Surroundings
from loopscope.models.layers.blocks import RMSNorm, readout_surroundings
from loopscope.models.layers.linear import Embedding, Linear
from loopscope.models.layers.rope import Positions, Rotary, StoredRotary
from loopscope.models.protocol import BodyAndHead, Context

# What the published sizes leave as it is, and what other values would compute is not known here.
_FIXED: dict[str, Any] = {
    "bias": False, "qk_bias": False, "qk_norm": True, "prelude_norm": True, "clip_qkv": None, "logit_softcap": None,
    "nonlin_name": "ReLU2", "mlp_class_name": "BaseMLP", "injection_type": "diagonal", "state_init": "like-init",
    "init_strategy": "scaled-zero", "block_class_name": "TransformerPreNormBlock", "norm_class_name": "RMSNorm",
    "use_abacus": False, "randomize_positions_from": None, "debias_attention": False, "center_attention": False,
    "mup_model_scaling_factor": 1,
}  # fmt: skip


@dataclass(frozen=True)
class ParcaeConfig(RecurrentDepthConfig):
    """The sizes of one Parcae checkpoint.

    Attributes:
        core_inner_size: feed-forward width of the core.
        value_layers: the layers, counted through, that add values of the tokens.
        unpaired: stored gates and tables without the other of the two; the published code does not use them either.
        rule: how s_0 is drawn.
    """

    core_inner_size: int = 0
    value_layers: frozenset[int] = frozenset()
    unpaired: frozenset[str] = frozenset()
    rule: str = "question"

    @classmethod
    def from_json(
        cls,
        json: Mapping[str, Any],
        tensor_names: Collection[str] | None = None,
        chosen: Mapping[str, str] | None = None,
    ) -> ParcaeConfig:
        """Reads config.json and, where there are weights, which layers have value embeddings.

        Every unsupported or contradictory value is a `LoopscopeError`.
        """
        fields = ConfigFields(json, "Parcae")
        for key, value in _FIXED.items():
            if value is None and fields.has(key):
                raise fields.fault(f"{key} {json[key]!r} is not supported, only null")
            fields.only(key, value)
        rope = fields.mapping("rope_settings") or ConfigFields({}, fields.family)
        rope.only("use_rope", True)
        rope.only("rope_condense_ratio", 1)
        hidden, heads = fields.size("n_embd"), fields.size("num_attention_heads")
        for key, value in [
            ("recurrent_embedding_dimension", hidden),
            ("num_key_value_heads", heads),
            ("recurrent_num_attention_heads", heads),
            ("head_dim", hidden // heads),
        ]:
            fields.only(key, value)
        if hidden < GATE_CHANNELS:
            raise fields.fault(f"n_embd {hidden} is smaller than the {GATE_CHANNELS} channels that a value gate reads")
        layers = [fields.count(f"n_layers_in_{part}") for part in ("prelude", "recurrent_block", "coda")]
        vocabulary = fields.size("vocab_size")
        paired, unpaired = _value_layers(layers, tensor_names)
        width, inner = fields.head_width(hidden, heads), fields.size("intermediate_size")
        return cls(
            vocabulary_size=fields.size("padded_vocab_size", vocabulary),
            hidden_size=hidden,
            inner_size=inner,
            heads=heads,
            key_value_heads=heads,
            head_width=width,
            prelude_layers=layers[0],
            core_layers=layers[1],
            coda_layers=layers[2],
            norm_eps=fields.number("norm_eps", 1e-5, most=1.0),
            rotary=Rotary(width, rope.number("rope_base", 50000), "interleaved"),
            max_positions=fields.size("block_size", 2048),
            trained_depth=fields.size("mean_recurrence", 8, MOST_LOOPS),
            state_std=math.sqrt(2 / (5 * hidden)),
            embed_scale=1.0,
            qk_bias=False,
            tied=fields.flag("tie_embeddings", True),
            core_inner_size=fields.size("recurrent_intermediation_embedding_dimension", inner),
            rule=chosen_word(chosen or {}, "initial_state", RULES, "question"),
            value_layers=paired,
            unpaired=unpaired,
        )


def _value_layers(layers: Sequence[int], names: Collection[str] | None) -> tuple[frozenset[int], frozenset[str]]:
    """The layers whose gate and table are both there, and the names of those that stand alone.

    Without a checkpoint it is every other layer, the last among them.
    """
    total = sum(layers)
    if names is None:
        return frozenset(range(total - 1, -1, -2)), frozenset()
    parts = [
        f"transformer.{part}.{index}"
        for part, count in zip(("prelude", "core_block", "coda"), layers, strict=True)
        for index in range(count)
    ]
    gates = [f"{part}.attn.ve_gate.weight" for part in parts]
    tables = [f"value_embeds.{number}.weight" for number in range(total)]
    paired = frozenset(n for n in range(total) if gates[n] in names and tables[n] in names)
    rest = {name for n in range(total) if n not in paired for name in (gates[n], tables[n])}
    return paired, frozenset(rest.intersection(names))


class Parcae(RecurrentDepth):
    """Parcae at any size; padding on the right."""

    family = "parcae"
    name = "parcae"
    readout_parts = ("coda", "ln_f", "C")
    config: ParcaeConfig

    def __init__(self, config: ParcaeConfig) -> None:
        super().__init__(config)
        self.initial_state = dataclasses.replace(self.initial_state, rule=cast(Rule, config.rule))
        wide = config.hidden_size
        self.transformer["C"] = Linear(wide, wide, bias=False)
        self.transformer["ln_prelude"] = RMSNorm(wide, config.norm_eps)
        tables = {str(number): Embedding(config.vocabulary_size, wide) for number in sorted(config.value_layers)}
        self.value_embeds = nn.ModuleDict(tables)
        shape = (1, config.max_positions, 1, config.head_width // 2, 2)
        self.register_buffer("freqs_cis", torch.empty(shape))

    @staticmethod
    def block(config: ParcaeConfig, number: int) -> nn.Module:
        """A Parcae block."""
        core = 0 <= number - config.prelude_layers < config.core_layers
        inner = config.core_inner_size if core else config.inner_size
        sizes = ParcaeSizes(config.hidden_size, config.heads, inner, config.norm_eps, number in config.value_layers)
        return ParcaeBlock(sizes, number)

    @staticmethod
    def adapter(config: RecurrentDepthConfig) -> nn.Module:
        """The decay and the term of the input."""
        return Decay(config.hidden_size)

    @property
    def positions(self) -> Positions:
        """The checkpoint's own table."""
        return StoredRotary(self.get_buffer("freqs_cis"))

    def fill_buffers(self) -> None:
        """The table that the configuration describes, for a model without a checkpoint."""
        table = self.get_buffer("freqs_cis")
        cos, sin, _ = self.config.rotary.tables(torch.arange(self.config.max_positions)[None], torch.float32)
        table.copy_(torch.stack([cos[..., ::2], sin[..., ::2]], dim=-1))

    def ignorable_tensors(self) -> set[str]:
        """Gates without a table and tables without a gate."""
        return set(self.config.unpaired)

    def draw_initial_state(self, source_rows: Sequence[int], lengths: Sequence[int], width: int) -> Tensor:
        """As the skeleton's; the published code draws in the model's dtype."""
        if self.initial_state.rule == "official":
            self.initial_state = dataclasses.replace(self.initial_state, dtype=self.dtype)
        return super().draw_initial_state(source_rows, lengths, width)

    def given_tokens(self, around: Surroundings, ids_BS: Tensor) -> Surroundings:
        """The value embeddings of the tokens, by layer."""
        values = {int(number): table(ids_BS) for number, table in self.value_embeds.items()}
        return dataclasses.replace(around, token_values=values)

    def _prelude(self, batch: Batch, around: Surroundings) -> Tensor:
        return cast(Decay, self.transformer["adapter"]).injection(self.embedded(batch, around))

    def embedded(self, batch: Batch, around: Surroundings) -> Tensor:
        """The prelude's output after its norm, [B, S, D]."""
        normed: Tensor = self.transformer["ln_prelude"](super()._prelude(batch, around))
        return normed

    def joined(self, state: Tensor, injection: Tensor) -> Tensor:
        """The decayed state and the term of the input."""
        return cast(Decay, self.transformer["adapter"]).decay() * state + injection

    def entering_coda(self, state: Tensor, modules: nn.ModuleDict, plain: bool) -> Tensor:
        """C s."""
        entering: Tensor = modules["C"](state)
        return entering

    def readout(
        self,
        state: Tensor,
        positions: Tensor | None = None,
        dtype: torch.dtype | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """Logits through the coda, which reads the tokens again: `context` is that of the rows."""
        return self.body_and_head(dtype, context)(state, positions)

    def body_and_head(self, dtype: torch.dtype | None = None, context: Context | None = None) -> BodyAndHead:
        """The readout as C, the coda and the last norm, and the head."""
        if context is None:
            raise LoopscopeError(f"{self.name}'s coda reads the tokens: give its readout the context of the rows")
        first = self.config.prelude_layers + self.config.core_layers
        ids = context.batch.input_ids

        def body(state: Tensor, positions: Tensor | None) -> Tensor:
            around = readout_surroundings(self, state, self.positions, dtype)
            values = {
                int(number): table(ids).to(self.dtype if dtype is None else dtype)
                for number, table in self.value_embeds.items()
                if int(number) >= first
            }
            return self.head_hidden(state, dtype, dataclasses.replace(around, token_values=values), positions)

        matrix = partial(self._head_matrix, dtype)
        return BodyAndHead(body, lambda hidden: self._head(hidden, dtype), self.vocabulary_size, matrix)
