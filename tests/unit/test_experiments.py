"""conf/experiment and conf/debug: each experiment is what its name says, and shrinks to seconds."""

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from composed import CONFIG_FOLDER, SMALL_DATA, composed
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from diversed import app
from diversed.app.setup import check_settings
from diversed.config import InputError, register_schemas
from diversed.records.folders import differing_keys
from diversed.records.store import read_manifest, read_records

NAMES = sorted(path.stem for path in (CONFIG_FOLDER / "experiment").glob("*.yaml"))
PAIRS = ("llama", "qwen", "gemma")
DATA = ("gsm8k", "cnndm", "xsum", "mbpp")
TABLES = {"table1": 1.0, "table2": 0.1}
CELLS = [(table, data, pair) for table in TABLES for data in DATA for pair in PAIRS]
TRAINING = re.compile(r"table\d_(\w+)_(llama|qwen|gemma)$|draft_length\d_")
OWN = [name for name in NAMES if name.startswith(("evidence", "ablation", "control"))]
TRAINED = [name for name in NAMES if TRAINING.match(name) and "finetuned" not in name]
CODER = [name for name in NAMES if name.startswith("coder")]
EVALUATED = [name for name in NAMES if name not in (*TRAINED, *OWN, *CODER)]
ABLATED = [name for name in OWN if name.startswith("ablation")]
CONTROLS = [name for name in OWN if name.startswith("control")]
ASKED = {
    "finetuned": ["finetuned_draft=builtin:draft"],
    "transfer": ["verifier.checkpoint=some/head"],
    "figure4_static": ["verifier.weight=0.5"],
    "lossy": ["level=0.5"],
    "evidence_": ["level=0.5"],
}
"""What experiments leave to the user, by a part of their names."""

QUICK = {"evaluation.num_prompts": 4, "evaluation.batch_size": 4, "decoding.max_new_tokens": 64}
QUICK_TRAINING = {
    "objective.num_rollouts": 2,
    "objective.prompts_per_step": 2,
    "objective.samples_per_prompt": 2,
    "objective.max_train_prompts": 16,
    "objective.num_validation_prompts": 4,
    "trainer.accelerator": "cpu",
}


def program(name: str) -> str:
    is_head = name in CODER and "head" in name
    return "train" if is_head or name in (*TRAINED, *ABLATED, *CONTROLS) else "eval"


def asked(name: str) -> list[str]:
    return [override for part, wanted in ASKED.items() if part in name for override in wanted]


@functools.cache
def experiment(name: str, *overrides: str) -> DictConfig:
    return composed(program(name), f"experiment={name}", *overrides)


def target(node: DictConfig) -> str:
    return node._target_.rpartition(".")[2]


def test_there_is_one_experiment_for_each_cell_and_figure() -> None:
    cells = {f"{table}_{data}_{pair}" for table, data, pair in CELLS}
    lengths = {f"draft_length{n}_gsm8k_{pair}" for n in (3, 7) for pair in PAIRS}
    assert set(TRAINED) == cells | lengths
    assert set(EVALUATED) >= {
        *(f"{table}_baselines" for table in TABLES),
        *(f"{table}_finetuned_{pair}" for table in TABLES for pair in ("llama", "qwen")),
        *(f"transfer_cnndm_to_gsm8k_{pair}" for pair in ("llama", "qwen")),
        *(f"transfer_gsm8k_to_cnndm_{pair}" for pair in ("llama", "qwen")),
        *("figure4", "figure4_static_front"),
    }


@pytest.mark.parametrize(("table", "data", "pair"), CELLS)
def test_a_cell_is_what_its_name_says(table: str, data: str, pair: str) -> None:
    cfg = experiment(f"{table}_{data}_{pair}")
    assert cfg.model == composed("eval", f"model={pair}").model
    assert cfg.data == composed("eval", f"data={data}").data
    assert cfg.decoding.temperature == TABLES[table]
    assert cfg.decoding.draft_length == 5
    assert target(cfg.verifier) == "checkpoint_verifier"


@pytest.mark.parametrize("name", TRAINED)
def test_the_authors_training_is_what_the_paper_says(name: str) -> None:
    cfg = experiment(name)
    objective = cfg.objective
    assert objective.acceptance_reduction == "sum"
    assert objective.acceptance_weight == cfg["lambda"] > 0
    assert (objective.max_train_prompts, objective.prompts_per_step) == (400, 8)
    assert objective.num_rollouts * objective.prompts_per_step == 2 * objective.max_train_prompts
    assert objective.grad_clip == 5
    assert (target(cfg.optimizer), cfg.optimizer.lr) == ("AdamW", 5e-4)
    assert cfg.scheduler.num_warmup_steps == 10
    assert cfg.scheduler.num_training_steps == objective.num_rollouts
    assert cfg.decoding.max_new_tokens == 128


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("length", [3, 7])
def test_draft_lengths_change_nothing_else(pair: str, length: int) -> None:
    cfg = experiment(f"draft_length{length}_gsm8k_{pair}").copy()
    assert cfg.decoding.draft_length == length
    cfg.decoding.draft_length = 5
    assert cfg == experiment(f"table1_gsm8k_{pair}")


