"""Heads on disk: loading one for the pair it was trained for, and no other."""

import json
import logging
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HTTPError
from safetensors import SafetensorError

from diversed.models.head import EnsembleHead
from diversed.models.hub import HubError, find_on_hub
from diversed.models.loading import LoadingError, ModelPair

logger = logging.getLogger(__name__)

_FAILURES = (OSError, EntryNotFoundError, HTTPError)


def new_head(pair: ModelPair, **options: Any) -> EnsembleHead:
    """Return an untrained head for a pair; options as in `EnsembleHead`."""
    return EnsembleHead(
        draft_size=pair.description["draft"]["hidden_size"],
        target_size=pair.description["target"]["hidden_size"],
        pair=pair.description,
        **options,
    )


def save_head(head: EnsembleHead, folder: Path) -> None:
    """Write a head with `save_pretrained`; OSError where the folder cannot take it."""
    try:
        head.save_pretrained(folder)
    except SafetensorError as error:  # what safetensors makes of a full disk
        raise OSError(str(error)) from error
    path = folder / "config.json"  # has the pair that the head was made for, perhaps another
    config = json.loads(path.read_text()) | {"pair": head.pair}
    path.write_text(json.dumps(config, sort_keys=True, indent=2))


def load_head(checkpoint: str, pair: ModelPair) -> EnsembleHead:
    """Load a head and check that it belongs to the pair.

    Args:
        checkpoint: A folder written by `save_pretrained`, a run folder that holds one as `head/`,
            or a hub id.
        pair: The loaded models.

    Returns:
        The head in eval mode, on the pair's device.

    Raises:
        LoadingError: There is no head, or it was trained for other models. Where it was trained
            with other weights of them, a warning says so.
    """
    folder = Path(checkpoint).expanduser()
    if (folder / "head" / "config.json").is_file():
        folder = folder / "head"
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise LoadingError(
                f"verifier.checkpoint={checkpoint}: the folder has no config.json; give a run "
                "folder of train.py or a folder that save_pretrained wrote"
            )
        options: dict[str, Any] = {}
        source = str(folder)
    else:
        options = _hub_options(checkpoint)
        source = checkpoint
    try:
        head = EnsembleHead.from_pretrained(source, strict=True, **options)
    except (*_FAILURES, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise LoadingError(
            f"verifier.checkpoint={checkpoint}: holds no head ({' '.join(str(error).split())})"
        ) from error
    check_head_pair(head, pair, checkpoint)
    return head.eval().to(pair.device)


def _hub_options(checkpoint: str) -> dict[str, Any]:
    """Return how to load a head from the hub or its cache; LoadingError if it is in neither."""
    try:
        copy = find_on_hub(checkpoint, "main")
        options: dict[str, Any] = {"local_files_only": copy.is_cached_only}
        hf_hub_download(checkpoint, "config.json", **options)  # from_pretrained passes over it
    except (HubError, *_FAILURES) as error:
        raise LoadingError(
            f"verifier.checkpoint={checkpoint}: no such folder, and no such head on the hub "
            f"({_first_line(error)})"
        ) from error
    return options


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def check_head_pair(head: EnsembleHead, pair: ModelPair, checkpoint: str) -> None:
    """Raise LoadingError, naming both pairs, unless the head was trained for this one.

    Names and sizes must agree; a differing revision is part of the message only. Other weights of
    the same models, such as those of a fine-tuned draft, give a warning: the head computes a weight
    for them too, and whether it still serves is what one may want to measure. Weights are compared
    where both sides have a fingerprint of the same dtype.
    """

    def identity(description: dict[str, Any]) -> list[tuple[Any, Any]]:
        return [(role.get("name"), role.get("hidden_size")) for role in _roles(description)]

    def spell(description: dict[str, Any]) -> str:
        return " / ".join(
            f"{role.get('name')}@{role['revision']}"
            if role.get("revision")
            else f"{role.get('name')}"
            for role in _roles(description)
        )

    if identity(head.pair) != identity(pair.description):
        raise LoadingError(
            f"verifier.checkpoint={checkpoint}: this head belongs to the pair {spell(head.pair)}, "
            f"not to {spell(pair.description)}; use it with its own pair or train a new one"
        )
    for trained, loaded in zip(_roles(head.pair), _roles(pair.description), strict=True):
        prints = [role.get("fingerprint") for role in (trained, loaded)]
        if None not in prints and prints[0] != prints[1] and trained["dtype"] == loaded["dtype"]:
            logger.warning(
                "verifier.checkpoint=%s: this head was trained with other weights of %s "
                "(fingerprint %s, those loaded have %s), whose hidden states it has not seen",
                *(checkpoint, loaded["name"], *prints),
            )


def _roles(description: dict[str, Any]) -> list[dict[str, Any]]:
    return [description.get(role, {}) for role in ("target", "draft")]
