"""Files of a model repository on the Hugging Face hub, by name and commit, through its cache.

`huggingface_hub` does the transfer, so `HF_HOME`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean what they mean everywhere
else. Files are asked for one by one (configuration and index first, then the weights they name): a model that
loopscope cannot run is refused before gigabytes travel, and nothing but JSON and safetensors is fetched to run it.
What the cache holds at a pinned commit is used without asking anybody. `explained` turns what may go wrong between
here and the hub into one line with its remedy.
"""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

from loopscope.errors import LoopscopeError, shown
from loopscope.models.checkpoint.config import CONFIG, TOKENIZER
from loopscope.models.checkpoint.safetensors import INDEX, WEIGHTS, index_shards, save_as_safetensors

# requests in huggingface_hub 0.x, httpx in 1.x, httpx2 in 2.x: each means the wire, and none is a dependency of ours.
_TRANSPORTS = {"requests", "urllib3", "httpx", "httpx2", "httpcore", "httpcore2"}


def explained(error: Exception, repo_id: str, revision: str) -> LoopscopeError:
    """The user's line for a failed request; an error of unknown kind is a bug and is raised as it is."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return LoopscopeError(
            f"{repo_id} is gated: ask for access at {constants.ENDPOINT}/{repo_id}, then set HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return LoopscopeError(f"{repo_id} has no revision {revision!r}: give a branch, a tag or a commit hash")
    if isinstance(error, errors.RepositoryNotFoundError):
        return LoopscopeError(
            f"the hub has no model {repo_id!r} that you may read: check the name, or set HF_TOKEN if it is private"
        )
    if isinstance(error, errors.HFValidationError):
        return LoopscopeError(f"{repo_id!r} is not a hub name: give ORGANISATION/NAME or a local folder")
    if is_full_disk(error):
        return LoopscopeError(
            f"the disk of {constants.HF_HUB_CACHE} is full while fetching {repo_id}: "
            f"make room or point HF_HOME at another disk, then repeat the command"
        )
    if isinstance(error, errors.HfHubHTTPError):
        status = getattr(error.response, "status_code", "an error")
        return LoopscopeError(f"the hub answered {status} for {repo_id}: try again later, or check HF_TOKEN")
    if is_network(error):
        return LoopscopeError(
            f"{constants.ENDPOINT} cannot be reached for {repo_id}: check the network, or give a local folder "
            f"or a model that is already in the cache"
        )
    raise error


def is_full_disk(error: Exception) -> bool:
    """Whether a write failed for want of space (the transfer library may only say so in words)."""
    return getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)


def is_network(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that nobody answered; an answer with an error status is not."""
    from huggingface_hub import errors

    while error is not None:
        if isinstance(error, errors.HfHubHTTPError):
            return False
        if isinstance(error, errors.LocalEntryNotFoundError | ConnectionError | TimeoutError):
            return True
        if any(kind.__module__.partition(".")[0] in _TRANSPORTS for kind in type(error).__mro__):
            return True
        error = error.__cause__
    return False


TOKENIZER_EXTRAS = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")

# File systems take names of 255 bytes, and the cache makes one of the repository and one of the revision.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"\w[\w./+-]{0,199}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_ABBREVIATED = re.compile(r"[0-9a-f]{7,39}")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


