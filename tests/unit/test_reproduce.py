"""docs/reproduce.md: its commands are commands, and its numbers follow from what it assumes."""

import functools
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import torch
from composed import CONFIG_FOLDER, ROOT, composed, points
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from paper_models import MODELS, config, table

from diversed.config import register_schemas
from diversed.models.memory import Workload, pair_memory

TEXT = (ROOT / "docs" / "reproduce.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line) for block in BLOCKS for line in block.splitlines()]
SCRIPTS = [words[1:] for words in COMMANDS if words[1].endswith(".py")]
EXPERIMENTS = {path.stem for path in (CONFIG_FOLDER / "experiment").glob("*.yaml")}
PAIRS = ("llama", "qwen", "gemma")
GIB = 2**30

LAYER_MS = 0.9
MEAN_BLOCKS, SLOWEST_BLOCKS, SLOWEST_BLOCKS_OF_SD = 43, 64, 85
TRAINING_BATCHES, EVALUATION_BATCHES, FIGURE_PROMPTS = 113, 7, 400
TOKENS, ROWS, DRAFT_LENGTH = 128, 64, 5


def shown(words: list[str]) -> str:
    return " ".join(words)


def named(words: list[str]) -> set[str]:
    values = [word.partition("=")[2] for word in words if word.startswith("experiment=")]
    return {name for value in values for name in value.split(",")}


def of_experiment(program: str, overrides: list[str]) -> list[str]:
    """Return the sweep that an experiment brings along, but for keys of the command line."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    plain = [override.input_line for override in parsed if not override.is_sweep_override()]
    register_schemas()
    with initialize_config_dir(str(CONFIG_FOLDER), version_base="1.3"):
        cfg = compose(program, plain, return_hydra_config=True)
    grid = OmegaConf.to_container(cfg.hydra.sweeper.params or OmegaConf.create())
    given = {override.get_key_element() for override in parsed}
    return [f"{key}={values}" for key, values in grid.items() if key not in given]


@pytest.mark.parametrize("words", SCRIPTS, ids=shown)
def test_every_command_composes_and_leaves_nothing_out(words: list[str]) -> None:
    script, *arguments = words
    flags = [word for word in arguments if word.startswith("-")]
    assert flags in ([], ["-m"])
    overrides = [word.replace("<run>", "some") for word in arguments if word not in flags]
    program = Path(script).stem
    if flags:
        overrides += of_experiment(program, overrides)
    found = points(overrides)
    assert (len(found) > 1) == bool(flags)
    for point in found:
        cfg = composed(program, *point)
        assert OmegaConf.missing_keys(cfg) == set()
        code = cfg.data.get("allow_code_execution")
        assert code is None or code is True or cfg.check  # MBPP needs the user's word


def test_every_experiment_is_shown_and_every_one_that_is_shown_exists() -> None:
    mentioned = set().union(*map(named, SCRIPTS))
    assert mentioned <= EXPERIMENTS
    others = ("lossy_", "evidence", "ablation_", "control_", "coder_")  # of sweeps/
    assert EXPERIMENTS - mentioned == {name for name in EXPERIMENTS if name.startswith(others)}
    in_text = set(re.findall(r"\b(?:table\d|transfer|figure\d|draft_length\d)_\w+\w", TEXT))
    families = {"table1_cnndm_", "table1_gsm8k_"}  # written with a star
    assert {name for name in in_text if name not in EXPERIMENTS} <= families


def test_every_script_and_module_exists() -> None:
    assert {words[0] for words in SCRIPTS} == {"train.py", "eval.py", "finetune_draft.py"}
    assert all((ROOT / words[0]).is_file() for words in SCRIPTS)
    modules = [words[2] for words in COMMANDS if words[1] == "-m"]
    assert modules == ["diversed.collect"]
    assert all(importlib.util.find_spec(name) for name in modules)
    assert {words[0] for words in COMMANDS} == {"python"}


def test_settings_that_the_text_quotes_are_those_of_the_config() -> None:
    cfg = composed("train", "experiment=table1_gsm8k_llama")
    for quoted in ("acceptance_reduction: sum", "advantage: reinforce_pp"):
        key, value = quoted.split(": ")
        assert quoted in TEXT
        assert cfg.objective[key] == value
    chosen = ("objective=paper", "optimizer=adamw scheduler=warmup_cosine", "decoding=paper")
    assert all(f"`{words}`" in TEXT for words in (*chosen, "head=linear"))
    asked = composed("train", *" ".join(chosen).split(), "model=llama", "data=gsm8k", "lambda=0.01")
    asked.evaluation.num_prompts = 400
    assert asked == cfg


@functools.cache
def needed(pair: str, num_rows: int, prompt_length: int, is_training: bool = False):
    models = composed("eval", f"model={pair}").model
    names = [models[role].name.partition("/")[2] for role in ("target", "draft")]
    workload = Workload(num_rows, prompt_length, TOKENS, DRAFT_LENGTH, is_training)
    target, draft = map(config, names)
    return pair_memory(target, draft, torch.bfloat16, int(MODELS[names[0]]["V"]), workload)


@pytest.mark.parametrize("row", table(TEXT, "| pair | weights"), ids=PAIRS)
def test_memory_is_what_the_formula_gives(row: dict[str, str]) -> None:
    pair = row.pop("pair")
    one = needed(pair, 1, 512)
    wanted = {
        "weights": one.target_weights + one.draft_weights,
        "training": needed(pair, 8, 512, True).total,
        **{
            f"{rows} x {length}": needed(pair, rows, length).total
            for rows, length in ((64, 512), (64, 2048), (16, 2048), (1, 512))
        },
    }
    assert row == {name: f"{number / GIB:.1f}" for name, number in wanted.items()}


@functools.cache
def layers(pair: str) -> tuple[int, int]:
    models = composed("eval", f"model={pair}").model
    names = [models[role].name.partition("/")[2] for role in ("target", "draft")]
    target, draft = (int(MODELS[name]["layers"]) for name in names)
    return target, draft


def block_s(pair: str, draft_length: int = DRAFT_LENGTH) -> float:
    target, draft = layers(pair)
    return ((draft_length + 1) * draft + target) * LAYER_MS / 1000


def target_s(pair: str) -> float:
    return layers(pair)[0] * LAYER_MS / 1000


def training_h(pair: str, draft_length: int = DRAFT_LENGTH, batches: int = TRAINING_BATCHES):
    return batches * SLOWEST_BLOCKS * block_s(pair, draft_length) / 3600


def baselines_h(pair: str) -> float:
    seconds = SLOWEST_BLOCKS_OF_SD * block_s(pair) + TOKENS * target_s(pair)
    return EVALUATION_BATCHES * seconds / 3600


def figure_h(pair: str) -> float:
    seconds = 12 * MEAN_BLOCKS * block_s(pair) + TOKENS * target_s(pair)
    return FIGURE_PROMPTS * seconds / 3600


def test_what_is_assumed_is_what_the_text_says() -> None:
    text = " ".join(TEXT.split())
    for words in (
        f"{LAYER_MS} ms for each layer of each call",
        f"the slowest row of a batch 2 ({SLOWEST_BLOCKS} blocks)",
        f"SD's slowest row 1.5 ({SLOWEST_BLOCKS_OF_SD} blocks)",
        f"7: {TRAINING_BATCHES} batches",
        f"12 runs of {FIGURE_PROMPTS} prompts with {MEAN_BLOCKS} blocks each",
    ):
        assert words in text
    cfg = composed("train", "experiment=table1_gsm8k_llama")
    per_evaluation = -(-cfg.evaluation.num_prompts // cfg.evaluation.batch_size)
    validations = cfg.objective.num_rollouts // cfg.objective.validate_every
    per_validation = 192 // cfg.evaluation.batch_size
    assert per_evaluation == EVALUATION_BATCHES
    assert (
        cfg.objective.num_rollouts + validations * per_validation + per_evaluation
        == TRAINING_BATCHES
    )


@pytest.mark.parametrize("row", table(TEXT, "| pair | layers"), ids=PAIRS)
def test_hours_of_a_run_follow_from_what_is_assumed(row: dict[str, str]) -> None:
    pair = row["pair"]
    target, draft = layers(pair)
    assert row == {
        "pair": pair,
        "layers": f"{target} + {draft}",
        "one block, ms": f"{1000 * block_s(pair):.0f}",
        "tokens/s of 64 rows": f"{ROWS * TOKENS / (SLOWEST_BLOCKS * block_s(pair)):.0f}",
        "training run, h": f"{training_h(pair):.2f}",
        "baselines, min": f"{60 * baselines_h(pair):.1f}",
        "figure 4, one data set, h": f"{figure_h(pair):.1f}",
    }


def test_hours_of_a_table_follow_from_those_of_its_runs() -> None:
    printed = ("llama", "qwen")
    trained = 3 * sum(map(training_h, printed))
    baselines = 3 * sum(map(baselines_h, printed))
    narrow = TRAINING_BATCHES + 2 * (12 - 3) + (25 - EVALUATION_BATCHES)  # 16 rows a batch
    tested = sum(
        (25 + EVALUATION_BATCHES) * SLOWEST_BLOCKS * block_s(pair) / 3600 for pair in printed
    )
    transfer = sum(training_h(pair, batches=narrow) for pair in printed) + tested
    wanted = [
        (18, trained + baselines),
        (66, 9 * trained + baselines),
        (6, transfer),
        (6, sum(training_h(pair, length) for pair in PAIRS for length in (3, 7))),
        (39, sum(map(figure_h, PAIRS))),
    ]
    rows = table(TEXT, "| what | runs | GPU hours")
    assert [(row["runs"], row["GPU hours"]) for row in rows] == [
        (str(number), f"{hours:.1f}") for number, hours in wanted
    ]


def test_files_that_are_linked_exist() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
