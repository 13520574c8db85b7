"""A small fine-tuning of the embedded draft, as `finetune_draft.py` sets it up."""

from functools import partial

import torch
from lightning import Trainer

from diversed.core.loop import DecodeSettings
from diversed.core.verifiers import LosslessVerifier
from diversed.generation import SpeculativeDecoder
from diversed.models.loading import load_tiny_pair
from diversed.tasks.arithmetic import ArithmeticTask
from diversed.training.completions import CompletionData, fitted_prompts, reference_completions
from diversed.training.finetune import BestDraft, FinetuneModule

TASK = ArithmeticTask(num_train=64, num_validation=48, num_test=1)


def decoder_of(pair, **settings):
    settings = DecodeSettings(**{"max_new_tokens": 48, "seed": 5} | settings)
    return SpeculativeDecoder(pair, LosslessVerifier(), settings)


def prompts_of(decoder, split, number):
    return fitted_prompts(decoder, TASK, list(TASK.examples(split).select(range(number))))


def few(number=3):
    """Return training problems with their own solutions."""
    decoder = decoder_of(load_tiny_pair())
    return reference_completions(decoder, TASK, prompts_of(decoder, "train", number))


def fit(trainable, train, validation, num_epochs=1, lr=3e-3, **options):
    """Train on completions; return module and keeper, with the best weights loaded."""
    data = CompletionData(train, validation, batch_size=16, seed=3)
    module = FinetuneModule(
        trainable.model,
        num_steps=num_epochs * data.num_batches,
        warmup_frac=0.1,
        grad_clip=1.0,
        optimizer=partial(torch.optim.AdamW, lr=lr),
    )
    keeper = BestDraft()
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=num_epochs,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        callbacks=[keeper],
        **options,
    )
    trainer.validate(module, data, verbose=False)
    trainer.fit(module, data)
    keeper.load_best(module)
    return module, keeper
