"""Which model and tokenizer a pass loads, and where to."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loopscope.errors import LoopscopeError, setting, text
from loopscope.models.choices import split_choices
from loopscope.models.in_memory import ModelSpec, is_factory, spec_of
from loopscope.models.initial_state import InitialState, Rule
from loopscope.models.user_models import OBJECT

if TYPE_CHECKING:
    from loopscope.models.protocol import LoopedModel
    from loopscope.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelRequest:
    """Which model and tokenizer to load, and where to.

    Attributes:
        spec: a specification of `load_model`; of a model in memory, what the run records.
        device: "cpu", "cuda", "auto".
        dtype: of weights and states; None is what `load_model` takes.
        revision: of a hub model.
        random_weights: build the model without its checkpoint.
        seed: of the random weights.
        tokenizer: another checkpoint or a file to take the tokenizer from, or a tokenizer.
        needs_tokenizer: whether there are texts to encode; token ids need none.
        given: a model in memory, or a function that makes one; None where `spec` names the model.
        args: what a factory of the user's own is called with.
        initial_state: the rule by which H_0 is drawn, refused where the model draws none or was given another.
        default_state: the rule where neither this nor the specification says; None is the model's own.
        initial_seed: what H_0 is drawn from, refused where the model draws none; None is the model's own.
    """

    spec: str
    device: str = "auto"
    dtype: str | None = None
    revision: str | None = None
    random_weights: bool = False
    seed: int = 0
    tokenizer: str | Tokenizer | None = None
    needs_tokenizer: bool = True
    given: Any = None
    args: Mapping[str, Any] = field(default_factory=dict)
    initial_state: Rule | None = None
    default_state: Rule | None = None
    initial_seed: int | None = None

    @classmethod
    def of(cls, model: ModelSpec, device: str = "auto", dtype: str | None = None, **more: Any) -> ModelRequest:
        """From a specification, or from a model in memory, which stays where it is unless `device` says otherwise."""
        if isinstance(model, str | os.PathLike):
            return cls(text("model", model), device, dtype, **more)
        if device == "auto" and not is_factory(model) and hasattr(model, "device"):
            device = str(model.device)
        return cls(spec_of(model), device, dtype, **more, given=model)

    def load(self) -> LoopedModel:
        """The model."""
        from loopscope.models.load import load_model

        model = load_model(
            self.spec if self.given is None else self.given,
            model_args=self.args,
            device=self.device,
            dtype=self.dtype,
            revision=self.revision,
            random_weights=self.random_weights,
            seed=self.seed,
        )
        self._choose_state(model)
        return model

    def _choose_state(self, model: LoopedModel) -> None:
        drawn = getattr(model, "initial_state", None)
        chosen = {**split_choices(self.spec)[1], **self.args}.get("initial_state")
        if not isinstance(drawn, InitialState):
            for name in ("initial_state", "initial_seed"):
                if getattr(self, name) is not None:
                    left = setting(name, getattr(self, name))
                    raise LoopscopeError(f"{model.name} draws no initial state: leave out {left}")
            return
        if chosen is not None and self.initial_state not in (None, chosen):
            raise LoopscopeError(
                f"{self.spec} chooses initial_state={chosen}: leave out {setting('initial_state', self.initial_state)}"
            )
        rule = self.initial_state or self.default_state
        if chosen is None and rule is not None:
            drawn = dataclasses.replace(drawn, rule=rule)
        if self.initial_seed is not None:
            drawn = dataclasses.replace(drawn, seed=self.initial_seed)
        model.initial_state = drawn  # type: ignore[attr-defined]

    def load_tokenizer(self, model: object = None) -> Tokenizer | None:
        """The one that the user gave; none for token ids; the model's own, as an attribute or by its name."""
        from loopscope.models.tokenizer import load_tokenizer, no_tokenizer

        if self.tokenizer is not None:
            return load_tokenizer(self.tokenizer)
        if not self.needs_tokenizer:
            return None
        own = getattr(model, "tokenizer", None)
        if own is not None:
            return load_tokenizer(own)
        if self.given is None:
            return load_tokenizer(self.spec, revision=self.revision)
        checkpoint = getattr(getattr(model, "card", None), "checkpoint", None)
        if checkpoint is None:
            raise LoopscopeError(no_tokenizer(getattr(model, "name", None) or self.spec.removeprefix(OBJECT)))
        return load_tokenizer(checkpoint[0], revision=checkpoint[1])