class HubRepository:
    """One commit of one repository.

    Attributes:
        repo_id: "organisation/name".
        asked: the branch, tag or commit that was asked for.
        commit: the full commit hash that every file comes from.
        offline: whether only the cache may answer.
    """

    def __init__(self, repo_id: str, revision: str | None = None, *, offline: bool | None = None) -> None:
        """Find the commit: a full hash is taken as it is; a branch or tag is looked up, in the cache if need be."""
        from huggingface_hub import constants

        self.repo_id = repo_id
        self.asked = revision or "main"
        if not _REPOSITORY.fullmatch(repo_id) or ".." in repo_id:
            raise LoopscopeError(f"{shown(repo_id)} is not a hub name: give ORGANISATION/NAME or a local folder")
        if not _REVISION.fullmatch(self.asked) or ".." in self.asked:
            raise LoopscopeError(f"{shown(self.asked)} is not a revision: give a branch, a tag or a commit hash")
        self.offline = bool(constants.HF_HUB_OFFLINE) if offline is None else offline
        self._folder = Path(constants.HF_HUB_CACHE).expanduser() / ("models--" + repo_id.replace("/", "--"))
        self._sizes: dict[str, int | None] | None = None
        self.commit = self.asked if _COMMIT.fullmatch(self.asked) else self._find_commit()

    def fetch_description(self) -> Path:
        """The folder with config.json and, for shards, their index; no weights travel."""
        folder = self._require(CONFIG).parent
        if self._cached(WEIGHTS) is None:
            self._get(INDEX)
        return folder

    def fetch_weights(self) -> Path:
        """The folder with the whole checkpoint."""
        folder = self.fetch_description()
        index = folder / INDEX
        self._fetch_all(sorted(set(index_shards(index).values())) if index.is_file() else [WEIGHTS])
        return folder

    def _fetch_all(self, names: list[str]) -> None:
        missing = [name for name in names if self._cached(name) is None]
        if missing and not self.offline:
            self._require_space(missing)
        for name in missing:
            self._require(name)

    def fetch_tokenizer(self, *, optional: bool = False) -> Path | None:
        """The folder with tokenizer.json and what describes its special tokens; None where `optional` has none."""
        found = self._get(TOKENIZER) if optional else self._require(TOKENIZER)
        if found is None:
            return None
        folder = found.parent
        for name in (CONFIG, *TOKENIZER_EXTRAS):
            self._get(name)
        return folder

    def _cached(self, filename: str) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.repo_id, filename, revision=self.commit)
        return Path(path) if isinstance(path, str) else None

    def _get(self, filename: str) -> Path | None:
        """A file's path in the cache, fetched if necessary; None where the repository has no such file."""
        from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

        cached = try_to_load_from_cache(self.repo_id, filename, revision=self.commit)
        if isinstance(cached, str):
            return Path(cached)
        if cached is not None or self.offline:  # known not to exist, or nobody to ask
            return None
        try:
            self._listing()  # one request that fails at once, where a download would try again and again
            return Path(hf_hub_download(self.repo_id, filename, revision=self.commit))
        except Exception as error:
            cause = error.__cause__ if isinstance(error, LoopscopeError) else error
            if is_network(cause) and self._cached(CONFIG):
                # Compute nodes often have the cache and no network: go on with what is there.
                self.offline = True
                return None
            if isinstance(error, LoopscopeError):
                raise
            if isinstance(error, errors.EntryNotFoundError) and not is_network(error):
                return None
            raise explained(error, self.repo_id, self.asked) from None

    def _require(self, filename: str) -> Path:
        path = self._get(filename)
        if path is not None:
            return path
        if self.offline:
            raise self._not_cached(filename)
        pickles = [name for name in self._listing() if name.endswith(_PICKLES)]
        why = ""
        if pickles:
            why = f" but only pickled weights ({pickles[0]}), which are never read here: download it to a folder; "
            why += save_as_safetensors(pickles[0])
        raise LoopscopeError(f"{self.repo_id} at {self.commit[:8]} has no {filename}{why}")

    def _require_space(self, filenames: list[str]) -> None:
        """Refuse before a download that cannot fit on the disk of the cache."""
        needed = sum(self._listing().get(name) or 0 for name in filenames)
        place = next(folder for folder in (self._folder, *self._folder.parents) if folder.exists())
        free = shutil.disk_usage(place).free
        if needed > free:
            raise LoopscopeError(
                f"{self.repo_id} needs {needed / 1e9:.1f} GB and {place} has {free / 1e9:.1f} GB free: "
                f"make room or point HF_HOME at another disk"
            )

    def _listing(self) -> dict[str, int | None]:
        if self._sizes is None:
            self._look_up(self.commit)
        assert self._sizes is not None
        return self._sizes

    def _find_commit(self) -> str:
        known = self._cached_commit()
        if self.offline:
            if known is None:
                raise self._not_cached(None)
            return known
        try:
            commit = self._look_up(self.asked)
        except LoopscopeError as error:
            if known is not None and is_network(error.__cause__):
                self.offline = True
                return known
            commit = self._unabbreviated(error)
        self._remember(commit)
        return commit

    def _look_up(self, revision: str) -> str:
        from huggingface_hub import HfApi

        try:
            info = HfApi().model_info(self.repo_id, revision=revision, files_metadata=True)
        except Exception as error:
            raise explained(error, self.repo_id, self.asked) from error
        if not isinstance(info.sha, str):
            raise LoopscopeError(f"the hub named no commit for {self.repo_id}@{revision}: give a full commit hash")
        self._sizes = {sibling.rfilename: sibling.size for sibling in info.siblings or []}
        return info.sha

    def _unabbreviated(self, error: LoopscopeError) -> str:
        """The hub takes full hashes only and people copy short ones; any other error stays what it is."""
        from huggingface_hub import HfApi, errors

        if not (_ABBREVIATED.fullmatch(self.asked) and isinstance(error.__cause__, errors.RevisionNotFoundError)):
            raise error
        commits = {commit.commit_id for commit in HfApi().list_repo_commits(self.repo_id)}
        matches = [commit for commit in commits if commit.startswith(self.asked)]
        if len(matches) != 1:
            raise error
        return self._look_up(matches[0])

    def _cached_commit(self) -> str | None:
        reference = self._folder / "refs" / self.asked
        if reference.is_file():
            return reference.read_text(encoding="utf-8").strip()
        if _ABBREVIATED.fullmatch(self.asked):
            matches = [path.name for path in self._folder.glob("snapshots/*") if path.name.startswith(self.asked)]
            return matches[0] if len(matches) == 1 else None
        return None

    def _remember(self, commit: str) -> None:
        """Note what a branch or tag meant, where the cache keeps such notes, so that it works offline next time."""
        reference = self._folder / "refs" / self.asked
        try:
            reference.parent.mkdir(parents=True, exist_ok=True)
            reference.write_text(commit, encoding="utf-8")
        except OSError as error:
            raise explained(error, self.repo_id, self.asked) from None

    def _not_cached(self, filename: str | None) -> LoopscopeError:
        what = f"{filename} of {self.repo_id}" if filename else self.repo_id
        return LoopscopeError(
            f"{what} ({self.asked}) is not in the cache at {self._folder.parent} and the hub is out of reach or "
            f"switched off: allow the network once (unset HF_HUB_OFFLINE), or give a local folder"
        )
