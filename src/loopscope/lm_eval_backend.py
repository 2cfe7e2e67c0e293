"""loopscope as a model of lm-evaluation-harness: each of its tasks at a chosen depth, step scale or policy.

    lm_eval.simple_evaluate(model=ls.lm_eval_model("toy-ouro", depth=4), tasks=[...])
    loopscope lm-eval --model_args pretrained=toy-ouro,depth=4 --tasks ...
    lm_eval --model loopscope ...                   releases that read the entry point group `lm_eval.models`
    lm_eval --plugins loopscope.lm_eval_backend ... releases that have the flag

A request's result does not depend on the other requests: states are computed per sequence, an initial state that is
drawn is seeded by the document's number, and sampling by the request's. Requests with the same context share a row
where the model can run them so, and equal sequences run once.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch import Tensor

from loopscope import __version__
from loopscope.control.act import act_on
from loopscope.control.generate import generate
from loopscope.control.policies import FixedScale, ScaledReadout
from loopscope.errors import LoopscopeError, shown, whole
from loopscope.models.batch import Group, common_prefix, pack
from loopscope.models.families.decoder import InitialState
from loopscope.models.generate import Sampler
from loopscope.models.in_memory import ModelSpec
from loopscope.models.load import card_of, load_model
from loopscope.models.tokenizer import tokenizer_of
from loopscope.models.walk import Walk, read, readout_asks_context
from loopscope.tasks.prompting import render_begun

try:
    from lm_eval.api.model import TemplateLM  # type: ignore[import-untyped]
    from lm_eval.api.registry import register_model  # type: ignore[import-untyped]
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # type: ignore[import-untyped]
except ImportError as error:
    raise LoopscopeError(
        "lm-evaluation-harness is not installed: pip install '.[lm-eval]' in loopscope's folder"
    ) from error

LONGEST = 2048
"""Tokens of a sequence, where the model has no limit of its own."""
MOST_LOOPS, MOST_TOKENS = 10_000, 10_000_000
AUTO_TOKENS = {"cpu": 4_096, "cuda": 65_536}
"""Tokens of a batch with `batch_size="auto"`."""
HARNESS_DEVICE = "cuda:0"
"""The device that lm-evaluation-harness names where the user names none."""
_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_SAMPLING = {"do_sample", "temperature", "top_k", "top_p", "seed"}

T = TypeVar("T")


@dataclass(frozen=True)
class _Request:
    """One sequence to score: the last `scored` of `ids`."""

    index: int
    source_row: int
    ids: tuple[int, ...]
    scored: int

    @property
    def input(self) -> tuple[int, ...]:
        return self.ids[:-1]

    @property
    def context(self) -> tuple[int, ...]:
        return self.ids[: -self.scored]

    @property
    def positions(self) -> range:
        return range(len(self.input) - self.scored, len(self.input))


@register_model("loopscope")
class LoopscopeLM(TemplateLM):  # type: ignore[misc]
    """A looped model that answers lm-evaluation-harness's requests.

    Args:
        pretrained: whatever names a model here (`load_model`), or a model in memory.
        depth: loops; the trained depth when left out. With a policy the most loops that it may take.
        scale: α of the last update: the state that is read is H_{R-1} + α·(H_R - H_{R-1}).
        chord: k of a longer update k → R, which `omega` extends.
        omega: reads H_R + ω·(H_R - H_k), the update from `chord` at α = 1 + ω; k = R - 1 without `chord`.
        policy: decides for every position when to stop and how far to step.
        tokenizer: as for `measure`, by default the model's.
        dtype: of weights and states; the readout is computed in float32.
        device: "auto" takes an accelerator if there is one.
        batch_size: contexts in a batch, or "auto".
        max_batch_size: the most contexts in a batch with "auto".
        max_length: the most tokens of a sequence; longer ones lose their beginning.
        max_gen_toks: new tokens of a generation whose request does not say how many.
        model_args: what the model itself takes.
    """

    def __init__(
        self,
        pretrained: ModelSpec = "",
        *,
        depth: int | None = None,
        scale: float | None = None,
        chord: int | None = None,
        omega: float | None = None,
        policy: Any = None,
        tokenizer: Any = None,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        batch_size: int | str = "auto",
        max_batch_size: int | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        **model_args: Any,
    ) -> None:
        super().__init__()
        if isinstance(pretrained, str) and not pretrained:
            raise LoopscopeError("no model is named: give pretrained=, e.g. --model_args pretrained=toy-ouro,depth=4")
        if device is None or (device == HARNESS_DEVICE and not torch.cuda.is_available()):
            device = "auto"
        self.model = load_model(pretrained, model_args=model_args, device=device, dtype=dtype)
        self.tokenizer = tokenizer_of(self.model, tokenizer)
        self.tokenizer.check_fits(self.model.vocabulary_size, self.model.name)
        self._device = self.model.device
        self.depth = self.model.trained_depth if depth is None else whole("depth", depth, 0, MOST_LOOPS)
        self._set_update(scale, chord, omega, policy)
        self.batch_size = None if str(batch_size).startswith("auto") else _number("batch_size", batch_size)
        self.max_batch_size = None if max_batch_size is None else _number("max_batch_size", max_batch_size)
        limit = getattr(self.model, "max_positions", None)
        self.max_length = _number("max_length", max_length or limit or LONGEST, limit or MOST_TOKENS)
        self.max_gen_toks = _number("max_gen_toks", max_gen_toks)
        shares = getattr(self.model, "unpadded", False) and not readout_asks_context(self.model)
        self._sharing = shares and policy is None
        self._source_rows: list[int] = []
        self._loops = self._positions = 0.0

    def _set_update(self, scale: float | None, chord: int | None, omega: float | None, policy: Any) -> None:
        """From which depth the state that is read is reached, and at which scale."""
        if sum(given is not None for given in (scale, omega, policy)) > 1:
            raise LoopscopeError("scale=, omega= and policy= exclude each other: give one of them")
        if chord is not None and omega is None:
            raise LoopscopeError("chord= names where an update begins: give omega= along with it")
        self.scale = 1.0 if scale is None and omega is None else float(scale if omega is None else 1 + omega)  # type: ignore[arg-type]
        self.start = self.depth - 1 if chord is None else whole("chord", chord, 0, self.depth - 1)
        if self.scale != 1 and self.start < 0:
            raise LoopscopeError("no update ends at depth 0: scale= and omega= need depth=1 or more")
        self.policy = policy
        self._generating = policy
        if self.scale != 1 and self.start == self.depth - 1:
            self._generating = FixedScale(self.scale, self.depth, stop=True)
        elif self.scale != 1:
            self._generating = ScaledReadout(self.depth, self.start, self.scale - 1)

    # What lm-evaluation-harness needs to know of texts.

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        if not self.tokenizer.eos_ids:
            raise LoopscopeError(f"{self.tokenizer.source} has no end-of-text token")
        return int(self.tokenizer.eos_ids[0])

    @property
    def prefix_token_id(self) -> int:
        """The token that an empty context stands for."""
        return self.eot_token_id if self.tokenizer.bos_id is None else int(self.tokenizer.bos_id)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids, with special tokens as the tokenizer adds them unless the text begins with one already."""
        if add_special_tokens is None:
            known = self.tokenizer.bos_id is not None or self.tokenizer.eos_ids
            add_special_tokens = not (known and string.startswith(self.tokenizer.decode([self.prefix_token_id])))
        return self.tokenizer.encode(string, special_tokens=add_special_tokens)

    @property
    def tokenizer_name(self) -> str:
        """What distinguishes cached requests of one tokenizer from those of another."""
        return f"{self.model.name}-{self.tokenizer.sha256[:16]}".replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the chat template."""
        return self._template().source if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text; without `add_generation_prompt` its last message is to be continued."""
        chat = self._template()
        return str(chat.render(chat_history) if add_generation_prompt else render_begun(chat, chat_history))

    def _template(self) -> Any:
        if self.tokenizer.chat_template is None:
            raise LoopscopeError(f"{self.tokenizer.source} has no chat template: leave out --apply_chat_template")
        return self.tokenizer.chat_template

    # Requests.

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Summed log-probability of every continuation, and whether it is the greedy one."""
        self._source_rows = [request.doc_id or 0 for request in requests]
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of every text, in windows that predict each token once."""
        windows, owners, self._source_rows = [], [], []
        for index, request in enumerate(requests):
            (text,) = request.args
            cut = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length, 1)
            for context, predicted in map(make_disjoint_window, cut):
                windows.append((("", ""), context, predicted))
                owners.append(index)
                self._source_rows.append(request.doc_id or 0)
        sums = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            sums[owner] += value
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    @torch.no_grad()
    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        by_context: defaultdict[tuple[int, tuple[int, ...]], list[_Request]] = defaultdict(list)
        for index, (texts, context, continuation) in enumerate(requests):
            if len(continuation) > self.max_length:
                tokens = f"{len(continuation)} tokens, and max_length is {self.max_length}"
                raise LoopscopeError(f"the continuation {shown(texts[1])} has {tokens}")
            ids = (*context, *continuation)[-(self.max_length + 1) :]
            if continuation:
                one = _Request(index, self._source_rows[index], ids, len(continuation))
                by_context[one.source_row, one.context].append(one)
        found: list[tuple[float, bool]] = [(0.0, True)] * len(requests)  # what an empty continuation has
        groups = sorted(by_context.values(), key=lambda group: -max(len(one.ids) for one in group))
        pairs = [(len(group[0].context) * self._sharing, group) for group in groups]
        widths = [sum(len(one.ids) for one in group) - n * (len(group) - 1) for n, group in pairs]
        for batch in self._batches(groups, widths):
            for one, value in self._scored(batch):
                found[one.index] = value
                self.cache_hook.add_partial("loglikelihood", requests[one.index][0], value)
        return found

    def _scored(self, groups: Sequence[Sequence[_Request]]) -> Iterator[tuple[_Request, tuple[float, bool]]]:
        """The values of one batch; each group is the requests of one context."""
        laid: list[Group] = []
        asked: list[tuple[_Request, int]] = []
        for group in groups:
            sequences = list(dict.fromkeys(one.input for one in group))
            first = sum(len(before.sequences) for before in laid)
            asked += [(one, first + sequences.index(one.input)) for one in group]
            shared = common_prefix(sequences) if self._sharing else 0
            laid.append(Group(sequences, shared, group[0].source_row, [len(group[0].context)] * len(sequences)))
        places = dict.fromkeys((row, position) for one, row in asked for position in one.positions)
        place_of = {place: number for number, place in enumerate(places)}
        device = self.model.device
        z_NV = self._logits(laid, torch.tensor(list(places), device=device))
        log_total, likeliest = z_NV.logsumexp(-1), z_NV.argmax(-1)
        for one, row in asked:
            rows = torch.tensor([place_of[row, position] for position in one.positions], device=device)
            targets = torch.tensor(one.ids[-one.scored :], device=device)
            value = float((z_NV[rows, targets] - log_total[rows]).double().sum())
            yield one, (value, bool((likeliest[rows] == targets).all()))

    def _logits(self, groups: Sequence[Group], positions_N2: Tensor) -> Tensor:
        """What is read at (sequence, position), float32 [N, V]."""
        packing = pack(groups).to(self.model.device)
        if self.policy is not None:
            acted = act_on(self.model, packing.batch, self.policy, self.depth, torch.float32)
            self._count(acted.loops_BS[packing.batch.attention_mask].double().sum(), packing.batch.attention_mask.sum())
            return acted.logits(positions_N2)
        walk = Walk.of(self.model, packing.batch, self.depth)
        before = walk.to(self.start).state if self.scale != 1 else walk.state
        state = walk.to(self.depth).state
        if self.scale != 1:
            before = before.float()
            state = before + self.scale * (state.float() - before)
        self._count(self.depth, 1)
        return read(self.model, packing.separate(state), positions_N2, torch.float32, walk.context)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The text that follows every context, up to a stop text."""
        made: list[str] = []
        for _, same in groupby(requests, key=lambda request: request.args[1]):
            run = list(same)
            count, stops, sampler = self._settings(run[0].args[1])
            if count >= self.max_length:
                raise LoopscopeError(f"max_gen_toks {count} leaves no room for a context in {self.max_length} tokens")
            prompts = [self.tok_encode(request.args[0])[-(self.max_length - count) :] for request in run]
            rows = list(zip(run, prompts, strict=True))
            for batch in self._batches(rows, [len(prompt) + count for prompt in prompts]):
                generated = generate(
                    self.model,
                    [prompt or [self.prefix_token_id] for _, prompt in batch],
                    max_new_tokens=count,
                    depth=self.depth,
                    policy=self._generating,
                    stop=stops,
                    tokenizer=self.tokenizer,
                    eos_ids=[*self.tokenizer.eos_ids, *getattr(self.model, "eos_ids", ())],
                    sampler=Sampler(**sampler | {"seed": sampler["seed"] + len(made)}),
                    source_rows=[request.doc_id or 0 for request, _ in batch],
                )
                for loops in generated.loops:
                    self._count(sum(loops), len(loops))
                for (request, _), new in zip(batch, generated.tokens, strict=True):
                    text = self.tokenizer.decode(new, skip_special_tokens=True)
                    text = text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]
                    made.append(text)
                    self.cache_hook.add_partial("generate_until", request.args, text)
        return made

    def _settings(self, given: Mapping[str, Any]) -> tuple[int, list[str], dict[str, Any]]:
        """How many new tokens, the stop texts, and how tokens are drawn."""
        unknown = sorted(set(given) - _SAMPLING - set(_LIMITS) - {"until"})
        if unknown:
            raise LoopscopeError(
                f"generation has no setting {', '.join(unknown)}: leave it out of the task's gen_kwargs"
            )
        until = given.get("until") or []
        count = next((int(given[name]) for name in _LIMITS if given.get(name) is not None), self.max_gen_toks)
        temperature = float(given.get("temperature") or 0.0)
        sampled = bool(given.get("do_sample", temperature > 0))
        if sampled and "temperature" not in given:
            temperature = 1.0
        sampler = {name: given[name] for name in ("top_k", "top_p") if given.get(name) and sampled}
        sampler |= {"temperature": temperature if sampled else 0.0, "seed": int(given.get("seed") or 0)}
        return count, [text for text in ([until] if isinstance(until, str) else until) if text], sampler

    def _batches(self, items: Sequence[T], tokens: Sequence[int]) -> Iterator[list[T]]:
        """Items in their order: `batch_size` at a time, or as many as stay below a number of tokens."""
        most = self.batch_size or self.max_batch_size or len(items)
        budget = AUTO_TOKENS.get(self._device.type, AUTO_TOKENS["cpu"])
        batch: list[T] = []
        widest = 0
        for item, width in zip(items, tokens, strict=True):
            widest = max(widest, width)
            if batch and (len(batch) == most or (self.batch_size is None and widest * (len(batch) + 1) > budget)):
                yield batch
                batch, widest = [], width
            batch.append(item)
        if batch:
            yield batch

    # What the results file records.

    def _count(self, loops: Any, positions: Any) -> None:
        self._loops += float(loops)
        self._positions += float(positions)

    def get_model_info(self) -> dict[str, Any]:
        """What was run: recorded in the `config` of the results."""
        card, drawn = card_of(self.model), getattr(self.model, "initial_state", None)
        return {
            "model_name": card.name,
            "model_num_parameters": card.parameters,
            "model_dtype": card.dtype,
            "model_revision": card.revision,
            "loopscope_version": __version__,
            "depth": self.depth,
            "trained_depth": card.trained_depth,
            "scale": self.scale,
            "chord": self.start if self.scale != 1 else None,
            "policy": None if self.policy is None else self.policy.name,
            "initial_state": f"{drawn.rule}, seed {drawn.seed}" if isinstance(drawn, InitialState) else None,
            "mean_loops_per_token": self._loops / self._positions if self._positions else None,
        }


def _number(name: str, given: Any, most: int = MOST_TOKENS) -> int:
    """A whole number from 1, also as text, as lm-evaluation-harness hands on what it was given."""
    return whole(name, int(given) if isinstance(given, str) and given.isdecimal() else given, 1, most)


def lm_eval_model(model: ModelSpec, **settings: Any) -> LoopscopeLM:
    """A model for `lm_eval.simple_evaluate(model=…)`; the settings are those of `--model_args` (`LoopscopeLM`)."""
    return LoopscopeLM(model, **settings)


def run_harness(arguments: Iterable[str]) -> None:
    """lm-evaluation-harness's command line with `--model loopscope`, and automatic batches unless it says otherwise."""
    from lm_eval.__main__ import cli_evaluate  # type: ignore[import-untyped]

    given = list(arguments)
    if given[:1] not in (["ls"], ["validate"]):
        given = given[given[:1] == ["run"] :]
        sized = any(argument.partition("=")[0] in ("--batch_size", "-b") for argument in given)
        given = ["run", "--model", "loopscope", *([] if sized else ["--batch_size", "auto"]), *given]
    before, sys.argv = sys.argv, ["lm-eval", *given]
    try:
        cli_evaluate()
    finally:
        sys.argv = before
