"""Names and revisions -> a model pair; the only `from_pretrained` calls of models."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from diversed.models.hf import HFLanguageModel

logger = logging.getLogger(__name__)

TINY_FOLDER = Path(__file__).parent / "tiny"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LoadingError(ValueError):
    """A model, tokenizer or pair cannot be used; the message names the key and what would do."""


@dataclass(frozen=True)
class ModelSource:
    """Where one model comes from.

    Attributes:
        name: Hub id, or a name for records if `path` is given.
        revision: Branch, tag or commit on the hub.
        path: Local folder; takes the place of the hub. "builtin:target" and "builtin:draft" are the
            embedded pair.
    """

    name: str
    revision: str = "main"
    path: str | None = None


@dataclass(frozen=True)
class ModelPair:
    """A frozen target and draft that share a tokenizer."""

    target: HFLanguageModel
    draft: HFLanguageModel
    tokenizer: PreTrainedTokenizerBase
    description: dict[str, Any]
    eos_ids: tuple[int, ...]
    context_length: int

    def to(self, device: torch.device | str) -> "ModelPair":
        """Move both models to a device."""
        self.target.model.to(device)
        self.draft.model.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Where the target is."""
        device: torch.device = self.target.model.device
        return device


def load_pair(target: ModelSource, draft: ModelSource, dtype: str = "float32") -> ModelPair:
    """Load two models that share a tokenizer, in eval mode and without gradients.

    Args:
        target: Source of the target.
        draft: Source of the draft.
        dtype: "float32", "bfloat16" or "float16".

    Returns:
        The pair; its description goes into records and into a head's `config.json`.

    Raises:
        LoadingError: A folder is missing, the hub cannot serve a name, or the tokenizers differ.
    """
    if dtype not in DTYPES:
        raise LoadingError(f"model.dtype={dtype!r}: must be one of {', '.join(DTYPES)}")
    tokenizers = {
        role: _load(AutoTokenizer, role, source)
        for role, source in (("target", target), ("draft", draft))
    }
    tokenizer = tokenizers["target"]
    check_same_tokenizer(tokenizer, tokenizers["draft"], target.name, draft.name)
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    models = {
        role: _load(AutoModelForCausalLM, role, source, dtype=DTYPES[dtype])
        for role, source in (("target", target), ("draft", draft))
    }
    for model in models.values():
        model.eval().requires_grad_(False)
    return make_pair(models["target"], models["draft"], tokenizer, vocab_size, target, draft)


def make_pair(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    vocab_size: int,
    target_source: ModelSource,
    draft_source: ModelSource,
) -> ModelPair:
    """Return loaded models as a pair; see `load_pair`."""
    description = {
        role: {
            "name": source.name,
            "revision": getattr(model.config, "_commit_hash", None) or source.revision,
            "hidden_size": model.config.get_text_config().hidden_size,
            "num_parameters": model.num_parameters(),
        }
        for role, source, model in (
            ("target", target_source, target),
            ("draft", draft_source, draft),
        )
    }
    lengths = [model.config.get_text_config().max_position_embeddings for model in (target, draft)]
    return ModelPair(
        target=HFLanguageModel(target, vocab_size),
        draft=HFLanguageModel(draft, vocab_size),
        tokenizer=tokenizer,
        description=description,
        eos_ids=_eos_ids(target, tokenizer),
        context_length=min(lengths),
    )


def check_same_tokenizer(
    target: PreTrainedTokenizerBase,
    draft: PreTrainedTokenizerBase,
    target_name: str,
    draft_name: str,
) -> None:
    """Raise LoadingError, naming both models, unless both map the same ids to the same strings."""
    target_ids, draft_ids = target.get_vocab(), draft.get_vocab()
    if target_ids == draft_ids:
        return
    differing = sorted(
        token
        for token in target_ids.keys() | draft_ids.keys()
        if target_ids.get(token) != draft_ids.get(token)
    )
    raise LoadingError(
        f"model.draft={draft_name} and model.target={target_name} have different tokenizers "
        f"({len(differing)} tokens differ, {differing[0]!r} for one): speculative decoding needs a "
        "draft of the target's family"
    )


def _load(loader: Any, role: str, source: ModelSource, **options: Any) -> Any:
    """Load from a local folder or the hub, turning each failure into one clear line."""
    options["trust_remote_code"] = False
    if source.path is not None:
        folder = _local_folder(role, source.path)
        return loader.from_pretrained(folder, local_files_only=True, **options)
    try:
        return loader.from_pretrained(source.name, revision=source.revision, **options)
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise LoadingError(
            f"model.{role}.name={source.name}: cannot be loaded from the hub ({first_line}); log "
            f"in with `hf auth login` for gated models, or set model.{role}.path to a local folder"
        ) from error


def _local_folder(role: str, path: str) -> Path:
    if path.startswith("builtin:"):
        folder = TINY_FOLDER / path.removeprefix("builtin:")
    else:
        folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        state = "has no config.json" if folder.is_dir() else "does not exist"
        raise LoadingError(
            f"model.{role}.path={path}: the folder {state}; give one that save_pretrained wrote"
        )
    return folder


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return every id that ends a text: the generation config's, else the tokenizer's."""
    configured = model.generation_config.eos_token_id if model.generation_config else None
    if configured is None:
        configured = tokenizer.eos_token_id
    if configured is None:
        return ()
    return tuple(configured) if isinstance(configured, list) else (int(configured),)


def load_tiny_pair() -> ModelPair:
    """Return the embedded pair, in fp32 on the CPU."""
    return load_pair(
        ModelSource(name="diversed/tiny-target", path="builtin:target"),
        ModelSource(name="diversed/tiny-draft", path="builtin:draft"),
    )
