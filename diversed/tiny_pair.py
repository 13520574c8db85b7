"""How the embedded pair `model=tiny` is made: tokenizer, recipe, training, model card.

    python -m diversed.tiny_pair DEST [--only target|draft] [--steps N]

Both models learn the worked solutions of the arithmetic task, each in a wording style of its own.
The target is deep and trained long, the draft has one layer and is trained briefly: as in real
families, the small model is weaker *and* has other habits of speech. Running it again gives a pair
of the same quality, not the same bits. Took 55 minutes on two busy cores.
"""

import argparse
import dataclasses
import json
import logging
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from diversed.tasks.arithmetic import (
    SPLIT_PATTERN,
    STYLE_SLOTS,
    Style,
    draw_examples,
    vocabulary,
)

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>")
CONTEXT_LENGTH = 256
IGNORED = -100


@dataclass(frozen=True)
class Recipe:
    """One model of the pair: its shape and how it is trained."""

    role: str
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    style_seed: int
    style_concentration: float
    style_uniform_share: float
    num_steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int = 100
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    digit_weight: float = 4.0
    data_seed: int = 1234
    init_seed: int = 0


RECIPES = {
    "target": Recipe(
        role="target",
        hidden_size=128,
        num_layers=8,
        num_heads=4,
        intermediate_size=344,
        style_seed=1,
        style_concentration=0.35,
        style_uniform_share=0.2,
        num_steps=5000,
        batch_size=16,
        learning_rate=2e-3,
    ),
    "draft": Recipe(
        role="draft",
        hidden_size=64,
        num_layers=1,
        num_heads=4,
        intermediate_size=172,
        style_seed=8,
        style_concentration=0.25,
        style_uniform_share=0.15,
        num_steps=3600,
        batch_size=32,
        learning_rate=4e-3,
    ),
}


def draw_style(seed: int, concentration: float, uniform_share: float) -> Style:
    """Draw a wording style: a Dirichlet preference per slot, mixed with the uniform one.

    Args:
        seed: Seeds the preferences.
        concentration: Dirichlet concentration; smaller means more decided habits.
        uniform_share: Share of the uniform distribution, so that every word keeps some mass.

    Returns:
        Probabilities of the words of each slot.
    """
    rng = random.Random(f"style/{seed}")
    style = {}
    for slot, words in STYLE_SLOTS.items():
        gammas = [rng.gammavariate(concentration, 1.0) for _ in words]
        total = sum(gammas)
        style[slot] = tuple(
            (1 - uniform_share) * gamma / total + uniform_share / len(words) for gamma in gammas
        )
    return style


def recipe_style(recipe: Recipe) -> Style:
    """Return the wording style that a recipe's model learns."""
    return draw_style(recipe.style_seed, recipe.style_concentration, recipe.style_uniform_share)


def style_distance(first: Style, second: Style) -> float:
    """Return the mean total variation distance between two styles over the slots."""
    distances = [
        sum(abs(a - b) for a, b in zip(first[slot], second[slot], strict=True)) / 2
        for slot in STYLE_SLOTS
    ]
    return sum(distances) / len(distances)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the word- and digit-level tokenizer; decoding restores the text of the problems.

    Any other word becomes the padding token, so that texts of other tasks can be encoded at all.
    """
    tokens = [*SPECIAL_TOKENS, *vocabulary()]
    ids = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", ids["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=CONTEXT_LENGTH,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a freshly initialised model of a recipe's shape."""
    torch.manual_seed(recipe.init_seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_heads,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        attn_implementation="eager",  # the fastest to train on a CPU at this size
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    )
    return model


