"""Tokenizers of other libraries with the few methods of `tokenizers.Tokenizer` that loopscope calls.

SentencePiece and the tokenizers that transformers writes in Python; `tokenizers.Tokenizer` needs no wrapping.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class Encoded(Protocol):
    """Token ids and, where the library tells, the characters of the text that each one covers."""

    @property
    def ids(self) -> list[int]:
        """The token ids."""
        ...

    @property
    def offsets(self) -> list[tuple[int, int]] | None:
        """First character and the one after the last, for each token."""
        ...


class TextBackend(Protocol):
    """What loopscope asks of a tokenizer's library."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> Any:
        """An `Encoded`."""
        ...

    def encode_batch(self, texts: list[str], *, add_special_tokens: bool = ...) -> Sequence[Any]:
        """Several."""
        ...

    def decode(self, ids: list[int], *, skip_special_tokens: bool = ...) -> str:
        """The text of token ids."""
        ...

    def id_to_token(self, number: int) -> str | None:
        """A token as the vocabulary writes it."""
        ...


class Encoding(NamedTuple):
    """An `Encoded`."""

    ids: list[int]
    offsets: list[tuple[int, int]] | None


class SentencePieceBackend:
    """A `sentencepiece.SentencePieceProcessor`; what it was told to add around a text counts as special tokens."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        """Token ids, and their places worked out from what each of them covers."""
        if add_special_tokens:
            return Encoding(self._ids(text), None)
        return Encoding(self._ids(text, add_bos=False, add_eos=False), self._offsets(text))

    def encode_batch(self, texts: list[str], *, add_special_tokens: bool = True) -> list[Encoding]:
        """One after the other."""
        return [self.encode(text, add_special_tokens=add_special_tokens) for text in texts]

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids; SentencePiece writes no control tokens."""
        text: str = self.processor.decode(ids)
        return text

    def id_to_token(self, number: int) -> str | None:
        """A piece."""
        return str(self.processor.id_to_piece(number))

    def sha256(self) -> str:
        """The hash of the model, whichever file or object it came from."""
        return hashlib.sha256(self.processor.serialized_model_proto()).hexdigest()

    def _ids(self, text: str, **around: bool) -> list[int]:
        # Sampling would give other ids at every call.
        return list(self.processor.encode(text, out_type=int, enable_sampling=False, **around))

    def _offsets(self, text: str) -> list[tuple[int, int]] | None:
        form = {"add_bos": False, "add_eos": False, "enable_sampling": False}
        try:
            found = self.processor.encode(text, out_type="proto", **form)
        except ImportError:  # protobuf is not there
            return None
        except ValueError:  # before 0.2.1
            found = self.processor.encode(text, out_type="immutable_proto", **form)
        # Places count bytes in one version and characters in another; surfaces are text in all of them.
        ends = [0]
        for piece in found.pieces:
            ends.append(ends[-1] + len(piece.surface))
        return list(itertools.pairwise(ends))


class PythonBackend:
    """A tokenizer that transformers writes in Python: it says nothing of places in the text."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        """Token ids."""
        return Encoding(list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens)), None)

    def encode_batch(self, texts: list[str], *, add_special_tokens: bool = True) -> list[Encoding]:
        """One after the other."""
        return [self.encode(text, add_special_tokens=add_special_tokens) for text in texts]

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def id_to_token(self, number: int) -> str | None:
        """A token as the vocabulary writes it."""
        token: str | None = self.tokenizer.convert_ids_to_tokens(number)
        return token

    def sha256(self) -> str:
        """The hash of its class and of the files that it saves."""
        digest = hashlib.sha256(f"{type(self.tokenizer).__module__}.{type(self.tokenizer).__qualname__}".encode())
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer.save_pretrained(folder)
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file():
                    digest.update(f"\0{path.relative_to(folder)}\0".encode() + path.read_bytes())
        return digest.hexdigest()