@pytest.mark.parametrize("name", [name for name in EVALUATED if not name.startswith("lossy")])
def test_what_is_compared_has_the_prompts_and_the_decoding_of_the_tables(name: str) -> None:
    cfg = experiment(name)
    table = experiment("table2_gsm8k_llama" if "table2" in name else "table1_gsm8k_llama")
    assert cfg.decoding == table.decoding
    assert cfg.evaluation.num_prompts == table.evaluation.num_prompts
    assert cfg.evaluation.split == table.evaluation.split
    assert cfg.seed == table.seed


@pytest.mark.parametrize("name", OWN)
def test_what_is_compared_in_the_evidence_has_its_problems_and_decoding(name: str) -> None:
    cfg, plain = experiment(name), composed("eval", "model=tiny", "data=arithmetic")
    assert cfg.data == {**plain.data, "num_test": 2000}
    assert cfg.decoding == plain.decoding
    assert not cfg.evaluation.writes_trace
    assert (cfg.model, cfg.seed) == (plain.model, plain.seed)


@pytest.mark.parametrize("name", ABLATED)
def test_an_ablation_turns_one_knob_and_has_a_name_of_its_own(name: str) -> None:
    cfg, plain = experiment(name).copy(), composed("train", "experiment=evidence")
    arm = name.removeprefix("ablation_")
    assert cfg.name == f"tiny-arithmetic-ablation-{arm}-seed0"
    knobs = {
        "sum": {"lambda", "objective.acceptance_weight", "objective.acceptance_reduction"},
        "paper_recipe": {"objective.advantage", "objective.updates_per_rollout", "optimizer.lr"},
    }
    turned = set(differing_keys(resolved(cfg), resolved(plain)))
    assert turned - {"name"} == knobs[arm] if arm in knobs else len(turned - {"name"}) == 1


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_reads_what_its_name_says(name: str) -> None:
    cfg, plain = experiment(name), composed("train", "experiment=evidence")
    assert cfg.head.reads == name.removeprefix("control_")
    turned = set(differing_keys(resolved(cfg), resolved(plain)))
    assert {"head.reads"} <= turned <= {"head.reads", "optimizer.lr"}


@pytest.mark.parametrize("name", CODER)
def test_what_is_compared_on_the_coder_pair_has_one_test_set_and_one_decoding(name: str) -> None:
    cfg, plain = experiment(name), experiment("_".join(name.split("_")[:2]))
    for group in ("model", "data", "decoding", "evaluation", "seed"):
        assert cfg[group] == plain[group]


def test_data_sets_of_the_coder_pair_differ_in_what_answers_ask_for_alone() -> None:
    mbpp = experiment("coder_mbpp")
    for name in ("coder_humaneval", "coder_gsm8k"):
        cfg = experiment(name)
        assert cfg.data != mbpp.data
        assert cfg.model == mbpp.model
        assert cfg.evaluation == {
            **mbpp.evaluation,
            "num_prompts": cfg.evaluation.num_prompts,
            "batch_size": cfg.evaluation.batch_size,
        }
        assert cfg.decoding == {**mbpp.decoding, "max_new_tokens": cfg.decoding.max_new_tokens}


def resolved(cfg: DictConfig) -> dict[str, Any]:
    return OmegaConf.to_container(cfg, resolve=True)


@pytest.mark.parametrize("pair", ["llama", "qwen"])
@pytest.mark.parametrize("table", TABLES)
def test_a_fine_tuned_draft_takes_the_place_of_the_draft_and_renames_the_pair(
    table: str, pair: str
) -> None:
    cfg = experiment(f"{table}_finetuned_{pair}", "finetuned_draft=some/folder")
    plain = composed("eval", f"model={pair}").model
    assert cfg.model.target == plain.target
    assert cfg.model.draft == {**plain.draft, "path": "some/folder"}
    assert cfg.model.name == f"{pair}_finetuned"
    assert target(cfg.verifier) == "LosslessVerifier"


