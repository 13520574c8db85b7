"""Time the adapter's forward calls against a bare loop over the model at the same shapes.

    python benchmarks/adapter.py

Both read the same tokens with a cache, batch 1, interleaved in one process: a 60-token prompt, then
16 calls of n tokens. Prints the median seconds of a call and the ratio with a bootstrap interval
over repetitions.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from diversed.models.hf import HFLanguageModel
from diversed.models.loading import load_tiny_pair
from diversed.theory.bootstrap import bootstrap_ratio

NUM_REPEATS = 40
NUM_CALLS = 16
PROMPT_LENGTH = 60


def bare_seconds(lm: HFLanguageModel, prompt: Tensor, chunks: list[Tensor]) -> float:
    """Return the seconds of the calls on the transformers model itself."""
    cache = DynamicCache()
    lm.model(input_ids=prompt, cache=cache, use_cache=True)
    started = time.perf_counter()
    for chunk in chunks:
        lm.model(input_ids=chunk, cache=cache, use_cache=True)
    return time.perf_counter() - started


def adapter_seconds(lm: HFLanguageModel, prompt: Tensor, chunks: list[Tensor]) -> float:
    """Return the seconds of the same calls through the adapter."""
    lm.start(torch.cat([prompt, prompt[:, :1]], dim=1), torch.ones(1, PROMPT_LENGTH + 1).bool())
    started = time.perf_counter()
    for chunk in chunks:
        lm.step(chunk)
    return time.perf_counter() - started


@torch.no_grad()
def main() -> None:
    """Print one line per model and chunk length."""
    pair = load_tiny_pair()
    for role, lm in (("target", pair.target), ("draft", pair.draft)):
        for num_tokens in (1, 6):
            ids = torch.arange(PROMPT_LENGTH + NUM_CALLS * num_tokens).remainder(150) + 10
            prompt, rest = ids[None, :PROMPT_LENGTH], ids[None, PROMPT_LENGTH:]
            chunks = list(rest.split(num_tokens, dim=1))
            methods: list[Callable[..., float]] = [adapter_seconds, bare_seconds]
            for method in methods:
                method(lm, prompt, chunks)
            times = np.array(
                [[method(lm, prompt, chunks) for method in methods] for _ in range(NUM_REPEATS)]
            )
            times = times[np.argsort(times.sum(1))[: NUM_REPEATS // 2]]  # the calmer half
            ratio = bootstrap_ratio(times[:, 0], times[:, 1], seed=0)
            per_call = np.median(times, axis=0) / NUM_CALLS * 1000
            print(  # noqa: T201 - a benchmark reports on the terminal
                f"{role}, {num_tokens} tokens: adapter {per_call[0]:.2f} ms, bare "
                f"{per_call[1]:.2f} ms a call, ratio {ratio.estimate:.3f} "
                f"[{ratio.low:.3f}, {ratio.high:.3f}]"
            )


if __name__ == "__main__":
    main()
