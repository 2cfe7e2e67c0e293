"""Parcae: Huginn's skeleton with a learned decay of the state and values that come from the tokens.

    e = ln_prelude(prelude(wte[ids])),    δ = softplus(dt_bias),   a = exp(−δ · exp(A_log))
    s_{t+1} = core(a · s_t + δ · (B e)),  logits_t = lm_head(ln_f(coda(C s_t)))
    block:  x ← x + c_proj(attention(norm_1(x))),   x ← x + proj(½ relu(fc(norm_2(x)))²)

Queries and keys are rotated in interleaved pairs and then normed head by
head without a weight. Every other layer adds to its values, with h = norm_1(x),

    v ← v + 2 sigmoid(ve_gate(h[:32])) · value_embeds[layer][token id]

in the coda, too: the readout therefore asks for `context`. A layer does so if the checkpoint has a table for it.

s_0 is drawn as Huginn's is (`initial_state`); `initial_state=official` follows the published code's calls. In BF16 the
table, A_log and dt_bias are rounded like every other weight, as the published code's cast does; δ and a are then worked
out in float32 and rounded.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field, ValidationInfo, model_validator
from torch import Tensor, nn
from torch.nn import functional

from loopscope.errors import LoopscopeError
from loopscope.models.batch import Batch
from loopscope.models.families import FamilyConfig, Layers, Loops, Number, Size, family, only, option
from loopscope.models.families.decoder import DrawsState, InitialState, LoopedDecoder, PreNormBlock, Readout, Rule
from loopscope.models.layers.attention import AttentionSizes, RotatedThenNormed
from loopscope.models.layers.blocks import Block, Embedding, Fusing, Linear, RMSNorm, SquaredReluMLP, linear
from loopscope.models.layers.positions import AttentionContext, KeyValueCache, Rotary
from loopscope.models.protocol import BodyAndHead, Context

GATE_CHANNELS = 32
_TABLE = re.compile(r"value_embeds\.(\d{1,6})\.")


class RopeSettings(FamilyConfig):
    """`rope_settings`."""

    title = "Parcae, rope_settings"
    fixed = only(use_rope=True, rope_condense_ratio=1)
    rope_base: Number = 50000.0


class ParcaeConfig(FamilyConfig):
    """config.json of a Parcae checkpoint, and which layers have values of the tokens.

    What the published sizes leave as it is, and other values would compute, is not known here.
    """

    title = "Parcae"
    widths = ("n_embd", "num_attention_heads", "", "")
    fixed = only(
        bias=False, qk_bias=False, qk_norm=True, prelude_norm=True, clip_qkv=None, logit_softcap=None,
        nonlin_name="ReLU2", mlp_class_name="BaseMLP", injection_type="diagonal", state_init="like-init",
        init_strategy="scaled-zero", block_class_name="TransformerPreNormBlock", norm_class_name="RMSNorm",
        use_abacus=False, randomize_positions_from=None, debias_attention=False, center_attention=False,
        mup_model_scaling_factor=1
    )  # fmt: skip
    vocab_size: Size
    padded_vocab_size: Size | None = None
    n_embd: Size
    intermediate_size: Size
    recurrent_intermediation_embedding_dimension: Size | None = None
    num_attention_heads: Size
    n_layers_in_prelude: Layers
    n_layers_in_recurrent_block: Layers
    n_layers_in_coda: Layers
    norm_eps: Number = 1e-5
    block_size: Size = 2048
    mean_recurrence: Loops = 8
    tie_embeddings: bool = True
    rope_settings: RopeSettings = RopeSettings()
    initial_state: Rule = option(
        "question", "question (by position), paper (in one call) or official (the published calls)"
    )
    value_layers: frozenset[int] = Field(frozenset(), description="layers, counted through, that add values of tokens")

    @model_validator(mode="before")
    @classmethod
    def _find_value_layers(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Layers that have a table; without a checkpoint every other layer, the last among them."""
        names = (info.context or {}).get("tensors")
        if names is not None:
            tables = (_TABLE.match(name) for name in names)
            return values | {"value_layers": frozenset(int(table[1]) for table in tables if table)}
        counts = [values.get(f"n_layers_in_{part}") for part in ("prelude", "recurrent_block", "coda")]
        layers = sum(count for count in counts if isinstance(count, int))
        return values | {"value_layers": frozenset(range(layers - 1, -1, -2))}

    @property
    def state_std(self) -> float:
        """Of the drawn state."""
        return math.sqrt(2 / (5 * self.n_embd))


class TokenValueAttention(RotatedThenNormed):
    """In layer `number`; with a gate it adds values of the tokens."""

    def __init__(self, sizes: AttentionSizes, number: int, *, gate: bool) -> None:
        super().__init__(sizes, "c_q c_k c_v c_proj")
        self.number = number
        self.ve_gate = Linear(GATE_CHANNELS, sizes.heads, bias=False) if gate else None

    def values(self, v_BSKP: Tensor, x_BSD: Tensor, attention: AttentionContext) -> Tensor:
        """The values with those of the tokens."""
        if self.ve_gate is None:
            return v_BSKP
        gate = _sigmoid(self.ve_gate(x_BSD[..., :GATE_CHANNELS]))
        return v_BSKP + (2 * gate)[..., None] * attention.token_values[self.number].reshape(v_BSKP.shape)


def _sigmoid(x: Tensor) -> Tensor:
    if type(x) is Tensor and x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled():
        # What is left over from whole vectors is computed otherwise there: the last bit would depend on the batch.
        return torch.sigmoid(x.double()).to(x.dtype)
    return torch.sigmoid(x)


