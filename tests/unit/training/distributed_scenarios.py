"""What the tests of several processes let one process do, and a second one, and two together.

As a script it is one of two processes: RANK PORT FOLDER; it leaves what came out in the folder.
"""

import sys
from functools import partial
from pathlib import Path

import torch
from lightning import Callback
from small_run import LetterTask, SmallRun

from diversed.app.processes import Seat, SeatEnvironment
from diversed.core.loop import DecodeSettings
from diversed.core.verifiers import StaticVerifier
from diversed.evaluation.runner import evaluate_task, joined_parts
from diversed.generation import SpeculativeDecoder
from diversed.models.loading import load_tiny_pair
from diversed.training.distributed import (
    HeadStrategy,
    from_first,
    gather_on_first,
    num_processes,
    process_rank,
)
from diversed.training.rollout import ScoringError

ADVANTAGES = ("rloo", "running_mean", "reinforce_pp", "group")
RESULTS_FILE = "rank{rank}.pt"

sgd = partial(torch.optim.SGD, lr=0.05)


class UnreliableTask(LetterTask):
    """Its scorer fails on some examples."""

    def __init__(self, *failing):
        super().__init__(num_train=4, num_validation=3, num_test=1)
        self._failing = failing

    def score(self, text, example):
        if any(part in example["id"] for part in self._failing):
            raise RuntimeError("no sandbox")
        return super().score(text, example)


class GradientHistory(Callback):
    """Copies the gradient, as it is clipped, before every update."""

    def __init__(self):
        self.gradients = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        parts = [parameter.grad.flatten() for parameter in pl_module.head.parameters()]
        self.gradients.append(torch.cat(parts).clone())


class StopAtFirst(Callback):
    """Asks for a stop, on the last process alone."""

    def __init__(self, keeper=None):
        self.keeper = keeper

    def on_train_batch_start(self, *_):
        if process_rank() == num_processes() - 1:
            self.keeper.request_stop()


def training(pair, folder, processes, **options):
    """Return what a small run came to; with an odd number of prompts the parts differ."""
    history = GradientHistory()
    options = {"prompts_per_step": 3, "num_rollouts": 2, "validate_every": 1} | options
    run = SmallRun(
        pair, folder, callbacks=[history], optimizer=sgd, processes=processes(), **options
    )
    start = {name: value.clone() for name, value in run.head.state_dict().items()}
    pair.target.num_steps = 0
    try:
        run.fit()
        error = None
    except ScoringError as caught:
        error = str(caught)
    return {
        "gradients": history.gradients,
        "start": start,
        "head": run.head.state_dict(),
        "baseline": (run.module.baseline.total, run.module.baseline.count),
        "history": run.keeper.history,
        "best_step": run.keeper.best_step,
        "logged": run.logger.logged,
        "has_checkpoint": run.checkpoint.is_file(),
        "rollouts": run.module.rollout_step,
        "num_steps": pair.target.num_steps,
        "error": error,
    }


def stopped(pair, folder, processes):
    stop = StopAtFirst()
    run = SmallRun(pair, folder, callbacks=[stop], processes=processes(), num_rollouts=4)
    stop.keeper = run.keeper
    run.fit()
    return run.module.rollout_step


def evaluation(pair):
    """Return rows and trace of an evaluation, one of whose prompts cannot be decoded."""
    task = LetterTask(num_train=2, num_validation=2, num_test=5)
    examples = list(task.examples("test"))
    examples[2] = examples[2] | {"question": examples[2]["question"] * 40}
    settings = DecodeSettings(max_new_tokens=12, draft_length=3, seed=1)
    decoder = SpeculativeDecoder(pair, StaticVerifier(0.5), settings)
    part = evaluate_task(
        decoder,
        task,
        examples,
        samples_per_prompt=2,
        batch_size=3,
        part=process_rank(),
        num_parts=num_processes(),
    )
    parts = gather_on_first(part)
    if not parts:
        return None
    whole = joined_parts(parts, [example["id"] for example in examples])
    return {
        "rows": whole.rows,
        "trace": whole.trace.to_dict("records"),
        "sizes": [len(part.rows) for part in parts],
    }


def scenarios(pair, folder, processes):
    """Return everything that one process, or two together, come to."""
    step = pair.target.step

    def counted(input_ids):
        pair.target.num_steps += 1
        return step(input_ids)

    pair.target.step = counted
    run = partial(training, pair, processes=processes)
    results = {advantage: run(folder / advantage, advantage=advantage) for advantage in ADVANTAGES}
    one_fails = UnreliableTask("train/0/1")
    results["unscored"] = run(
        folder / "unscored", task=one_fails, prompts_per_step=2, validate_every=2
    )
    results["nothing"] = run(folder / "nothing", task=UnreliableTask("train"))
    results["long"] = run(folder / "long", max_new_tokens=90, num_rollouts=1)
    results["stopped"] = stopped(pair, folder / "stopped", processes)
    results["evaluation"] = evaluation(pair)
    results["from_first"] = from_first(process_rank())
    return results


def main(rank, port, folder):
    environment = SeatEnvironment(Seat(rank=rank, port=port))

    def processes():
        return {"devices": 2, "strategy": HeadStrategy(), "plugins": [environment]}

    pair = load_tiny_pair()
    own_folder = folder / f"rank{rank}"
    own_folder.mkdir()
    results = scenarios(pair, own_folder, processes)
    torch.save(results, folder / RESULTS_FILE.format(rank=rank))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
