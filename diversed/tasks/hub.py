"""Splits of a data set on the Hugging Face hub, or in the cache of the `datasets` library.

No dataset scripts: `datasets` 4 and newer run none.
"""

import logging
import re
import ssl
import urllib.error
import urllib.request

import datasets
from datasets import Dataset, DatasetBuilder
from datasets.exceptions import DatasetsError
from datasets.packaged_modules.cache.cache import Cache

from diversed.tasks.base import TaskDataError

logger = logging.getLogger(__name__)

REACH_TIMEOUT = 10.0
"""Seconds that the hub has to answer at all; `datasets` itself would try again and again."""

_FAILURES = (OSError, ValueError, RuntimeError, DatasetsError)


class HubData:
    """One data set at one revision; nothing is fetched before a split is asked for."""

    def __init__(self, hub_id: str, config_name: str | None, revision: str) -> None:
        """Name what to load.

        Args:
            hub_id: Owner and name.
            config_name: Configuration of the data set; None for the only one.
            revision: Branch, tag or commit.
        """
        self._hub_id = hub_id
        self._config_name = config_name
        self._revision = revision
        self._builder: DatasetBuilder | None = None

    @property
    def commit(self) -> str | None:
        """The commit that the rows are of; None before they were loaded, or where unknown."""
        found = None if self._builder is None else self._builder.hash
        return found if found and re.fullmatch(r"[0-9a-f]{40}", found) else None

    def read(self, split: str) -> Dataset:
        """Return a split, by the hub's own name of it.

        Raises:
            TaskDataError: Neither hub nor cache can serve it; the message says how to give a path.
        """
        if self._builder is None:
            self._builder = self._load()
        try:
            rows = self._builder.as_dataset(split=split)
        except _FAILURES as error:
            raise self._error(error) from error
        if not isinstance(rows, Dataset):
            raise TypeError(f"{self._hub_id}: the split {split} is a {type(rows).__name__}")
        return rows

    def _load(self) -> DatasetBuilder:
        try:
            if datasets.config.HF_HUB_OFFLINE or not _is_reachable(datasets.config.HF_ENDPOINT):
                builder = Cache(
                    dataset_name=self._hub_id.split("/")[-1],
                    repo_id=self._hub_id,
                    config_name=self._config_name,
                    version="auto",
                    hash="auto",
                )
            else:
                # The scheme keeps a local folder of that name out of it.
                builder = datasets.load_dataset_builder(
                    f"hf://datasets/{self._hub_id}", self._config_name, revision=self._revision
                )
            builder.download_and_prepare()
        except _FAILURES as error:
            raise self._error(error) from error
        self._check_commit(builder)
        return builder

    def _check_commit(self, builder: DatasetBuilder) -> None:
        """Refuse another commit than the one asked for: a cache may hold any."""
        is_commit = re.fullmatch(r"[0-9a-f]{7,40}", self._revision)
        if is_commit and not str(builder.hash).startswith(self._revision):
            raise TaskDataError(
                f"data.revision={self._revision}: the hub cannot be reached, and the cache holds "
                f"{self._hub_id} at {builder.hash}; go online, or give data.path=..."
            )
        if isinstance(builder, Cache) and not is_commit:
            logger.warning(
                "%s: the hub cannot be reached; using the cached commit %s, whatever "
                "data.revision=%s is by now",
                self._hub_id,
                builder.hash,
                self._revision,
            )

    def _error(self, error: Exception) -> TaskDataError:
        lines = str(error).strip().splitlines()
        name = self._hub_id if self._config_name is None else f"{self._hub_id} {self._config_name}"
        return TaskDataError(
            f"{name} at revision {self._revision} cannot be loaded from the hub or its cache "
            f"({lines[0] if lines else type(error).__name__}); give data.path=... (a folder with "
            "train, validation and test files, or one file)"
        )


def _is_reachable(endpoint: str) -> bool:
    """Return whether a server answers at all; one that answers with an error is there."""
    request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - the hub's own address
    try:
        with urllib.request.urlopen(request, timeout=REACH_TIMEOUT):  # noqa: S310 - see above
            return True
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        # `datasets` may know certificates that the standard library does not.
        return isinstance(error.reason, ssl.SSLError)
    except OSError:
        return False