class _BatchMaker:
    """Turns the endless training examples of one style into padded batches."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> None:
        style = recipe_style(recipe)
        self._examples = draw_examples("train", recipe.data_seed, style)
        self._batch_size = recipe.batch_size
        self._ids = tokenizer.get_vocab()
        self._special = [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS]
        digit_ids = [index for token, index in self._ids.items() if token.strip().isdigit()]
        self._is_digit = torch.zeros(len(tokenizer), dtype=torch.bool)
        self._is_digit[digit_ids] = True

    def __call__(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return input ids, labels (IGNORED outside the solution) and the mask of digit labels."""
        pad_id, bos_id, eos_id = self._special
        rows, labels = [], []
        for _ in range(self._batch_size):
            example = next(self._examples)
            prompt = re.findall(SPLIT_PATTERN, f"{example['question']}\n")
            solution = [
                *(self._ids[token] for token in re.findall(SPLIT_PATTERN, example["solution"])),
                eos_id,
            ]
            prompt_ids = [bos_id, *(self._ids[token] for token in prompt)]
            rows.append(prompt_ids + solution)
            labels.append([IGNORED] * len(prompt_ids) + solution)
        width = max(map(len, rows))
        ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])
        targets = torch.tensor([row + [IGNORED] * (width - len(row)) for row in labels])
        is_digit = self._is_digit[targets.clamp(min=0)] & (targets != IGNORED)
        return ids, targets, is_digit


def train_model(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast, destination: Path
) -> LlamaForCausalLM:
    """Train one model and save it, with a log of its losses (`training_log.jsonl`).

    Args:
        recipe: Shape, style and schedule.
        tokenizer: The pair's tokenizer.
        destination: Folder that is written, and refreshed every 500 steps.

    Returns:
        The trained model, in eval mode.
    """
    destination.mkdir(parents=True, exist_ok=True)
    model = build_model(recipe, tokenizer)
    next_batch = _BatchMaker(recipe, tokenizer)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate,
        betas=(0.9, 0.98),
        weight_decay=recipe.weight_decay,
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=recipe.learning_rate,
        total_steps=recipe.num_steps,
        pct_start=min(0.3, recipe.warmup_steps / recipe.num_steps),
        cycle_momentum=False,
    )
    started = time.perf_counter()
    with (destination / "training_log.jsonl").open("w") as log:
        for step in range(1, recipe.num_steps + 1):
            ids, targets, is_digit = next_batch()
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), targets[:, 1:].flatten(), reduction="none"
            )
            digit = is_digit[:, 1:].flatten()
            counted = (targets[:, 1:] != IGNORED).flatten()
            weights = counted + (recipe.digit_weight - 1) * digit
            loss = (losses * weights).sum() / weights.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.grad_clip)
            optimizer.step()
            scheduler.step()
            if step % 100 == 0 or step == recipe.num_steps:
                row = {
                    "step": step,
                    "loss": round(loss.item(), 5),
                    "digit_loss": round(losses[digit].mean().item(), 5),
                    "word_loss": round(losses[counted & ~digit].mean().item(), 5),
                    "seconds": round(time.perf_counter() - started, 1),
                }
                log.write(json.dumps(row) + "\n")
                log.flush()
                logger.info("%s %s", recipe.role, row)
            if step % 500 == 0 or step == recipe.num_steps:
                model.save_pretrained(destination)
                tokenizer.save_pretrained(destination)
    return model.eval()


def main() -> None:
    """Make the pair that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("destination", type=Path, help="folder for target/ and draft/")
    parser.add_argument("--only", choices=sorted(RECIPES), help="make one of the two models")
    parser.add_argument("--steps", type=int, help="override the number of training steps")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    tokenizer = build_tokenizer()
    styles = [recipe_style(recipe) for recipe in RECIPES.values()]
    logger.info("mean total variation between the styles: %.3f", style_distance(*styles))
    for role, recipe in RECIPES.items():
        if arguments.only in (None, role):
            num_steps = arguments.steps or recipe.num_steps
            recipe = dataclasses.replace(recipe, num_steps=num_steps)
            folder = arguments.destination / role
            train_model(recipe, tokenizer, folder)
            (folder / "recipe.json").write_text(
                json.dumps(dataclasses.asdict(recipe) | {"torch": torch.__version__}, indent=2)
            )


if __name__ == "__main__":
    main()
