"""A tokenizer's own chat template: messages to the text that the model was trained to read them as.

The template is Jinja, comes with the checkpoint and is rendered in Jinja's immutable sandbox, with the blank handling,
filters and functions that templates are written for. Rendering agrees with transformers' `apply_chat_template`, which
is tested; transformers itself is not needed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

from loopscope.errors import LoopscopeError

MOST_TEMPLATE_CHARACTERS = 200_000
"""Characters of a chat template."""
MOST_RENDERED_CHARACTERS = 10_000_000
"""Characters that rendering may come to: a template is a program, and a short one can write without end."""
SAFE_JINJA = (3, 1, 6)
"""Before this version ways out of the sandbox are known, and a template comes from a stranger."""
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
        environment = _environment()
        given = {"messages": [dict(message) for message in messages], "add_generation_prompt": add_generation_prompt}
        try:
            pieces, size = [], 0
            compiled = environment.from_string(self.source)
            for piece in compiled.generate(**given, tools=None, documents=None, **self.special_tokens):
                pieces.append(piece)
                size += len(piece)
                if size > MOST_RENDERED_CHARACTERS:
                    raise LoopscopeError(f"{self.where}: the chat template writes more than {size} characters")
            return "".join(pieces)
        except LoopscopeError:
            raise
        except Exception as error:  # a template is a program: what it raises is its own
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> LoopscopeError:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return LoopscopeError(f"{self.where}: the chat template refuses this conversation ({reason})")


@cache
def _environment() -> Any:
    try:
        import jinja2
        import jinja2.ext
        import jinja2.nodes
        import jinja2.sandbox
    except ImportError as error:
        raise LoopscopeError("chat templates need Jinja: pip install 'loopscope[chat]'") from error
    if tuple(map(int, version("jinja2").split(".")[:3])) < SAFE_JINJA:
        raise LoopscopeError(
            f"Jinja {version('jinja2')} lets a template out of its sandbox: pip install -U 'loopscope[chat]'"
        )

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks what an assistant wrote; the text inside stands as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def as_json(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment: Any = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = as_json
    # `strftime_now` is left undefined: with today's date in it, the same call would be another one tomorrow.
    environment.globals["raise_exception"] = refuse
    return environment
