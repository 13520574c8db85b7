"""Choose N by the speed model: seconds of the models' calls at a batch size, and an acceptance.

    python benchmarks/draft_length.py --target DIR --draft DIR --dtype bfloat16 --batch-size 8 \
        --acceptance 0.9

Times one draft step and target passes over 1 to N + 1 tokens of every row behind a context, in
turns, and takes the median; nothing but calls is timed (overhead 0), and tokens pass independently.
Prints Markdown: for every N the seconds of a pass and the predicted speed-up over plain decoding.
"""

import argparse
import statistics
from functools import partial

import torch
from decode import load, show

from diversed.core.lm import LanguageModel
from diversed.evaluation.timing import timed
from diversed.models.loading import ModelPair
from diversed.theory.accepted_length import iid_survival
from diversed.theory.speed import StepCosts, best_draft_length, speedups_by_length


def call_seconds(
    pair: ModelPair, batch_size: int, context: int, num_tokens: int, repeats: int
) -> tuple[float, list[float]]:
    """Return the median seconds of a draft step, and of target passes over 1..num_tokens tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(pair.target.vocab_size, (batch_size, context), generator=generator)
    calls = {("draft", 1): pair.draft} | {
        ("target", number): pair.target for number in range(1, num_tokens + 1)
    }
    for model in (pair.draft, pair.target):
        model.start(ids, torch.ones_like(ids, dtype=torch.bool))
    seconds: dict[tuple[str, int], list[float]] = {call: [] for call in calls}
    for _ in range(repeats + 1):
        for call, model in calls.items():
            seconds[call].append(_one_call(model, ids[:, : call[1]], pair.device))
    medians = {call: statistics.median(values[1:]) for call, values in seconds.items()}
    return medians["draft", 1], [medians["target", n] for n in range(1, num_tokens + 1)]


def _one_call(model: LanguageModel, ids: torch.Tensor, device: torch.device) -> float:
    """Return the seconds of a step, which is then taken back."""
    _, seconds = timed(partial(model.step, ids), device)
    rows = torch.arange(len(ids), device=device)
    model.retain(rows, torch.full_like(rows, ids.shape[1]))
    return seconds


@torch.no_grad()
def main() -> None:
    """Read the command line, time the calls, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="folder of the target; default: the embedded pair")
    parser.add_argument("--draft", help="folder of the draft")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--context", type=int, default=200, help="tokens before the call")
    parser.add_argument("--acceptance", type=float, required=True, help="accepted / judged")
    parser.add_argument("--longest", type=int, default=7, help="the largest N")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    try:
        survival = iid_survival(options.acceptance, options.longest)
        pair = load(options.target, options.draft, options.dtype)
    except ValueError as error:
        parser.error(str(error))
    draft, passes = call_seconds(
        pair, options.batch_size, options.context, options.longest + 1, options.repeats
    )
    costs = [
        StepCosts(draft / passes[0], passes[n] / passes[0], 0.0)
        for n in range(1, options.longest + 1)
    ]
    speedups = speedups_by_length(survival, costs, "verifier")
    show(f"batch {options.batch_size}, draft step {draft:.3f} s, target step {passes[0]:.3f} s\n")
    show("| N | pass over N + 1 tokens, s | predicted speed-up |\n| --- | --- | --- |")
    for n, speedup in enumerate(speedups, start=1):
        show(f"| {n} | {passes[n]:.3f} | {speedup:.2f} |")
    show(f"\nbest N: {best_draft_length(survival, costs, 'verifier')}")


if __name__ == "__main__":
    main()
