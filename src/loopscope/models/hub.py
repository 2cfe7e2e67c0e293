"""Files of a model repository on the Hugging Face hub, through its cache, at one commit.

`huggingface_hub` does the transfer, so `HF_HOME`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean what they mean everywhere
else. Configuration and index come first, then the weights they name: a model that loopscope cannot run is refused
before gigabytes travel, and nothing but JSON and safetensors is fetched to run it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from loopscope.errors import LoopscopeError, shown
from loopscope.models.checkpoint import CONFIG, INDEX, PICKLES, TOKENIZER, WEIGHTS, index_shards, save_as_safetensors

TOKENIZER_FILES = (
    *(CONFIG, TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
    *("tokenizer.model", "spiece.model", "*.tiktoken", "vocab.json", "merges.txt", "tokenizer/*"),
)
# File systems take names of 255 bytes, and the cache makes one of the revision.
_REVISION = re.compile(r"(?!.*\.\.)\w[\w./+-]{0,199}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubRepository:
    """One commit of one repository.

    Attributes:
        repo_id: "organisation/name".
        revision: the branch, tag or commit that was asked for, and the full commit hash once something was fetched.
        offline: whether only the cache may answer.
    """

    def __init__(self, repo_id: str, revision: str | None = None, *, offline: bool | None = None) -> None:
        from huggingface_hub import constants

        self.repo_id, self.revision = repo_id, revision or "main"
        if not _REVISION.fullmatch(self.revision):
            raise LoopscopeError(f"{shown(self.revision)} is not a revision: give a branch, a tag or a commit hash")
        self.offline = bool(constants.HF_HUB_OFFLINE) if offline is None else offline

    def fetch_description(self) -> Path:
        """The folder with config.json and, for shards, their index; no weights travel."""
        return self._fetch([CONFIG, INDEX], needed=[CONFIG])

    def fetch_weights(self) -> Path:
        """The folder with the whole checkpoint."""
        index = self.fetch_description() / INDEX
        names = sorted(set(index_shards(index).values())) if index.is_file() else [WEIGHTS]
        return self._fetch(names, needed=names)

    def fetch_tokenizer(self) -> Path:
        """The folder with the tokenizer's files."""
        return self._fetch(TOKENIZER_FILES)

    def _fetch(self, patterns: Sequence[str], needed: Sequence[str] = ()) -> Path:
        """The folder of the commit, with the files of some patterns as far as the repository has them."""
        from huggingface_hub import snapshot_download, try_to_load_from_cache

        if needed and _COMMIT.fullmatch(self.revision):
            cached = [try_to_load_from_cache(self.repo_id, name, revision=self.revision) for name in needed]
            if all(isinstance(path, str) for path in cached):
                return Path(str(cached[0])).parent
        try:
            folder = Path(
                snapshot_download(
                    self.repo_id, revision=self.revision, allow_patterns=list(patterns), local_files_only=self.offline
                )
            )
            lacking = next((name for name in needed if not (folder / name).is_file()), None)
            if lacking is not None:
                raise self._lacks(lacking, folder.name)
        except LoopscopeError:
            raise
        except Exception as error:
            raise self._explained(error) from error
        self.revision = folder.name
        return folder

    def _lacks(self, name: str, commit: str) -> LoopscopeError:
        from huggingface_hub import HfApi

        if self.offline:
            return self._not_cached(name)
        there = HfApi().list_repo_files(self.repo_id, revision=commit)
        pickles = [other for other in there if other.endswith(PICKLES)]
        why = ""
        if pickles and name == WEIGHTS:
            why = f" but only pickled weights ({pickles[0]}), which are never read here: download it to a folder; "
            why += save_as_safetensors(pickles[0])
        return LoopscopeError(f"{self.repo_id} at {commit[:8]} has no {name}{why}")

    def _not_cached(self, name: str) -> LoopscopeError:
        from huggingface_hub import constants

        return LoopscopeError(
            f"{name} of {self.repo_id} ({self.revision}) is not in the cache at {constants.HF_HUB_CACHE} and the hub is"
            " out of reach or switched off: allow the network once (unset HF_HUB_OFFLINE), or give a local folder"
        )

    def _explained(self, error: Exception) -> LoopscopeError:
        """The user's line for whatever the hub's library raises."""
        from huggingface_hub import constants, errors

        if self.offline and isinstance(error, errors.LocalEntryNotFoundError):
            return self._not_cached("the model")
        repo_id, place = self.repo_id, constants.ENDPOINT
        remedies: dict[type[Exception], str] = {
            errors.GatedRepoError: f"it is gated: ask for access at {place}/{repo_id}, then set HF_TOKEN",
            errors.RevisionNotFoundError: f"no revision {self.revision!r}: give a branch, a tag or a full commit hash",
            errors.RepositoryNotFoundError: "no such model that you may read: check the name, or set HF_TOKEN if it is "
            "private",
            errors.HFValidationError: "not a hub name: give ORGANISATION/NAME or a local folder",
        }
        for kind, remedy in remedies.items():
            if isinstance(error, kind):
                return LoopscopeError(f"{shown(repo_id)} on the hub: {remedy}")
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        return LoopscopeError(
            f"{repo_id} cannot be fetched from {place} to {constants.HF_HUB_CACHE} ({reason}): check network, disk and "
            "HF_TOKEN and repeat the command, or give a local folder"
        )
