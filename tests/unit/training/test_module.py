"""Training through Lightning: what moves, what is saved, and that a resumed run is the same run."""

import math
from functools import partial

import pytest
import torch
from lightning import Callback
from small_run import LetterTask, UnpaidTask

from diversed.core.loop import DecodeSettings
from diversed.core.verifiers import LosslessVerifier
from diversed.generation import SpeculativeDecoder, head_verifier
from diversed.models.checkpoint import new_head
from diversed.objective.acceptance import ObjectiveSettings
from diversed.training import module
from diversed.training.callbacks import read_checkpoint_step
from diversed.training.module import DiversedModule, NonFiniteError
from diversed.training.rollout import ScoringError

# Lightning 2.6 uses a class of torch.utils._pytree that torch 2.13 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

TIMINGS = {"train/rollout_seconds", "train/update_seconds", "train/tokens_per_second"}


class StopIn(Callback):
    """Asks for a stop while a rollout is being made, as Ctrl-C does."""

    def __init__(self, rollout):
        self.rollout = rollout
        self.keeper = None

    def on_train_batch_start(self, trainer, pl_module, *_):
        if pl_module.rollout_step == self.rollout - 1:
            self.keeper.request_stop()


class UnreliableTask(LetterTask):
    """Its scorer fails on some examples."""

    def __init__(self, failing):
        super().__init__(num_train=4, num_validation=3, num_test=1)
        self._failing = failing

    def score(self, text, example):
        if self._failing in example["id"]:
            raise RuntimeError("no sandbox")
        return super().score(text, example)


def flat(value, path=""):
    """Return every leaf of nested containers by its path."""
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list | tuple):
        pairs = enumerate(value)
    else:
        return {path: value}
    leaves = {}
    for key, item in pairs:
        leaves |= flat(item, f"{path}/{key}")
    return leaves


def check_identical(first, second):
    first, second = flat(first), flat(second)
    assert first.keys() == second.keys()
    for path, value in first.items():
        other = second[path]
        same = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
        assert same, path


def metrics_of(run):
    return [
        (step, {name: value for name, value in metrics.items() if name not in TIMINGS})
        for step, metrics in run.logger.logged
    ]


def test_resumed_run_is_bit_identical_to_the_unbroken_one(small_run):
    whole = small_run("whole").fit()
    stop = StopIn(rollout=2)
    broken = small_run("broken", callbacks=[stop])
    stop.keeper = broken.keeper
    broken.fit()
    assert broken.module.rollout_step == 2
    resumed = small_run("broken").fit()
    assert resumed.module.rollout_step == whole.module.rollout_step == 4
    check_identical(metrics_of(whole), metrics_of(broken) + metrics_of(resumed))
    states = [
        torch.load(run.checkpoint, map_location="cpu", weights_only=True)
        for run in (whole, resumed)
    ]
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "diversed"):
        check_identical(states[0][part], states[1][part])
    assert states[0]["global_step"] == states[1]["global_step"]
    assert resumed.keeper.history == whole.keeper.history
    assert len(whole.keeper.history) == 2


def test_checkpoint_holds_the_head_alone(small_run):
    run = small_run(num_rollouts=1).fit()
    state = torch.load(run.checkpoint, map_location="cpu", weights_only=True)
    assert {name.split(".")[0] for name in state["state_dict"]} == {"head"}
    assert not [path for path in flat(state) if "target." in path or "draft." in path]
    assert run.checkpoint.stat().st_size < 1e6


def test_one_step_moves_every_parameter_of_the_head_and_none_of_the_models(pair, small_run):
    models = (pair.target.model, pair.draft.model)
    frozen = [parameter.clone() for model in models for parameter in model.parameters()]
    run = small_run(num_rollouts=1)
    before = {name: value.clone() for name, value in run.head.named_parameters()}
    run.fit()
    for name, value in run.head.named_parameters():
        assert not torch.equal(value, before[name]), name
    now = [parameter for model in models for parameter in model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(frozen, now, strict=True))
    optimised = {id(p) for group in run.trainer.optimizers[0].param_groups for p in group["params"]}
    assert optimised == {id(p) for p in run.head.parameters()}


def test_metrics_of_a_rollout_are_those_of_the_head_that_sampled(small_run):
    run = small_run(num_rollouts=1).fit()
    (metrics,) = [metrics for _, metrics in run.logger.logged if "train/reward" in metrics]
    assert metrics["train/mean_w"] == pytest.approx(0.9, abs=1e-5)  # the head's start
    assert metrics["train/objective"] == pytest.approx(
        metrics["train/reward"] + metrics["train/acceptance"], abs=1e-6
    )
    assert 0 < metrics["train/acceptance"] <= 1
    assert metrics["train/mean_num_tokens"] <= 12