class Decay(Fusing):
    """a · s + δ · (B e): what the core reads of the state and of the embedded input; `kept` is a."""

    kept: Tensor | None = None

    def __init__(self, width: int) -> None:
        super().__init__()
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.B = nn.Parameter(torch.zeros(width, width))

    def fuse(self) -> None:
        """Works the decay out once."""
        self.kept = None
        self.kept = self.decay().detach()

    def decay(self) -> Tensor:
        """The decay a, [D]."""
        if self.kept is not None and not (torch.is_grad_enabled() and self.A_log.requires_grad):
            return self.kept
        return torch.exp(-self._step() * torch.exp(_wide(self.A_log))).to(self.A_log.dtype)

    def injection(self, embedded: Tensor) -> Tensor:
        """δ · (B e), the same at every step, [B, S, D]."""
        return linear(embedded, self.B) * self._step().to(self.B.dtype)

    def _step(self) -> Tensor:
        return functional.softplus(_wide(self.dt_bias))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


class StoredRotation(LoopedDecoder):
    """A model whose table of rotations is stored with its weights, and rounded as they are."""

    ignored = frozenset({"freqs_cis"})

    @property
    def rotary(self) -> Rotary:  # type: ignore[override]
        """What positions mean."""
        config = self.config
        return Rotary(config.sizes.head_width, config.rope_settings.rope_base, "interleaved", stored=self.dtype)


@family("parcae", ParcaeConfig, "ParcaeConfig", "Parcae")
class Parcae(StoredRotation, DrawsState):
    """Parcae at any size; padding on the right."""

    boundary = "the recurrent core's raw output, before the coda"

    def __init__(self, config: ParcaeConfig) -> None:
        wide, vocabulary = config.n_embd, config.padded_vocab_size or config.vocab_size
        super().__init__(config, wide, vocabulary, config.block_size, config.mean_recurrence)
        self.initial_state = InitialState(wide, config.state_std, 1.0, config.initial_state)
        inner = config.intermediate_size
        core = config.recurrent_intermediation_embedding_dimension or inner
        counts = {"prelude": config.n_layers_in_prelude, "core_block": config.n_layers_in_recurrent_block}
        counts["coda"] = config.n_layers_in_coda
        self.transformer: Any = nn.ModuleDict()
        first = 0
        for part, count in counts.items():
            width = core if part == "core_block" else inner
            numbers = range(first, first := first + count)
            self.transformer[part] = nn.ModuleList(self._block(number, width) for number in numbers)
        self.transformer["wte"] = Embedding(vocabulary, wide)
        self.transformer["adapter"] = Decay(wide)
        self.transformer["C"] = Linear(wide, wide, bias=False)
        for name in ("ln_prelude", "ln_f"):
            self.transformer[name] = RMSNorm(wide, config.norm_eps)
        self.value_embeds = nn.ModuleDict({str(n): Embedding(vocabulary, wide) for n in sorted(config.value_layers)})
        self.lm_head = Linear(wide, vocabulary, bias=False)
        self.tie_head(config.tie_embeddings, "transformer.wte.weight")

    def _block(self, number: int, inner: int) -> Block:
        config: ParcaeConfig = self.config
        attention = TokenValueAttention(config.sizes, number, gate=number in config.value_layers)
        return PreNormBlock(
            attention, SquaredReluMLP(config.n_embd, inner), lambda: RMSNorm(config.n_embd, config.norm_eps)
        )

    def draw_initial_state(self, source_rows: Sequence[int], lengths: Sequence[int], width: int) -> Tensor:
        """As every family; the published code draws in the model's dtype."""
        if self.initial_state.rule == "official":
            self.initial_state = dataclasses.replace(self.initial_state, dtype=self.dtype)
        return super().draw_initial_state(source_rows, lengths, width)

    def embed(self, batch: Batch, cache: KeyValueCache | None = None) -> Context:
        """The term of the prelude's output, which every step reads, and the drawn s_0."""
        batch, attention = self.enter(batch, cache)
        attention = dataclasses.replace(attention, token_values=self.token_values(batch.input_ids, self.dtype))
        parts = self.transformer
        e = self.run(parts["prelude"], parts["wte"](batch.input_ids), attention, parts["ln_prelude"])
        return Context(self.start(batch, lambda: self.drawn(batch)), batch, parts["adapter"].injection(e), attention)

    def step(self, state: Tensor, context: Context) -> Tensor:
        """The core, on the decayed state and the term of the input."""
        joined = self.transformer["adapter"].decay() * state + context.injection
        return self.run(self.transformer["core_block"], joined, context.extra)

    def readout_layers(self) -> Readout:
        """C, the coda, the norm and the head."""
        parts = self.transformer
        return Readout(self.lm_head, parts["ln_f"], parts["coda"], enter=parts["C"])

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
        """The readout in two."""
        if context is None:
            raise LoopscopeError(f"{self.name}'s coda reads the tokens: give its readout the context of the rows")
        first = len(self.transformer["prelude"]) + len(self.transformer["core_block"])
        return self.logits_of(dtype, self.token_values(context.batch.input_ids, dtype or self.dtype, first))

    def token_values(self, ids_BS: Tensor, dtype: torch.dtype, first: int = 0) -> dict[int, Tensor]:
        """The value embeddings of the tokens, by layer, from the first on."""
        tables = {int(number): table for number, table in self.value_embeds.items()}
        return {number: table(ids_BS).to(dtype) for number, table in tables.items() if number >= first}
