"""What the token ids of a run read as: `vocabulary.json`, written beside a lens so that a run can be read alone.

The file names the tokenizer by its hash. It counts only where that is the manifest's; nothing else depends on it.
"""

import json
from pathlib import Path

from loopscope.errors import LoopscopeError
from loopscope.store.atomic import write_atomically
from loopscope.store.hashing import read_bounded
from loopscope.store.manifest import Manifest

VOCABULARY = "vocabulary.json"
"""Its name in a run directory."""


def write_vocabulary(folder: Path, manifest: Manifest, texts: list[str]) -> None:
    """Write the text of every token id, from 0 on."""
    content = {"tokenizer_sha256": manifest.tokenizer_sha256, "texts": texts}
    # Bytes that are no text of their own come as lone surrogates from some tokenizers; JSON escapes hold any.
    write_atomically(folder / VOCABULARY, (json.dumps(content) + "\n").encode())


def read_vocabulary(folder: Path, manifest: Manifest) -> list[str] | None:
    """The text of every token id; None where the run has none, or where it is another tokenizer's.

    Raises:
        LoopscopeError: the file is damaged.
    """
    path = folder / VOCABULARY
    try:
        content = json.loads(read_bounded(path))
        texts, tokenizer = content["texts"], content["tokenizer_sha256"]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoopscopeError(
            f"{path} cannot be read: remove it, and ids stand for texts (measuring again writes it)"
        ) from error
    return list(texts) if tokenizer == manifest.tokenizer_sha256 else None
