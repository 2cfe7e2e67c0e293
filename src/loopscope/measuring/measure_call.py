"""A call of `measure`: what it may be given, and the request that it becomes, every value checked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, get_args

from loopscope.errors import LARGEST_SEED, choice, fraction, optional_text, switch, text, whole
from loopscope.measuring.checkpoints import Checkpoint, one_step
from loopscope.measuring.given_values import (
    MOST_CANDIDATES,
    MOST_QUESTIONS,
    Numbers,
    limits,
    rows,
    scales_end,
    task_list,
)
from loopscope.measuring.plan import Encodings, Request
from loopscope.measuring.progress import Style
from loopscope.measuring.protocols import find_protocol
from loopscope.measuring.requests import DataRequest, ModelRequest, SharedData
from loopscope.measuring.run import Notify
from loopscope.measuring.settings import READOUT_DTYPES, BatchPolicy, LongPolicy, Prompting, Settings
from loopscope.models.initial_state import RULES
from loopscope.models.user_models import model_arguments
from loopscope.store.manifest import step_in
from loopscope.store.schema import Level
from loopscope.tasks.own_task import Task
from loopscope.tasks.prompting import MOST_FEWSHOT

if TYPE_CHECKING:
    import torch

Text: TypeAlias = str | os.PathLike[str]
Tasks: TypeAlias = Text | Task | Iterable[Text | Task]


class MeasureSettings(TypedDict, total=False):
    """What `measure` and `plan` may be given by name, besides models, tasks and output."""

    model_args: Mapping[str, Any] | str | None
    transitions: Numbers
    depths: Numbers
    level: Level | str
    tokens: bool
    paths: bool
    certify: bool
    trace: bool
    lens: int | None
    scales_to: float | None
    every_scale: bool
    limit: int | str | Mapping[str, int] | None
    ids: Numbers | Mapping[str, Numbers] | None
    protocol: str
    initial_state: str | None
    initial_seed: int | None
    template: Text | None
    data_dir: Text | None
    num_fewshot: int | None
    fewshot_split: Text | None
    fewshot_seed: int
    apply_chat_template: bool
    batch_size: str | int | None
    device: str | torch.device
    dtype: str | torch.dtype | None
    readout_dtype: str | torch.dtype | None
    long: LongPolicy
    share_context: bool
    unit_size: int
    scalar_checks: int
    exit_threshold: float | None
    random_weights: bool
    seed: int
    tokenizer: Any
    revision: str | Sequence[str] | None
    training_step: int | str | Sequence[int] | None
    engine: str
    workers: int | None
    address: str | None
    progress_style: Style
    command_line: Sequence[str]
    notify: Notify | None


def request_of(call: SimpleNamespace) -> Request:
    """What a call asks for."""
    protocol = find_protocol(call.protocol)
    candidates = 0 if call.lens is None else whole("lens", call.lens, 1, MOST_CANDIDATES)
    settings = Settings.of(
        call.transitions,
        call.depths,
        call.level,
        tokens=switch("tokens", call.tokens),
        paths=switch("paths", call.paths),
        certify=switch("certify", call.certify),
        trace=switch("trace", call.trace) or candidates > 0,
        lens=candidates,
        scales_to=scales_end(call.scales_to),
        interpolate=not (switch("every_scale", call.every_scale) or protocol.every_scale),
        protocol=call.protocol,
        batch=BatchPolicy.parse(_or(call.batch_size, protocol.batch_size)),
        training_step=_training_step(call),
        unit_size=whole("unit_size", call.unit_size, 1, MOST_QUESTIONS),
        readout_dtype=choice("readout_dtype", _named(_or(call.readout_dtype, protocol.readout_dtype)), READOUT_DTYPES),
        scalar_checks=whole("scalar_checks", call.scalar_checks, 0, MOST_QUESTIONS),
        exit_threshold=fraction("exit_threshold", call.exit_threshold),
        long=choice("long", call.long, get_args(LongPolicy)),
        share_context=switch("share_context", call.share_context),
    )
    return Request(
        ModelRequest.of(
            call.model,
            text("device", _named(call.device)),
            optional_text("dtype", _named(_or(call.dtype, protocol.dtype))),
            revision=optional_text("revision", call.revision),
            random_weights=switch("random_weights", call.random_weights),
            seed=whole("seed", call.seed, -LARGEST_SEED, LARGEST_SEED),
            tokenizer=_tokenizer(call.tokenizer),
            args=model_arguments(call.model_args),
            initial_state=None if call.initial_state is None else choice("initial_state", call.initial_state, RULES),
            default_state=protocol.initial_state,
            initial_seed=None
            if call.initial_seed is None
            else whole("initial_seed", call.initial_seed, 0, LARGEST_SEED),
        ),
        DataRequest(
            task_list(call.tasks),
            optional_text("data_dir", call.data_dir),
            optional_text("template", call.template),
            limits(call.limit),
            rows(call.ids),
            Prompting(
                None if call.num_fewshot is None else whole("num_fewshot", call.num_fewshot, 0, MOST_FEWSHOT),
                optional_text("fewshot_split", call.fewshot_split),
                whole("fewshot_seed", call.fewshot_seed, 0, LARGEST_SEED),
                switch("apply_chat_template", call.apply_chat_template),
            ),
        ),
        settings,
    )


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _training_step(call: SimpleNamespace) -> int | None:
    """What was given, or what the names in the call tell: revision, folder, arguments of the user's own code."""
    if call.training_step is not None:
        return one_step(call.training_step)
    told = (call.revision, call.model, *model_arguments(call.model_args).values())
    steps = (step_in(os.fspath(name)) for name in told if isinstance(name, str | os.PathLike))
    return next((step for step in steps if step is not None), None)


def _tokenizer(given: Any) -> Any:
    """A name or a file as text, an object as the tokenizer that it is now."""
    if given is None or isinstance(given, str | os.PathLike):
        return optional_text("tokenizer", given)
    from loopscope.models.tokenizer import from_object

    return from_object(given)


def requests_of(call: SimpleNamespace, found: Sequence[Checkpoint]) -> list[Request]:
    """What is asked of each model, with the rows and their encodings in common."""
    requests = [
        request_of(SimpleNamespace(**vars(call) | {"model": each.spec, "revision": None, "training_step": each.step}))
        for each in found
    ]
    data, encodings = SharedData(**vars(requests[0].data)), Encodings()
    return [replace(request, data=data, encodings=encodings) for request in requests]


def _named(given: Any) -> Any:
    """A device or dtype of torch by its name."""
    return str(given).removeprefix("torch.") if type(given).__module__ == "torch" else given
