"""Names and revisions -> a model pair; the only `from_pretrained` calls of models."""

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import GatedRepoError, HTTPError
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from diversed.core.lm import LanguageModel
from diversed.models.hf import HFLanguageModel, context_length
from diversed.models.hub import HubError, find_on_hub

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
TINY_FOLDER = Path(__file__).parent / "tiny"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ATTENTIONS = ("eager", "sdpa", "flash_attention_2")
_FAILURES = (OSError, ValueError, ImportError, RuntimeError, HTTPError, SafetensorError)
"""What transformers raises for files that are missing, damaged or of no use."""


class LoadingError(ValueError):
    """A model, tokenizer or pair cannot be used; the message names the key and what would do."""


@dataclass(frozen=True)
class ModelSource:
    """Where one model comes from.

    Attributes:
        name: Hub id, or a name for records if `path` is given.
        revision: Branch, tag or commit on the hub; the pair's description names the commit.
        path: Local folder, or a GGUF file; takes the place of the hub. "builtin:target" and
            "builtin:draft" are the embedded pair. A tokenizer in the folder of a GGUF file goes
            before the file's own.
    """

    name: str
    revision: str = "main"
    path: str | None = None


class LoadedModel(LanguageModel, Protocol):
    """A model for the decoding loop, and itself as transformers has it."""

    model: PreTrainedModel


@dataclass(frozen=True)
class ModelPair:
    """A frozen target and draft that share a tokenizer.

    Attributes:
        target: The model whose quality is wanted.
        draft: The cheap model.
        tokenizer: Of both.
        description: Names, revisions, sizes and fingerprints of the weights.
        eos_ids: What ends a completion.
        context_length: Tokens that both can read.
        reads: What their hidden states are, one of `head.HEAD_READS`.
    """

    target: LoadedModel
    draft: LoadedModel
    tokenizer: PreTrainedTokenizerBase
    description: dict[str, Any]
    eos_ids: tuple[int, ...]
    context_length: int
    reads: str = "hidden"

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


def load_pair(
    target: ModelSource,
    draft: ModelSource,
    dtype: str = "float32",
    attn_implementation: str | None = None,
    device: torch.device | str = "cpu",
) -> ModelPair:
    """Load two models that share a tokenizer, in eval mode and without gradients.

    Args:
        target: Source of the target.
        draft: Source of the draft.
        dtype: "float32", "bfloat16" or "float16".
        attn_implementation: "eager", "sdpa" or "flash_attention_2" (needs the flash-attn package, a
            GPU and a short dtype); None leaves the choice to transformers.
        device: Where the models go before they are examined.

    Returns:
        The pair; its description goes into records and into a head's `config.json`.

    Raises:
        LoadingError: A folder or file is missing, the hub cannot serve a name, a model is no causal
            one, or the tokenizers differ.
    """
    if dtype not in DTYPES:
        raise LoadingError(f"model.dtype={dtype!r}: must be one of {', '.join(DTYPES)}")
    if attn_implementation not in (None, *ATTENTIONS):
        raise LoadingError(
            f"model.attn_implementation={attn_implementation!r}: must be null or one of "
            f"{', '.join(ATTENTIONS)}"
        )
    places = {
        role: find_model(role, source) for role, source in (("target", target), ("draft", draft))
    }
    tokenizers = {role: place.load_tokenizer() for role, place in places.items()}
    tokenizer = tokenizers["target"]
    check_same_tokenizer(tokenizer, tokenizers["draft"], target.name, draft.name)
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    models = {
        role: place.load_model(DTYPES[dtype], attn_implementation) for role, place in places.items()
    }
    for model in models.values():
        model.eval().requires_grad_(False).to(device)
    return make_pair(
        *(models["target"], models["draft"], tokenizer, vocab_size),
        target_source=replace(target, revision=places["target"].commit or target.revision),
        draft_source=replace(draft, revision=places["draft"].commit or draft.revision),
    )


def make_pair(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    vocab_size: int,
    target_source: ModelSource,
    draft_source: ModelSource,
) -> ModelPair:
    """Return loaded models as a pair; see `load_pair`."""
    models = {"target": (target, target_source), "draft": (draft, draft_source)}
    description = {role: _describe(*part) for role, part in models.items()}
    return ModelPair(
        target=HFLanguageModel(target, vocab_size),
        draft=HFLanguageModel(draft, vocab_size),
        tokenizer=tokenizer,
        description=description,
        eos_ids=_eos_ids(target, tokenizer),
        context_length=min(context_length(model.config) for model in (target, draft)),
    )