@pytest.mark.parametrize("pair", ["llama", "qwen"])
@pytest.mark.parametrize(("learnt", "tested"), [("cnndm", "gsm8k"), ("gsm8k", "cnndm")])
def test_transfer_tests_a_head_on_other_data(pair: str, learnt: str, tested: str) -> None:
    cfg = experiment(f"transfer_{learnt}_to_{tested}_{pair}")
    assert cfg.model == experiment(f"table1_{learnt}_{pair}").model
    assert cfg.data == experiment(f"table1_{tested}_{pair}").data
    assert OmegaConf.missing_keys(cfg) == {"verifier.checkpoint"}


def grid(name: str, *overrides: str) -> dict[str, str] | None:
    register_schemas()
    with initialize_config_dir(str(CONFIG_FOLDER), version_base="1.3"):
        chosen = [f"experiment={name}", *overrides]
        return compose("eval", chosen, return_hydra_config=True).hydra.sweeper.params


def test_a_grid_comes_with_the_experiments_that_are_one() -> None:
    weights = grid("figure4_static_front")["verifier.weight"].split(",")
    assert {0.0, 1.0} <= set(map(float, weights))
    assert len(weights) >= 10
    for table in TABLES:
        assert grid(f"{table}_baselines") == {"verifier": "autoregressive,lossless"}
    assert grid("figure4_static_front", "debug=smoke") is None


@pytest.mark.parametrize("name", TRAINED[:: len(TRAINED) // 4])
def test_eval_says_for_which_script_an_experiment_is(name: str) -> None:
    with pytest.raises(ConfigCompositionException, match="Could not override 'objective'"):
        composed("eval", f"experiment={name}")


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_shrinks_to_the_embedded_pair(name: str) -> None:
    cfg = experiment(name, "debug=smoke", *asked(name), *SMALL_DATA)
    tiny = composed("eval", "model=tiny").model
    assert cfg.model.target == tiny.target
    assert cfg.model.draft == tiny.draft
    assert target(cfg.data) == "ArithmeticTask"
    wanted = QUICK | (QUICK_TRAINING if program(name) == "train" else {})
    assert {key: OmegaConf.select(cfg, key) for key in wanted} == wanted
    if name in TRAINED:
        assert cfg.logger is None
        assert cfg.objective.acceptance_reduction == "sum"  # the rest is the experiment's
    task, settings, _ = check_settings(cfg)  # builds what needs no weights
    assert task.name == "arithmetic"
    assert settings.sampling.temperature == experiment(name).decoding.temperature
    for group in ("optimizer", "scheduler"):
        if group in cfg:
            assert callable(instantiate(cfg[group]))


@pytest.mark.parametrize("name", [name for name in NAMES if asked(name)])
def test_what_is_left_to_the_user_is_asked_for_by_name(name: str) -> None:
    (wanted,) = asked(name)
    key = wanted.partition("=")[0]
    with pytest.raises(InputError, match=rf"^{key} has no value: add {key}=\.\.\. to the command$"):
        check_settings(experiment(name, "debug=smoke"))


def test_a_task_of_the_users_takes_the_place_of_the_word_problems() -> None:
    cfg = composed("train", "experiment=table1_xsum_qwen", "debug=smoke", "data=xsum")
    assert target(cfg.data) == "XSumTask"
    assert cfg.model.name == "tiny"


def test_overfitting_trains_and_tests_on_the_same_few_prompts() -> None:
    cfg = composed("train", "debug=overfit", "seed=3")
    number = cfg.evaluation.num_prompts
    assert cfg.evaluation.split == "train"
    assert cfg.objective.max_train_prompts == cfg.objective.prompts_per_step == number
    assert cfg.logger is None
    assert composed("eval", "debug=overfit").evaluation.num_prompts == number


def test_an_unknown_debug_choice_gets_the_list() -> None:
    for name in ("train", "eval"):
        with pytest.raises(ConfigCompositionException, match=r"debug/smoek[^/]*\toverfit\n\tsmoke"):
            composed(name, "debug=smoek")


def test_a_table_runs_when_it_is_shrunk(tmp_path: Path) -> None:
    numbers = app.train(experiment("table2_mbpp_qwen", "debug=smoke"), tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest["status"] == "finished"
    assert manifest["run"]["acceptance_weight"] == 0.01
    assert manifest["run"]["temperature"] == 0.1
    assert numbers["num_prompts"] == len(read_records(tmp_path)) == 4
    assert not (tmp_path / "metrics").exists()


def test_a_figure_runs_when_it_is_shrunk(tmp_path: Path) -> None:
    cfg = experiment("figure4_static_front", "debug=smoke", "verifier.weight=0.5")
    numbers = app.evaluate(cfg, tmp_path)
    assert set(read_records(tmp_path)["target_weight"]) == {0.5}
    assert 0 < numbers["expected_acceptance"] < 1
