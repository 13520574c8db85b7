"""Typed config schemas, and how a script turns bad input into one clear line.

Only numbers and choices live here; ranges are checked by the classes that use the values.
"""

import difflib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from diversed.records.folders import (
    BROKEN,
    ERROR_FILE,
    FINISHED,
    LOCK_FILE,
    FolderState,
    claimed,
    differing_keys,
    mark_failed,
    mark_killed,
    read_state,
)
from diversed.records.store import MANIFEST_FILE

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

_WANTS_TRACE = os.environ.get("HYDRA_FULL_ERROR") == "1"
_failed_points: list[str] = []


@dataclass
class DecodingConfig:
    """Group `decoding`; see `core.loop.DecodeSettings` and `core.probs.Sampling`."""

    draft_length: int = 5
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int | None = None  # null: what the task asks for, at most half of the context


@dataclass
class ObjectiveConfig:
    """Group `objective`; see `objective.acceptance.ObjectiveSettings` and `training`."""

    acceptance_weight: Any = "${lambda}"  # set it as `lambda` on the command line
    acceptance_reduction: str = "mean"
    advantage: str = "rloo"
    clip_ratio: float = 0.5
    uses_direct_gradient: bool = True
    uses_score_gradient: bool = True
    prompts_per_step: int = 16
    samples_per_prompt: int = 8
    updates_per_rollout: int = 3
    num_rollouts: int = 40
    max_train_prompts: int | None = None  # first rows of the split, at most; null: all
    grad_clip: float = 5.0
    validate_every: int = 10
    save_every: int = 5
    num_validation_prompts: int | None = None  # null: 192, or the whole split if it is smaller


@dataclass
class FinetuneConfig:
    """Group `finetune`; see `training.completions` and `training.finetune`."""

    num_train_prompts: int | None = None  # first rows; null: 4096, or the whole split if smaller
    samples_per_prompt: int = 1  # outputs of the target
    num_epochs: int = 3
    batch_size: int = 16
    warmup_frac: float = 0.1  # share of the steps in which the learning rate rises
    grad_clip: float = 1.0


@dataclass
class EvaluationConfig:
    """Group `evaluation`; see `evaluation.runner.evaluate_task`."""

    split: str = "test"
    num_prompts: int | None = None  # null: the whole split
    samples_per_prompt: int = 1
    batch_size: int = 64
    writes_trace: bool = True
    records_format: str = "jsonl"  # or parquet


def register_schemas() -> None:
    """Make the schemas known to Hydra; `conf/<group>/default.yaml` builds on them."""
    store = ConfigStore.instance()
    store.store(group="decoding", name="schema", node=DecodingConfig)
    store.store(group="objective", name="schema", node=ObjectiveConfig)
    store.store(group="finetune", name="schema", node=FinetuneConfig)
    store.store(group="evaluation", name="schema", node=EvaluationConfig)


class InputError(Exception):
    """Something the user gave cannot be used; the message is one line that says what would do."""


class RunError(InputError):
    """A run that had begun cannot go on; its folder is kept, and its manifest says why."""


class FolderTaken(InputError):
    """A point's folder holds a run of another config, which stays as it is."""


class Interrupted(Exception):
    """The user stopped the run; the message says how to resume."""


@contextmanager
def input_errors() -> Iterator[None]:
    """Turn what bad input raises in the enclosed set-up into `InputError`."""
    try:
        yield
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ValueError | OSError):
            raise InputError(_one_line(cause)) from error
        raise InputError(_one_line(error)) from error  # Hydra's text names the component
    except (ValueError, OSError, OmegaConfBaseException) as error:
        raise InputError(_one_line(error)) from error


def run_script(main: Callable[[], Any], config_folder: Path, config_name: str) -> None:
    """Run a `hydra.main` function; bad input ends in one line on stderr and exit code 2.

    So does a run that cannot go on, with exit code 1; its log file may be on the disk that is full.
    With HYDRA_FULL_ERROR=1 in the environment the stack trace is shown instead.

    Args:
        main: Decorated with `hydra.main`.
        config_folder: Where its configs are, for suggestions.
        config_name: Its primary config.
    """
    register_schemas()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets Hydra's own errors come here as exceptions
    logging.raiseExceptions = False  # a line that no log file can take is no error of the run
    _failed_points.clear()
    try:
        main()
    except (InputError, HydraException, OmegaConfBaseException, OSError) as error:
        if _WANTS_TRACE:
            raise
        hint = _suggestion(error, config_folder, config_name)
        _fail(_explain(error).rstrip("." if hint else "") + hint, EXIT_BAD_INPUT)
    if _failed_points:
        first, number = _failed_points[0], len(_failed_points)
        others = f" (and {number - 1} more failed points, see their {ERROR_FILE})"
        _fail(first + (others if number > 1 else ""), EXIT_BAD_INPUT)


