"""Validation, choice of the best head, checkpoints and a calm stop."""

from functools import partial

import pytest
import torch
from lightning import Callback, LightningModule
from small_run import MemoryLogger, UnpaidTask

from diversed.models.head import EnsembleHead
from diversed.training.callbacks import HeadKeeper, read_checkpoint_step

# Lightning 2.6 uses a class of torch.utils._pytree that torch 2.13 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")


class HeadHistory(Callback):
    """Copies the head and reads the checkpoint's step after every rollout."""

    def __init__(self):
        self.heads = {}
        self.saved = {}
        self.checkpoint = None
        self.stop_at = None
        self.keeper = None

    def on_train_batch_end(self, trainer, pl_module, *_):
        step = pl_module.rollout_step
        self.heads[step] = {
            name: value.clone() for name, value in pl_module.head.state_dict().items()
        }
        if self.checkpoint is not None and self.checkpoint.is_file():
            self.saved[step] = read_checkpoint_step(self.checkpoint)
        if step == self.stop_at:
            self.keeper.request_stop()


def test_best_head_is_that_of_the_highest_validation_objective(small_run):
    history = HeadHistory()
    run = small_run(
        task=UnpaidTask(),
        num_rollouts=3,
        validate_every=1,
        callbacks=[history],
        uses_score_gradient=False,
        optimizer=partial(torch.optim.SGD, lr=1.0, maximize=True),  # walks uphill on the loss
    ).fit()
    objectives = {int(row["rollout"]): row["objective"] for row in run.keeper.history}
    assert list(objectives) == [1, 2, 3]
    best = max(objectives, key=objectives.get)
    assert best < 3, "the last head is the best: this run tests no choice"
    assert run.keeper.best_step == best
    assert run.keeper.best_objective == objectives[best]
    run.keeper.load_best(run.module)
    for name, value in run.head.state_dict().items():
        assert torch.equal(value, history.heads[best][name]), name
    assert any(
        not torch.equal(history.heads[best][n], history.heads[3][n]) for n in history.heads[3]
    )


def test_validation_numbers_add_up_to_the_objective(small_run):
    run = small_run(num_rollouts=1).fit()
    (row,) = run.keeper.history
    assert row["rollout"] == 1
    assert row["objective"] == pytest.approx(row["quality"] + 1.0 * row["acceptance"])
    logged = [metrics for _, metrics in run.logger.logged if "val/objective" in metrics]
    assert logged[-1]["val/objective"] == pytest.approx(row["objective"])


def test_checkpoints_are_written_as_scheduled_and_after_the_last_rollout(small_run):
    history = HeadHistory()
    run = small_run(num_rollouts=3, validate_every=3, save_every=2, callbacks=[history])
    history.checkpoint = run.checkpoint
    run.fit()
    assert history.saved == {3: 2}  # seen before the third rollout's own was written
    assert read_checkpoint_step(run.checkpoint) == 3


class Watchful(MemoryLogger):
    """Notes what was logged when a checkpoint was written, and keeps heads."""

    def __init__(self, checkpoint):
        super().__init__()
        self.checkpoint = checkpoint
        self.saved_before = {}
        self.heads = []

    def save(self):
        if self.checkpoint.is_file():
            step, found = self.logged[-1][0], read_checkpoint_step(self.checkpoint)
            self.saved_before.setdefault(step, found)

    def log_head(self, write, step, *, is_best):
        folder = self.checkpoint.parent / f"head-{step}"
        write(folder)
        self.heads.append((step, is_best, EnsembleHead.from_pretrained(str(folder))))


@pytest.fixture
def watched(small_run):
    """Return a finished run of four rollouts with its logger; two validations, four checkpoints."""
    run = small_run(num_rollouts=4, validate_every=2, save_every=1)
    run.trainer.loggers = [Watchful(run.checkpoint)]
    return run.fit(), run.trainer.loggers[0]


def test_a_rollout_is_logged_once_with_all_its_numbers(watched):
    run, run_logger = watched
    assert [step for step, _ in run_logger.logged] == [1, 2, 3, 4]
    numbers = dict(run_logger.logged)
    trained = {name for name in numbers[1] if name.startswith("train/")}
    validated = {"val/quality", "val/acceptance", "val/objective"}
    assert trained == numbers[1].keys() == numbers[3].keys()
    assert trained | validated == numbers[2].keys() == numbers[4].keys()
    wanted = "reward acceptance weighted_acceptance objective acceptance_rate token_acceptance_rate"
    wanted += " mean_w w_below_0.05_frac w_above_0.95_frac w_entropy grad_norm loss"
    wanted += " tokens_per_second"
    assert {f"train/{name}" for name in wanted.split()} <= trained
    for row in run.keeper.history:
        assert numbers[row["rollout"]]["val/objective"] == row["objective"]


def test_the_objective_is_the_sum_of_its_terms(watched):
    _, run_logger = watched
    for _, numbers in run_logger.logged:
        terms = numbers["train/reward"] + numbers["train/weighted_acceptance"]
        assert numbers["train/objective"] == pytest.approx(terms, abs=1e-9)


def test_a_rollout_is_logged_before_its_checkpoint_is_written(watched):
    """Killed in between, a run used to go on without the numbers of that rollout."""
    _, run_logger = watched
    assert run_logger.saved_before == {2: 1, 3: 2, 4: 3}


def test_loggers_that_keep_heads_get_those_of_every_validation(watched):
    run, run_logger = watched
    objectives = [row["objective"] for row in run.keeper.history]
    assert [(step, is_best) for step, is_best, _ in run_logger.heads] == [
        (2, True),
        (4, objectives[1] > objectives[0]),
    ]
    last = run_logger.heads[-1][2].state_dict()
    for name, value in run.head.state_dict().items():
        assert torch.equal(last[name], value), name


def test_request_stop_saves_and_stops(small_run):
    history = HeadHistory()
    run = small_run(callbacks=[history], validate_every=4)
    history.keeper, history.stop_at = run.keeper, 2
    run.fit()
    assert run.module.rollout_step == 2
    assert read_checkpoint_step(run.checkpoint) == 2
    assert run.keeper.history == []


def test_no_validation_leaves_the_head_alone(small_run):
    run = small_run()
    before = {name: value.clone() for name, value in run.head.state_dict().items()}
    run.keeper.load_best(run.module)
    assert all(torch.equal(value, before[name]) for name, value in run.head.state_dict().items())


@pytest.mark.parametrize("name", ["validate_every", "save_every"])
def test_intervals_below_1_are_refused_by_name(tmp_path, name):
    intervals = {"validate_every": 1, "save_every": 1} | {name: 0}
    with pytest.raises(ValueError, match=rf"objective\.{name}=0"):
        HeadKeeper(tmp_path / "file", [], num_rollouts=1, batch_size=1, **intervals)


def test_another_module_is_refused(tmp_path):
    keeper = HeadKeeper(
        tmp_path / "file", [], validate_every=1, save_every=1, num_rollouts=1, batch_size=1
    )
    with pytest.raises(TypeError, match="goes with DiversedModule, not LightningModule"):
        keeper.on_train_batch_end(None, LightningModule(), None, None, 0)
