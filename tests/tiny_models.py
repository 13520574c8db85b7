"""Tiny transformers models of many families, with weights that make texts depend on contexts.

Plain random weights give nearly uniform laws, under which every draft is accepted. These have a
large spread, and heads of their own: with tied embeddings a random model repeats one token.
"""

import copy
from collections.abc import Callable

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB_SIZE = 40
WINDOW = 4  # of sliding layers: shorter than most prompts
END_ID = 2
SPREAD = 0.25

BASE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": SPREAD,
    "bos_token_id": 1,
    "eos_token_id": END_ID,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
GROUPED = {**BASE, "num_key_value_heads": 2, "head_dim": 8}
SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ABSOLUTE = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "initializer_range": SPREAD,
    "bos_token_id": 1,
    "eos_token_id": END_ID,
    "tie_word_embeddings": False,
}

FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**BASE, num_key_value_heads=2)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**GROUPED)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**GROUPED, **SLIDING)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=WINDOW)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**ABSOLUTE)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**BASE, num_key_value_heads=2)),
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**GROUPED, **EXPERTS)),
}


def build(family: str, seed: int = 0) -> PreTrainedModel:
    """Return a frozen model in eval mode."""
    torch.manual_seed(seed)
    return frozen(FAMILIES[family]())


def longrope_phi3(length_before_extension: int) -> Phi3ForCausalLM:
    """Return a model that turns to other frequencies behind a length."""
    rope = {"rope_type": "longrope", "rope_theta": 10000.0}
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    return Phi3ForCausalLM(
        Phi3Config(
            **BASE,
            num_key_value_heads=2,
            original_max_position_embeddings=length_before_extension,
            rope_parameters=rope | factors,
        )
    )


def frozen(model: PreTrainedModel) -> PreTrainedModel:
    return model.eval().requires_grad_(False)


def perturbed(model: PreTrainedModel, scale: float, seed: int = 5) -> PreTrainedModel:
    """Return a copy with noise on its weights: a draft that agrees now and then."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for weights in model.parameters():
        weights.add_(torch.randn(weights.shape, generator=generator) * scale)
    return model


def random_prompts(lengths, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]