def run_job(job: Callable[[DictConfig, Path], Any], cfg: DictConfig) -> Any:
    """Run one job of a script in its Hydra folder.

    Bad input leaves nothing behind in a single run. In a multirun the point keeps its folder with
    the error in it (`error.txt`), the other points go on, and `run_script` fails at the end. The
    interrupted job is the last. A point whose folder holds the finished run of its config is not
    run again, and training or evaluation goes on where it stopped. A run that had begun keeps its
    folder always. Runs beside the folder that were killed are marked.
    """
    folder = Path(HydraConfig.get().runtime.output_dir)
    is_single = HydraConfig.get().mode == RunMode.RUN
    if is_follower(cfg):
        return _follow(job, cfg, folder, is_single)
    mark_killed(path.parent for path in folder.parent.glob(f"*/{MANIFEST_FILE}"))
    try:
        return job(cfg, folder) if is_single else _run_point(job, cfg, folder)
    except Interrupted as stop:
        _fail(str(stop), EXIT_INTERRUPTED)
    except KeyboardInterrupt:
        discard_job_folder(folder)
        advice = "run the command again (train.py, eval.py: with resume=auto)"
        _fail(f"stopped; {advice}", EXIT_INTERRUPTED)
    except InputError as error:
        if is_single:
            _close_log_files()
            discard_job_folder(folder)
        elif not isinstance(error, FolderTaken):
            mark_failed(folder, str(error))
        if _WANTS_TRACE:
            raise
        if is_single:
            _fail(str(error), EXIT_FAILED if isinstance(error, RunError) else EXIT_BAD_INPUT)
        _failed_points.append(str(error))  # raised here, Hydra would add lines of its own
        return None
    except Exception as error:
        if not is_single:
            mark_failed(folder, f"{type(error).__name__}: {_one_line(error)}")
        raise


def run_check(check: Callable[[DictConfig], Sequence[str]], cfg: DictConfig) -> None:
    """Run a script's pre-flight in the place of its job; problems end in exit code 2.

    Nothing stays of the Hydra folder, nor of the empty folders around it. Of several processes the
    first one looks.
    """
    if is_follower(cfg):
        return
    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        problems = list(check(cfg))
    finally:
        _close_log_files()
        discard_job_folder(folder)
        for parent in folder.parents:
            is_inside = Path.cwd() in parent.parents
            if not is_inside or not _removed_if_empty(parent):
                break
    if problems and HydraConfig.get().mode == RunMode.RUN:
        _fail("\n".join(problems), EXIT_BAD_INPUT)
    _failed_points.extend(problems)


def _removed_if_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def _run_point(job: Callable[[DictConfig, Path], Any], cfg: DictConfig, folder: Path) -> Any:
    """Run one point of a multirun unless its folder holds it already.

    Raises:
        FolderTaken: The folder holds a run of another config.
    """
    with claimed(folder):
        state = read_state(folder)
        taken = held_by_another(state, cfg)
        if taken is not None:
            raise FolderTaken(f"{folder}: {taken}; choose another with hydra.sweep.dir=...")
        if state.manifest is not None and state.status == FINISHED:
            logger.info("already finished: %s", folder)
            return state.manifest["results"]
        (folder / ERROR_FILE).unlink(missing_ok=True)
        if state.manifest is not None and "resume" in cfg:
            cfg.resume = str(folder)
        return job(cfg, folder)


def held_by_another(state: FolderState, cfg: DictConfig) -> str | None:
    """Return what keeps a config's run out of a folder; None where nothing does."""
    if state.status == BROKEN:
        return f"what the folder holds cannot be read: {state.error}"
    if state.manifest is None:
        return None
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    differing = differing_keys(config, state.manifest["config"])
    return (
        f"the folder holds a run of another config ({', '.join(differing)})" if differing else None
    )


def spans_processes(cfg: DictConfig) -> bool:
    """Return whether a config has a strategy for several processes."""
    return cfg.get("trainer") is not None and cfg.trainer.get("strategy") is not None


