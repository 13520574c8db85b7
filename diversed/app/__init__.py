"""The jobs behind the scripts: unpack the config, build objects, hand over, keep records."""

from diversed.app.evaluation import evaluate
from diversed.app.finetuning import finetune_draft
from diversed.app.preflight import check
from diversed.app.setup import build_decoder
from diversed.app.training import train

__all__ = ["build_decoder", "check", "evaluate", "finetune_draft", "train"]