def _describe(model: PreTrainedModel, source: ModelSource) -> dict[str, Any]:
    """Return what records and heads say about a model; a local one has no known revision."""
    return {
        "name": source.name,
        "revision": source.revision if source.path is None else None,
        "hidden_size": model.config.get_text_config().hidden_size,
        "num_parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attn_implementation": model.config._attn_implementation,
        "fingerprint": weights_fingerprint(model),
    }


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Return the sum of all weights, read as 64-bit integers: further training changes it.

    It depends on the weights' dtype, but on no device, name or order.
    """
    total = 0
    for weight in model.parameters():
        numbers = weight.detach().reshape(-1).view(torch.uint8)
        if numbers.storage_offset() % 8:
            numbers = numbers.clone()
        end = numbers.numel() // 8 * 8
        total += int(numbers[:end].view(torch.int64).sum()) + int(numbers[end:].sum())
    return f"{total % 2**64:016x}"


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


@dataclass(frozen=True)
class ModelPlace:
    """The files of one model, and how to load them; LoadingError where that fails.

    Attributes:
        key: The setting that names them, with its value.
        where: Hub id or folder.
        options: For every `from_pretrained` on them.
        tokenizer_options: The same for the tokenizer.
        commit: The commit on the hub; None for a local place.
        hint: What may help if they cannot be loaded.
    """

    key: str
    where: str
    options: dict[str, Any]
    tokenizer_options: dict[str, Any]
    commit: str | None = None
    hint: str = ""

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the tokenizer."""
        return self._load(AutoTokenizer, **self.tokenizer_options)

    def load_config(self) -> PreTrainedConfig:
        """Return the config of a causal model."""
        config: PreTrainedConfig = self._load(AutoConfig, **self.options)
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise LoadingError(f"{self.key}: a model of type {config.model_type} is no causal one")
        return config

    def load_model(self, dtype: torch.dtype, attn_implementation: str | None) -> PreTrainedModel:
        """Return the model, on the CPU."""
        options = {"dtype": dtype, "config": self.load_config(), **self.options}
        if attn_implementation is not None:
            options["attn_implementation"] = attn_implementation
        if "gguf_file" in options:
            options["quantization_config"] = GgufConfig(dequantize=True)
        return self._load(AutoModelForCausalLM, **options)

    def _load(self, loader: Any, **options: Any) -> Any:
        """Call `from_pretrained`, turning each failure into one clear line."""
        try:
            return loader.from_pretrained(self.where, trust_remote_code=False, **options)
        except torch.OutOfMemoryError:
            raise
        except _FAILURES as error:
            lines = str(error).strip().splitlines()
            reason = lines[0] if lines else type(error).__name__
            if isinstance(error.__cause__, GatedRepoError):
                reason = f"the repository is gated: ask for access at {ENDPOINT}/{self.where}"
            raise LoadingError(f"{self.key}: cannot be loaded ({reason}){self.hint}") from error


def find_model(role: str, source: ModelSource) -> ModelPlace:
    """Return where a model's files are, asking the hub at most once.

    Args:
        role: "target" or "draft", for messages.
        source: The model.

    Raises:
        LoadingError: They are nowhere.
    """
    if source.path is not None:
        return _find_locally(f"model.{role}.path={source.path}", source.path)
    key = f"model.{role}.name={source.name}"
    hint = (
        "; log in with `hf auth login` for gated models, or set "
        f"model.{role}.path to a local folder or GGUF file"
    )
    try:
        copy = find_on_hub(source.name, source.revision)
    except HubError as error:
        raise LoadingError(f"{key}: cannot be loaded from the hub ({error}){hint}") from error
    # By branch, not by commit: else the cache would not know which commit the branch was.
    options = {"revision": source.revision, "local_files_only": copy.is_cached_only}
    return ModelPlace(key, source.name, options, options, copy.commit, hint)


def _find_locally(key: str, path: str) -> ModelPlace:
    """Return a local folder or GGUF file as a place."""
    place = Path(path).expanduser()
    if path.startswith("builtin:"):
        place = TINY_FOLDER / path.removeprefix("builtin:")
    options: dict[str, Any] = {"local_files_only": True}
    if place.is_file():
        if place.suffix != ".gguf":
            raise LoadingError(f"{key}: give a folder that save_pretrained wrote, or a .gguf file")
        missing = [name for name in ("accelerate", "gguf") if find_spec(name) is None]
        if missing:
            raise LoadingError(
                f"{key}: reading a GGUF file needs {' and '.join(missing)}; install what is needed "
                "with pip install 'diversed[gguf]'"
            )
        with_file = {**options, "gguf_file": place.name}
        folder = place.parent
        has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
        return ModelPlace(key, str(folder), with_file, options if has_tokenizer else with_file)
    if not (place / "config.json").is_file():
        kind = "file" if place.suffix == ".gguf" else "folder"
        state = f"the {kind} {'has no config.json' if place.is_dir() else 'does not exist'}"
        raise LoadingError(f"{key}: {state}; give one that save_pretrained wrote, or a .gguf file")
    return ModelPlace(key, str(place), options, options)


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return every id that ends a text: the generation config's, else the tokenizer's."""
    configured = model.generation_config.eos_token_id if model.generation_config else None
    ids = tokenizer.eos_token_id if configured is None else configured
    return tuple(ids) if isinstance(ids, list) else () if ids is None else (int(ids),)


def load_tiny_pair() -> ModelPair:
    """Return the embedded pair, in fp32 on the CPU."""
    return load_pair(
        ModelSource(name="diversed/tiny-target", path="builtin:target"),
        ModelSource(name="diversed/tiny-draft", path="builtin:draft"),
    )