def started_by() -> str | None:
    """Return what has started other processes beside this one: torchrun, srun or nothing."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    return "srun" if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1 else None


def is_follower(cfg: DictConfig) -> bool:
    """Return whether this job is one of several processes and another one has rank 0."""
    name = {"torchrun": "RANK", "srun": "SLURM_PROCID", None: ""}[started_by()]
    return spans_processes(cfg) and int(os.environ.get(name, "0")) > 0


def _follow(
    job: Callable[[DictConfig, Path], Any], cfg: DictConfig, folder: Path, alone: bool
) -> Any:
    """Run a job beside rank 0, which holds the folder, keeps the log and says what went wrong."""
    _close_log_files()
    root = logging.getLogger()
    root.handlers = [item for item in root.handlers if not isinstance(item, logging.FileHandler)]
    root.setLevel(logging.ERROR)
    state = read_state(folder)
    if state.status == FINISHED or held_by_another(state, cfg) is not None:
        return None  # rank 0 does nothing either
    try:
        return job(cfg, folder)
    except Interrupted:
        sys.exit(EXIT_INTERRUPTED)
    except InputError as error:
        if not alone:
            return None
        discard_job_folder(folder)
        _fail(str(error), EXIT_BAD_INPUT)


def _close_log_files() -> None:
    """Close Hydra's log files; `logging.shutdown` would close what other libraries log to."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.close()


def discard_job_folder(folder: Path) -> None:
    """Remove a job's folder unless something else than Hydra's own files is in it."""
    if folder.is_dir() and all(
        path.name in (".hydra", LOCK_FILE) or path.suffix == ".log" for path in folder.iterdir()
    ):
        shutil.rmtree(folder, ignore_errors=True)


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    sys.exit(code)


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines) or type(error).__name__


def _explain(error: Exception) -> str:
    """Return one line for an error of Hydra, OmegaConf or the file system."""
    text = re.sub(r"; (Config search path:.*|To append to your config [^;]*)", "", _one_line(error))
    if isinstance(error, OSError) and error.strerror is not None:
        return (
            f"{error.filename or 'the output folder'}: {error.strerror}; choose a folder that can "
            "be written with hydra.run.dir=... (hydra.sweep.dir=... in a multirun)"
        )
    if isinstance(error.__cause__, ValidationError):  # what is wrong with the value
        text += f": {str(error.__cause__).splitlines()[0]}"
    key = getattr(error, "full_key", None)
    return f"{key}: {text}" if key and key not in text else text


def _suggestion(error: Exception, config_folder: Path, config_name: str) -> str:
    """Return a hint where an override names an unknown key: who has it, or which one is near."""
    found = re.search(r"Could not (?:override|append to config.*?) '([^']+)'", str(error))
    if found is None:
        return ""
    if str(error).startswith("In 'experiment/"):
        owners = [f"{path.stem}.py" for path in _primaries_with(found.group(1), config_folder)]
        return f"; the experiment is for {' and '.join(owners)}" if owners else ""
    group, _, name = found.group(1).rpartition(".")
    choices = sorted((config_folder / group).glob("*.yaml")) if group else []
    owners = [f"{group}={path.stem}" for path in choices if name in set(OmegaConf.load(path))]
    if owners:
        return f"; it is a key of {', '.join(owners)}"
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder), version_base="1.3"):
        keys = list(_keys(compose(config_name)))
    siblings = [key for key in keys if group and key.startswith(f"{group}.")]
    siblings += [f"{group}.{key}" for path in choices for key in _own_keys(path)]
    near = {key.removeprefix(f"{group}."): key for key in siblings} or {key: key for key in keys}
    close = difflib.get_close_matches(name if siblings else found.group(1), near, n=1, cutoff=0.5)
    return (
        f"; did you mean {near[close[0]]}?"
        if close
        else f"; known keys: {', '.join(near.values())}"
    )


def _primaries_with(group: str, config_folder: Path) -> list[Path]:
    """Return the configs of the scripts that have a group."""
    found = []
    for path in sorted(config_folder.glob("*.yaml")):
        config: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        if any(group in entry for entry in config.get("defaults", []) if isinstance(entry, dict)):
            found.append(path)
    return found


def _own_keys(path: Path) -> list[str]:
    """Return the keys that a choice of a group sets."""
    return [str(key) for key in OmegaConf.load(path) if not str(key).startswith(("_", "defaults"))]


def _keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys that a user may set, groups among them."""
    for key in map(str, node):
        if not key.startswith("_"):
            yield f"{prefix}{key}"
            child = node._get_node(key)
            if isinstance(child, DictConfig):
                yield from _keys(child, f"{prefix}{key}.")
