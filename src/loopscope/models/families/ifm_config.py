"""The configuration of IFM's looped models (`ifm_looped`): the object "model" of config.json."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, Self

from pydantic import model_validator

from loopscope.models.families import FamilyConfig, Layers, Loops, Number, Size, only, option


class IfmLoopedConfig(FamilyConfig):
    """The object "model" of config.json; fields that it leaves out have the published code's defaults."""

    title = "IFM looped"
    widths = ("model_dim", "num_heads", "num_kv_heads", "head_dim")
    # What the releases leave as it is, and other values would compute, is not known here.
    fixed = only(
        output_size=-1, norm_affine=True, layernorm_num_groups=1, attn_act_func="softmax", qknorm=False,
        apply_attn_gate=False, residual_func="base", num_values=0, num_shared_experts=0,
        moe_router_score_func="sigmoid", moe_router_bias=False, moe_router_scaling_factor=None,
        num_dense_layers=None, dense_prelude_input_injection="none"
    )  # fmt: skip
    arch: Literal["transformer", "huginn"]
    num_layers: Layers
    model_dim: Size
    num_heads: Size = 1
    num_kv_heads: Size | None = None
    head_dim: Size | None = None
    ffn_hidden_dim: int
    vocab_size: Size
    rmsnorm_eps: Number = 1e-6
    rope_base: Number = 100_000.0
    rope_head_dim: int | None = None
    scale_emb: bool = False
    loop_times: Loops = 1
    loop_start_layer: int = 0
    loop_end_layers: int | None = None
    loop_input_injection: Literal["none", "diagonal"] = "none"
    huginn_prelude_layers: Layers = 1
    huginn_recurrent_layers: Layers | None = None
    huginn_coda_layers: Layers = 1
    huginn_state_init: Literal["zero", "input", "normal"] = "zero"
    huginn_input_injection: Literal["none", "diagonal", "linear"] = "diagonal"
    huginn_hierarchical_state: Literal["none", "shared_hl", "split_hl"] = "none"
    huginn_hierarchical_h_cycles: Loops = 2
    huginn_hierarchical_l_cycles: Loops = 3
    huginn_split_module_repeats: Loops = 1
    huginn_prelude_norm: Literal["none", "rms"] = "none"
    huginn_recurrent_exit_norm: Literal["none", "parameterless_rms"] = "none"
    huginn_prelude_orthogonal: bool = False
    huginn_ortho_projection_eps: Number = 1e-6
    apply_bias_term: bool = False
    num_experts: int = 0
    num_activated_experts: int = 0
    expert_inter_dim: int = 0
    huginn_depth_control: bool = False
    huginn_sampling_scheme: str = ""
    huginn_poisson_lognormal_target_mean: float = 0.0
    huginn_depth_prior: str = ""
    huginn_depth_prior_entropy: float = 0.0
    swiglu: Literal[True]
    apply_rmsnorm: Literal[True]
    terminal_keys: bool = option(False, "generation attends to the keys of the last recurrence, as Part II's")

    @classmethod
    def read(
        cls, json: Mapping[str, Any], tensors: Collection[str] | None = None, chosen: Mapping[str, Any] | None = None
    ) -> Self:
        """As every family's, of the nested object."""
        if json.get("student") is not None:
            raise cls.fault("a distilled student is a prefill for its teacher, not a language model")
        return super().read(json["model"], tensors, chosen)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        active = self.num_activated_experts
        chosen = not self.num_experts or 0 < active <= self.num_experts
        self.require(chosen, f"{active} experts cannot be active of {self.num_experts}")
        whole_head = self.rope_head_dim in (None, self.sizes.head_width)
        self.require(whole_head, f"rope_head_dim {self.rope_head_dim} is not supported")
        if self.arch == "transformer":  # the other one names its layers by huginn_prelude_layers
            first = self.loop_start_layer
            self.require(first == 0, f"loop_start_layer {first} is not supported, only 0")
            self.require(self.loop_times > 1, "loop_times 1: the model is not looped")
        diagonal = self.huginn_input_injection == "diagonal" or not self.huginn_prelude_orthogonal
        self.require(diagonal, "huginn_prelude_orthogonal needs huginn_input_injection 'diagonal'")
        drawn = self.huginn_state_init == "normal" or not self.hierarchical
        self.require(drawn, f"huginn_state_init {self.huginn_state_init!r} is not supported with two states")
        return self

    @property
    def hierarchical(self) -> bool:
        """Whether there are two states."""
        return self.arch == "huginn" and self.huginn_hierarchical_state != "none"

    @property
    def prelude(self) -> int:
        """Layers ahead of the loop."""
        return self.huginn_prelude_layers if self.arch == "huginn" else 0

    @property
    def coda(self) -> int:
        """Layers after the loop."""
        return self.huginn_coda_layers if self.arch == "huginn" else self.num_layers - self.core

    @property
    def core(self) -> int:
        """Layers in the loop."""
        if self.arch == "transformer":
            return self.num_layers if self.loop_end_layers is None else self.loop_end_layers
        rest = self.num_layers - self.huginn_prelude_layers - self.huginn_coda_layers
        return self.huginn_recurrent_layers or rest

    @property
    def injection(self) -> str:
        """How e joins the state."""
        return self.loop_input_injection if self.arch == "transformer" else self.huginn_input_injection

    @property
    def loops(self) -> int:
        """Trained depth; of H/L the H cycles."""
        return self.huginn_hierarchical_h_cycles if self.hierarchical else self.loop_times

    @property
    def design(self) -> dict[str, str]:
        """Topology, injection, and the depths of the training where the file names them."""
        topology = "huginn" if self.huginn_state_init == "normal" else "middle"
        if self.arch == "transformer":
            topology = "ouro"
        elif self.hierarchical:
            repeats = self.huginn_split_module_repeats
            topology = self.huginn_hierarchical_state + (f" x{repeats}" if repeats > 1 else "")
        normed = self.arch == "huginn" and self.huginn_prelude_norm != "none"
        injection = "orthogonal" if self.huginn_prelude_orthogonal else self.injection
        found = {
            "topology": topology + (", experts" if self.num_experts else ""),
            "injection": injection + (", normed input" if normed else ""),
        }
        if self.huginn_depth_prior == "learned":
            found["depth_prior"] = f"learned, entropy {self.huginn_depth_prior_entropy:g}"
        elif self.huginn_sampling_scheme.startswith("poisson-lognormal"):
            found["depth_prior"] = f"Poisson-lognormal, mean {self.huginn_poisson_lognormal_target_mean:g}"
        elif self.huginn_sampling_scheme == "fixed" or not self.huginn_depth_control:
            found["depth_prior"] = f"fixed {self.loops}"
        return found
