"""What went wrong between here and the hub, in one line with its remedy."""

from __future__ import annotations

import errno

from loopscope._errors import LoopscopeError

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
