"""Files of a model repository on the Hugging Face hub, through its cache, at one commit.

`huggingface_hub` does the transfer, so `HF_HOME`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean what they mean everywhere
else. Configuration and index come first, then the weights they name: a model that loopscope cannot run is refused
before gigabytes travel, and nothing but JSON and safetensors is fetched to run it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from pathlib import Path

from loopscope.errors import LoopscopeError, shown
from loopscope.models.checkpoint.config import CONFIG, TOKENIZER
from loopscope.models.checkpoint.safetensors import INDEX, PICKLES, WEIGHTS, index_shards, save_as_safetensors

TOKENIZER_FILES = (
    *(CONFIG, TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
    *("tokenizer.model", "spiece.model", "*.tiktoken", "vocab.json", "merges.txt", "tokenizer/*"),
)
# File systems take names of 255 bytes, and the cache makes one of the repository and one of the revision.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"\w[\w./+-]{0,199}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
# requests in huggingface_hub 0.x, httpx in 1.x, httpx2 in 2.x: each means the wire, and none is a dependency of ours.
_TRANSPORTS = {"requests", "urllib3", "httpx", "httpx2", "httpcore", "httpcore2"}


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
        if not _REPOSITORY.fullmatch(repo_id) or ".." in repo_id:
            raise LoopscopeError(f"{shown(repo_id)} is not a hub name: give ORGANISATION/NAME or a local folder")
        if not _REVISION.fullmatch(self.revision) or ".." in self.revision:
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
        except Exception as error:
            raise self._explained(error) from error
        lacking = next((name for name in needed if not (folder / name).is_file()), None)
        if lacking is not None:
            raise self._lacks(lacking, folder.name)
        self.revision = folder.name
        return folder

    def _lacks(self, name: str, commit: str) -> LoopscopeError:
        from huggingface_hub import HfApi

        if self.offline:
            return self._not_cached(name)
        try:
            there = HfApi().list_repo_files(self.repo_id, revision=commit)
        except Exception as error:
            return self._not_cached(name) if is_network(error) else self._explained(error)
        pickles = [other for other in there if other.endswith(PICKLES)]
        why = ""
        if pickles and name == WEIGHTS:
            why = f" but only pickled weights ({pickles[0]}), which are never read here: download it to a folder; "
            why += save_as_safetensors(pickles[0])
        return LoopscopeError(f"{self.repo_id} at {commit[:8]} has no {name}{why}")

    def _not_cached(self, name: str | None) -> LoopscopeError:
        from huggingface_hub import constants

        what = f"{name} of {self.repo_id}" if name else self.repo_id
        return LoopscopeError(
            f"{what} ({self.revision}) is not in the cache at {constants.HF_HUB_CACHE} and the hub is out of reach or "
            f"switched off: allow the network once (unset HF_HUB_OFFLINE), or give a local folder"
        )

    def _explained(self, error: Exception) -> LoopscopeError:
        """The user's line for a failed request; an error of unknown kind is a bug and is raised as it is."""
        from huggingface_hub import constants, errors

        repo_id, end = self.repo_id, constants.ENDPOINT
        if self.offline and isinstance(error, errors.LocalEntryNotFoundError):
            return self._not_cached(None)
        lines = {
            errors.GatedRepoError: f"{repo_id} is gated: ask for access at {end}/{repo_id}, then set HF_TOKEN",
            errors.RevisionNotFoundError: f"{repo_id} has no revision {self.revision!r}: give a branch, a tag or a "
            "full commit hash",
            errors.RepositoryNotFoundError: f"the hub has no model {repo_id!r} that you may read: check the name, or "
            "set HF_TOKEN if it is private",
            errors.HFValidationError: f"{repo_id!r} is not a hub name: give ORGANISATION/NAME or a local folder",
        }
        for kind, line in lines.items():
            if isinstance(error, kind):
                return LoopscopeError(line)
        if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
            return LoopscopeError(
                f"the disk of {constants.HF_HUB_CACHE} is full while fetching {repo_id}: "
                f"make room or point HF_HOME at another disk, then repeat the command"
            )
        answer = next((cause for cause in _causes(error) if isinstance(cause, errors.HfHubHTTPError)), None)
        if answer is not None:
            status = getattr(answer.response, "status_code", "an error")
            return LoopscopeError(f"the hub answered {status} for {repo_id}: try again later, or check HF_TOKEN")
        if is_network(error):
            return LoopscopeError(
                f"{end} cannot be reached for {repo_id}: check the network, or give a local folder "
                f"or a model that is already in the cache"
            )
        raise error


def _causes(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__
    return found


def is_network(error: BaseException) -> bool:
    """Whether an error, or what caused it, is that nobody answered; an answer with an error status is not."""
    from huggingface_hub import errors

    if any(isinstance(cause, errors.HfHubHTTPError) for cause in _causes(error)):
        return False
    unanswered = (errors.LocalEntryNotFoundError, ConnectionError, TimeoutError)
    return any(
        isinstance(cause, unanswered)
        or any(kind.__module__.partition(".")[0] in _TRANSPORTS for kind in type(cause).__mro__)
        for cause in _causes(error)
    )
