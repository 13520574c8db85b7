"""The hub, asked once and quickly: which commit is meant, and can it be had?

A download that cannot reach the hub tries again for most of a minute, with warnings, for every
file. One question first tells in a moment; what the cache holds is then read without the hub.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 10.0
"""How long the hub may take to answer the one question."""


class HubError(ValueError):
    """Neither hub nor cache can serve a repository; the message is the reason alone."""


@dataclass(frozen=True)
class HubCopy:
    """A repository at one commit.

    Attributes:
        commit: The commit that the asked revision is.
        is_cached_only: Whether the hub cannot serve it, so that the cache must.
    """

    commit: str
    is_cached_only: bool


def find_on_hub(name: str, revision: str) -> HubCopy:
    """Return which commit of a model repository to load, and where from.

    Args:
        name: Hub id, owner and name.
        revision: Branch, tag or commit.

    Raises:
        HubError: The hub cannot serve it, and the cache does not hold its `config.json`.
    """
    try:
        info = HfApi().model_info(name, revision=revision, timeout=ANSWER_TIMEOUT_S)
        if info.sha is not None:
            return HubCopy(info.sha, is_cached_only=False)
        reason = "the hub names no commit"
    except (HTTPError, OSError, ValueError) as error:
        reason = _reason(error, revision)
        cached = None
        if not isinstance(error, ValueError):  # a name that no cache can hold
            cached = try_to_load_from_cache(name, "config.json", revision=revision)
        if isinstance(cached, str):
            commit = Path(cached).parent.name
            if not isinstance(error, OfflineModeIsEnabled):
                logger.warning("%s: %s; using the cached commit %s", name, reason, commit)
            return HubCopy(commit, is_cached_only=True)
        raise HubError(reason) from error
    raise HubError(reason)


def _reason(error: Exception, revision: str) -> str:
    """Return what went wrong, as a part of one line."""
    if isinstance(error, RepositoryNotFoundError):
        return "the hub has no such repository, or it is private"
    if isinstance(error, RevisionNotFoundError):
        return f"the repository has no revision {revision}"
    if isinstance(error, OfflineModeIsEnabled):
        return "offline mode is on, and it is not in the cache"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    is_unheard = isinstance(error, HTTPError) and not isinstance(error, HfHubHTTPError)
    return f"the hub cannot be reached: {reason}" if is_unheard else reason
