"""A small training run of the embedded pair, as `train.py` sets it up."""

from functools import partial

import torch
from lightning import Trainer
from lightning.pytorch.loggers.logger import Logger

from diversed.core.loop import DecodeSettings
from diversed.core.probs import Sampling
from diversed.generation import SpeculativeDecoder, head_verifier
from diversed.models.checkpoint import new_head
from diversed.objective.acceptance import ObjectiveSettings
from diversed.tasks.arithmetic import ArithmeticTask
from diversed.training.callbacks import HeadKeeper
from diversed.training.data import PromptDataModule
from diversed.training.module import DiversedModule


class LetterTask(ArithmeticTask):
    """Arithmetic prompts whose completions are paid for their vowels: rewards vary at once."""

    def score(self, text, example):
        return sum(letter in "aeiou" for letter in text) / max(len(text), 1)


class UnpaidTask(ArithmeticTask):
    """No completion earns anything."""

    def __init__(self):
        super().__init__(num_train=8, num_validation=3, num_test=3)

    def score(self, text, example):
        return 0.0


class MemoryLogger(Logger):
    """Keeps what was logged."""

    def __init__(self):
        super().__init__()
        self.logged = []

    name = "memory"
    version = 0

    def log_hyperparams(self, params, *args, **kwargs):
        pass

    def log_metrics(self, metrics, step=None):
        self.logged.append((step, metrics))


class SmallRun:
    """Module, data, callback and trainer of a run of a few rollouts, 2 prompts x 2 samples."""

    def __init__(self, pair, folder, num_rollouts=4, task=None, callbacks=(), **options):
        task = task or LetterTask(num_train=8, num_validation=3, num_test=3)
        folder.mkdir(exist_ok=True)
        torch.manual_seed(3)
        self.head = new_head(pair, kind="mlp", width=8, uses_features=True)
        settings = DecodeSettings(
            max_new_tokens=options.pop("max_new_tokens", 12),
            draft_length=3,
            sampling=Sampling(temperature=0.8),
            seed=5,
        )
        decoder = SpeculativeDecoder(pair, head_verifier(self.head), settings)
        self.module = DiversedModule(
            self.head,
            decoder,
            task,
            ObjectiveSettings(
                acceptance_weight=1.0,
                advantage=options.pop("advantage", "running_mean"),
                uses_score_gradient=options.pop("uses_score_gradient", True),
            ),
            samples_per_prompt=2,
            updates_per_rollout=options.pop("updates_per_rollout", 2),
            grad_clip=5.0,
            optimizer=options.pop("optimizer", partial(torch.optim.Adam, lr=0.02)),
            scheduler=partial(torch.optim.lr_scheduler.LinearLR, total_iters=4),
        )
        self.data = PromptDataModule(
            task,
            prompts_per_step=options.pop("prompts_per_step", 2),
            num_rollouts=num_rollouts,
            seed=5,
            start=lambda: self.module.rollout_step,
        )
        self.checkpoint = folder / "checkpoint.ckpt"
        self.keeper = HeadKeeper(
            self.checkpoint,
            list(task.examples("validation")),
            validate_every=options.pop("validate_every", 3),
            save_every=options.pop("save_every", 10),
            num_rollouts=num_rollouts,
            batch_size=8,
        )
        self.logger = MemoryLogger()
        self.trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            num_sanity_val_steps=0,
            callbacks=[*callbacks, self.keeper],
            logger=self.logger,
            default_root_dir=folder,
            **({"devices": 1} | options.pop("processes", {})),
        )
        assert not options

    def fit(self):
        """Train, from the checkpoint where there is one."""
        path = str(self.checkpoint) if self.checkpoint.is_file() else None
        self.trainer.fit(self.module, self.data, ckpt_path=path, weights_only=True)
        return self
