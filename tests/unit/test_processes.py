"""Which processes a job has: what fits a config, who starts them, how they end together."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from composed import ROOT, SMALL_TRAINING, composed
from process_jobs import rank_sum
from script_processes import PATIENCE_S, wait_for

from diversed import app
from diversed.app.processes import SeatEnvironment, job_fabric
from diversed.config import InputError, RunError, is_follower, started_by

TWO = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
SRUN = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NAME": "x",
}
NOTHING = dict.fromkeys({*TORCHRUN, *SRUN})


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch):
    """Return a setter of variables; torchrun's and srun's own are cleared first."""

    def set_variables(variables):
        for name, value in (NOTHING | variables).items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    set_variables({})
    return set_variables


BAD = {
    ("trainer.devices=2",): r"trainer\.devices=2: several devices need trainer=ddp",
    ("trainer=ddp", "trainer.devices=2", "trainer.num_nodes=2"): r"trainer\.num_nodes=2: several m",
    ("trainer.devices=0",): r"trainer\.accelerator=cpu, trainer\.devices=0: ",
    ("trainer.devices=many",): r"trainer\.devices=many: ",
    ("trainer.accelerator=quantum",): r"trainer\.accelerator=quantum, trainer\.devices=1: ",
}


@pytest.mark.parametrize(("overrides", "message"), BAD.items(), ids=[" ".join(key) for key in BAD])
def test_devices_that_do_not_fit_are_refused_by_name(environment, overrides, message):
    cfg = composed("eval", "trainer.accelerator=cpu", *overrides)
    with pytest.raises(InputError, match=message):
        job_fabric(cfg, None)


def test_torchrun_without_ddp_is_refused(environment):
    environment(TORCHRUN)
    with pytest.raises(InputError, match="torchrun has started several processes: add trainer=ddp"):
        job_fabric(composed("eval", "trainer.accelerator=cpu"), None)


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_processes_that_are_there_find_their_rank(environment, variables):
    environment(variables)
    fabric = job_fabric(composed("eval", *TWO), None)
    assert (fabric.global_rank, fabric.world_size) == (1, 2)
    assert not isinstance(fabric.strategy.cluster_environment, SeatEnvironment)


@pytest.mark.parametrize("variables", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_other_numbers_than_were_started_are_refused(environment, variables):
    environment(variables)
    with pytest.raises(
        InputError, match=r"devices=3, .* that is 3 processes, \w+run has started 2"
    ):
        job_fabric(composed("eval", *TWO[:2], "trainer.devices=3"), None)


def test_one_device_is_one_process(environment):
    for overrides in ((), ("trainer=ddp",)):
        cfg = composed("eval", *overrides, "trainer.accelerator=cpu", "trainer.devices=1")
        fabric = job_fabric(cfg, None)
        assert (fabric.global_rank, fabric.world_size) == (0, 1)
        assert fabric.device == torch.device("cpu")


FOLLOWERS = {
    "torchrun": (TORCHRUN, TWO, True),
    "srun": (SRUN, TWO, True),
    "the first": (TORCHRUN | {"RANK": "0"}, TWO, False),
    "one task": (SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, TWO, False),
    "agents side by side": (SRUN, ("trainer=default",), False),
    "nothing": ({}, TWO, False),
}


@pytest.mark.parametrize("name", FOLLOWERS)
def test_a_follower_is_one_of_several_processes_but_the_first(environment, name):
    variables, overrides, wanted = FOLLOWERS[name]
    environment(variables)
    assert is_follower(composed("eval", *overrides)) is wanted
    assert started_by() == (name if name in ("torchrun", "srun") else started_by())


def test_fewer_prompts_than_processes_are_refused(environment, tmp_path):
    cfg = composed("train", *SMALL_TRAINING, *TWO, "objective.prompts_per_step=1")
    with pytest.raises(InputError, match=r"objective\.prompts_per_step=1: .* of the 2 processes"):
        app.train(cfg, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no start", "the process of rank 1 ended with exit code 1"),
        ("breaks", "the process of rank 1 ended with exit code -9"),
    ],
)
def test_a_process_that_fails_ends_the_job(environment, tmp_path, name, message):
    before = {key: os.environ.get(key) for key in ("MASTER_ADDR", "MASTER_PORT")}
    with pytest.raises(RunError, match=message):
        rank_sum(composed("eval", *TWO, f"name='{name}'"), tmp_path)
    assert not torch.distributed.is_initialized()
    assert {key: os.environ.get(key) for key in before} == before
    assert list(tmp_path.iterdir()) == []


def is_alive(process_id):
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.slow
@pytest.mark.e2e
def test_the_other_processes_end_with_the_first_however_it_ends(environment, tmp_path):
    paths = os.pathsep.join(path for path in sys.path if path)
    program = "import process_jobs; process_jobs.main()"
    first = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), *TWO, "name=waits"],
        env=os.environ | {"PYTHONPATH": paths},
    )
    try:
        files = [tmp_path / "rank0", tmp_path / "rank1"]
        wait_for(first, lambda: all(file.is_file() and file.read_text() for file in files))
        second = int(files[1].read_text())
        assert is_alive(second)
        first.send_signal(signal.SIGKILL)
        until = time.monotonic() + PATIENCE_S
        while is_alive(second):
            assert time.monotonic() < until, "the second process outlived the first"
            time.sleep(0.1)
    finally:
        first.kill()
        first.wait()


def commands():
    """Return the commands of docs/scaling.md that run one job, as script and overrides."""
    for line in (ROOT / "docs" / "scaling.md").read_text().splitlines():
        words = shlex.split(line) if "trainer=ddp" in line or line.startswith("python ") else []
        for script in ("train.py", "eval.py"):
            if script in words and "-m" not in words:
                yield script.removesuffix(".py"), words[words.index(script) + 1 :]


def test_the_commands_of_the_document_compose(environment):
    found = list(commands())
    assert len(found) == 8
    for program, overrides in found:
        assert composed(program, *overrides).model.name in ("tiny", "llama")
