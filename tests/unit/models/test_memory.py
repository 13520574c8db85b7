"""The memory formula against what models really hold, and against the tables of docs/scaling.md."""

import re

import pytest
import torch
from composed import ROOT
from paper_models import MODELS, SCALING, config, table
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen2Config

from diversed.models.hf import HFLanguageModel
from diversed.models.loading import load_tiny_pair
from diversed.models.memory import (
    CACHE_ROOM,
    Workload,
    cache_bytes_per_token,
    num_parameters,
    pair_memory,
    training_memory,
)

GIB = 2**30
WORKLOADS = {
    "paper": Workload(8, 512, 128, 5, keeps_head_inputs=True),
    "evaluation": Workload(64, 512, 128, 5),
    "default": Workload(128, 512, 512, 5, keeps_head_inputs=True),
}


@pytest.fixture(scope="module")
def tiny():
    return load_tiny_pair()


PAIRS = table(SCALING, "| target | draft | weights")


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_documents_sizes_have_its_number_of_parameters(name):
    assert num_parameters(config(name)) == int(MODELS[name]["parameters"])


@pytest.mark.parametrize("row", PAIRS, ids=[row["target"] for row in PAIRS])
def test_the_documents_table_is_what_the_formula_gives(row):
    target, draft = (config(row[role]) for role in ("target", "draft"))
    vocab_size = int(MODELS[row["target"]]["V"])
    needed = {
        name: pair_memory(target, draft, torch.bfloat16, vocab_size, workload)
        for name, workload in WORKLOADS.items()
    }
    weights = needed["paper"].target_weights + needed["paper"].draft_weights
    per_token = sum(cache_bytes_per_token(part, torch.bfloat16) for part in (target, draft))
    wanted = {name: f"{memory.total / GIB:.1f}" for name, memory in needed.items()}
    wanted["weights"] = f"{weights / GIB:.1f}"
    wanted["cache of a row of 1024 tokens"] = f"{1024 * per_token / GIB:.2f}"
    assert {name: row[name] for name in wanted} == wanted


def test_the_documents_pairs_are_those_of_the_paper_and_one_of_70b():
    def short(name):
        found = re.search(r"name: [\w.-]+/([\w.-]+)", name)
        return found.group(1)

    pairs = {(row["target"], row["draft"]) for row in PAIRS}
    for name in ("llama", "qwen", "gemma"):
        lines = (ROOT / "conf" / "model" / f"{name}.yaml").read_text().splitlines()
        target, draft = (
            short(next(line for line in lines if line.startswith(f"{role}:")))
            for role in ("target", "draft")
        )
        assert (target, draft) in pairs
    assert len(pairs) == 4


@pytest.mark.parametrize("role", ["target", "draft"])
def test_weights_are_those_of_the_loaded_model(tiny, role):
    models = {"target": tiny.target.model, "draft": tiny.draft.model}
    needed = pair_memory(
        *(models[name].config for name in ("target", "draft")),
        torch.float32,
        tiny.target.vocab_size,
        Workload(num_rows=1, prompt_length=1, max_new_tokens=1, draft_length=1),
    )
    held = sum(weight.numel() * weight.element_size() for weight in models[role].parameters())
    assert getattr(needed, f"{role}_weights") == held > 1e5


@pytest.mark.parametrize("num_rows", [1, 3])
def test_caches_hold_what_the_formula_says(tiny, num_rows):
    model = HFLanguageModel(tiny.target.model, tiny.target.vocab_size)
    ids = torch.randint(5, 40, (num_rows, 101), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.start(ids, torch.ones_like(ids, dtype=torch.bool))
        for _ in range(60):
            model.step(ids[:, :1])
    layers = model._cache.layers
    parts = [part for layer in layers for part in (layer.keys, layer.values)]
    held = sum(part.numel() * part.element_size() for part in parts)
    per_token = cache_bytes_per_token(tiny.target.model.config, torch.float32)
    assert held == num_rows * 160 * per_token
    room = sum(layer._key_storage.numel() for layer in layers) / sum(
        layer.keys.numel() for layer in layers
    )
    assert 1 <= room <= CACHE_ROOM


def test_every_part_counts_and_grows_with_what_it_depends_on():
    target, draft = (config(name) for name in ("Llama-3.1-8B-Instruct", "Llama-3.2-1B-Instruct"))

    def needed(**changes):
        sizes = {"num_rows": 4, "prompt_length": 100, "max_new_tokens": 50, "draft_length": 5}
        workload = Workload(**(sizes | changes))
        return pair_memory(target, draft, torch.bfloat16, 128256, workload)

    base = needed()
    assert base.head_inputs == 0
    assert needed(keeps_head_inputs=True).head_inputs == 16 * 4 * 50 * (4096 + 2048)
    assert needed(num_rows=8).target_cache == 2 * base.target_cache
    assert needed(num_rows=8).distributions == 2 * base.distributions
    assert needed(draft_length=11).distributions == 2 * base.distributions
    assert needed(prompt_length=200).activations == 2 * base.activations
    assert base.total == sum(vars(base).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "kind", [LlamaConfig, Qwen2Config, Gemma3TextConfig], ids=lambda kind: kind.__name__
)
def test_activations_bound_what_layers_keep_for_the_backward_pass(kind, dtype):
    config = kind(
        **{"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3, "head_dim": 16},
        **{"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 300},
    )
    model = AutoModelForCausalLM.from_config(config)
    own = {weights.untyped_storage().data_ptr() for weights in model.parameters()}
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    ids = torch.randint(0, 300, (3, 90), generator=torch.Generator().manual_seed(0))
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16),
    ):
        logits = model(input_ids=ids, use_cache=False).logits.float()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in kept}
    held = sum(part.nbytes() for place, part in storages.items() if place not in own)
    needed = training_memory(model.to("meta"), config, torch.optim.SGD, dtype, 3, 90)
    assert held <= needed.activations <= 2 * held
    assert needed.optimizer == 0  # plain SGD remembers nothing