FAULTY = {
    "NaN in the loss": (lambda loss, weight: loss * math.nan, r"loss nan with gradient norm nan"),
    "Inf in the loss": (lambda loss, weight: loss + math.inf, r"loss inf with gradient norm \d\S*"),
    "NaN in the gradients alone": (
        lambda loss, weight: loss + (0 * weight).sum().sqrt(),
        r"loss -?\d\S* with gradient norm nan",
    ),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_what_is_not_finite_ends_the_run_before_it_reaches_the_head(small_run, monkeypatch, fault):
    """The message names the rollout and its prompts; the checkpoint before stays the last."""
    spoil, message = FAULTY[fault]
    run = small_run(save_every=1, validate_every=4)
    real = module.objective_loss
    heads = []

    def objective_loss(scalars, target_weight, *args, **options):
        loss = real(scalars, target_weight, *args, **options)
        if run.module.rollout_step < 2:
            return loss
        heads.append([parameter.clone() for parameter in run.head.parameters()])
        return spoil(loss, target_weight)

    monkeypatch.setattr(module, "objective_loss", objective_loss)
    prompts = ", ".join(example["id"] for example in run.data.batches.batch(2))
    with pytest.raises(NonFiniteError, match=rf"^rollout 3: {message}; prompts: {prompts}$"):
        run.fit()
    assert read_checkpoint_step(run.checkpoint) == 2
    (before,) = heads
    now = run.head.parameters()
    assert all(torch.equal(one, other) for one, other in zip(before, now, strict=True))


def test_a_head_that_an_update_spoils_is_never_saved(small_run):
    """With few updates it used to be validated and written as the run's last checkpoint."""
    spoil = partial(torch.optim.SGD, lr=math.inf)
    run = small_run(optimizer=spoil, num_rollouts=1, updates_per_rollout=1)
    message = (
        r"^rollout 1: the head's layers\S+ is not finite after an update; prompts: arithmetic/"
    )
    with pytest.raises(NonFiniteError, match=message):
        run.fit()
    assert not run.checkpoint.exists()


def test_prompts_without_a_score_are_counted_and_the_others_train(small_run):
    """One failure of a scorer used to end the run."""
    run = small_run(task=UnreliableTask("arithmetic/train/0/1"), num_rollouts=2)
    before = [parameter.clone() for parameter in run.head.parameters()]
    run.fit()
    name = "train/num_score_errors"
    counts = [metrics[name] for _, metrics in run.logger.logged if name in metrics]
    assert sorted(counts) == [0, 2]  # two rollouts see all four prompts once
    now = run.head.parameters()
    assert not any(torch.equal(one, other) for one, other in zip(before, now, strict=True))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_nothing_but_failed_scores_ends_the_run_with_one_clear_error(small_run, split):
    run = small_run(task=UnreliableTask(split), num_rollouts=1)
    with pytest.raises(ScoringError, match=r"none of the .*prompts could be scored \(.*no sandbox"):
        run.fit()


def test_the_direct_part_of_the_acceptance_term_lowers_w(small_run):
    lower = partial(torch.optim.Adam, lr=0.05)
    run = small_run(task=UnpaidTask(), num_rollouts=3, uses_score_gradient=False, optimizer=lower)
    run.fit()
    weights = [m["train/mean_w"] for _, m in run.logger.logged if "train/mean_w" in m]
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] < weights[0] - 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples_per_prompt": 1}, r"objective\.samples_per_prompt=1: objective\.advantage=rloo"),
        ({"updates_per_rollout": 0}, r"objective\.updates_per_rollout=0"),
        ({"grad_clip": 0.0}, r"objective\.grad_clip=0\.0"),
        ({"bonus": "target"}, r"verifier\.bonus=target"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(pair, changes, message):
    head = new_head(pair)
    options = {"samples_per_prompt": 2, "updates_per_rollout": 1, "grad_clip": 1.0} | changes
    bonus = options.pop("bonus", None)
    verifier = LosslessVerifier(bonus) if bonus else head_verifier(head)
    with pytest.raises(ValueError, match=message):
        DiversedModule(
            head,
            SpeculativeDecoder(pair, verifier, DecodeSettings(max_new_tokens=4)),
            UnpaidTask(),
            ObjectiveSettings(acceptance_weight=1.0),
            optimizer=torch.optim.Adam,
            scheduler=torch.optim.lr_scheduler.LinearLR,
            **options,
        )
