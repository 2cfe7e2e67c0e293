"""A tokenizer's chat template: messages to the text that the model was trained to read them as.

The template is Jinja, comes with the checkpoint and is rendered in Jinja's immutable sandbox, with the blank handling,
filters and functions that templates are written for. Rendering agrees with transformers' `apply_chat_template`, except
that it has limits of time and size, and no clock: the same call gives the same text tomorrow.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from loopscope.errors import LoopscopeError
from loopscope.limits import TimeLimitError, time_limit

MOST_TEMPLATE_CHARACTERS = 200_000
"""Characters of a chat template."""
MOST_RENDERED_CHARACTERS = 10_000_000
"""Characters that rendering may come to: a template is a program, and a short one can write without end."""
MOST_SECONDS = 10.0
"""Of rendering one conversation."""
MOST_BITS = 10_000
"""Of a power that a template computes."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Tokens that a template may name."""


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template.

    Attributes:
        source: the Jinja text.
        special_tokens: the texts of the tokens that it may name, such as `bos_token`.
        where: the place to show in an error.
    """

    source: str
    special_tokens: Mapping[str, str]
    where: str

    @classmethod
    def of(cls, given: object, special_tokens: Mapping[str, str], where: str) -> ChatTemplate | None:
        """From what a checkpoint or a tokenizer object holds: a text, several by name, a list of those, or nothing."""
        if isinstance(given, list):
            given = {entry.get("name"): entry.get("template") for entry in given if isinstance(entry, dict)}
        if isinstance(given, Mapping):
            given = given.get("default")
        if not isinstance(given, str) or not given:
            return None
        if len(given) > MOST_TEMPLATE_CHARACTERS:
            raise LoopscopeError(
                f"{where}: a chat template of {len(given)} characters; {MOST_TEMPLATE_CHARACTERS} are the most"
            )
        return cls(given, dict(special_tokens), where)

    @property
    def sha256(self) -> str:
        """The hash of all that decides what is written."""
        content = [self.source, dict(sorted(self.special_tokens.items()))]
        return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The text of a conversation, up to where the model's answer begins."""
        if not self._writes_messages:
            raise LoopscopeError(
                f"{self.where}: the chat template does not write the user's message, so that no question would reach "
                "the model; leave the chat template out"
            )
        return self._rendered(messages, add_generation_prompt)

    @cached_property
    def _writes_messages(self) -> bool:
        """Whether two questions give two texts."""
        return len({self._rendered([{"role": "user", "content": word}], True) for word in ("one", "other")}) == 2

    def _rendered(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        given = {"messages": [dict(message) for message in messages], "add_generation_prompt": add_generation_prompt}
        pieces: list[str] = []
        size = 0
        try:
            with time_limit(MOST_SECONDS):
                compiled = _environment().from_string(self.source)
                for piece in compiled.generate(**given, tools=None, documents=None, **self.special_tokens):
                    pieces.append(piece)
                    size += len(piece)
                    if size > MOST_RENDERED_CHARACTERS:
                        raise LoopscopeError(f"{self.where}: the chat template writes more than {size} characters")
        except TimeLimitError:
            raise LoopscopeError(f"{self.where}: the chat template takes more than {MOST_SECONDS:g} seconds") from None
        except LoopscopeError:
            raise
        except Exception as error:  # a template is a program, which may raise anything
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise LoopscopeError(f"{self.where}: the chat template refuses this conversation ({reason})") from error
        return "".join(pieces)


@cache
def _environment() -> Any:
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks what an assistant wrote; the text inside stands as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
        """The sandbox, in which no single operation takes long or fills the memory."""

        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**":
                size = left.bit_length() * abs(right) if isinstance(left, int) and isinstance(right, int) else 0
            else:
                size = max((len(x) * n for x, n in ((left, right), (right, left)) if hasattr(x, "__len__")), default=0)
            if size > (MOST_BITS if operator == "**" else MOST_RENDERED_CHARACTERS):
                raise OverflowError(f"{operator} makes something too large")
            return super().call_binop(context, operator, left, right)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment: Any = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    # As transformers writes it, whose template filter leaves what is not ASCII as it is.
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, **options
    )
    # `strftime_now` is left undefined: with today's date in it, the same call would be another one tomorrow.
    environment.globals["raise_exception"] = refuse
    return environment
