"""The processes of one job: which one this is, how the others start, how all of them end together.

Lightning lays out devices and the process group; this module decides who the processes are:

- `trainer=default`: this process alone.
- `trainer=ddp`: the process that the user started has rank 0. Once its own set-up has passed it
  starts one more process per device (`app.rank`), which gets the composed config and the run's
  folder. So the job may stand anywhere, also in one point of a multirun, in a worker of Ray or in a
  task of Slurm; running the script's command again, as Lightning's own launcher does, would begin
  the whole multirun again, in another folder.
- `trainer=ddp` under torchrun, or under srun with several tasks: all of them are there already.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning import Fabric
from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from omegaconf import DictConfig

from diversed.app.runs import plain
from diversed.config import (
    InputError,
    RunError,
    discard_job_folder,
    spans_processes,
    started_by,
)
from diversed.records.folders import mark_failed
from diversed.records.store import MANIFEST_FILE
from diversed.training.distributed import from_first

logger = logging.getLogger(__name__)

Job = Callable[..., Any]
"""Called with config, folder and seat."""

_GRACE_S = 30  # for this process to find out that another one has failed
_LAST_WORDS_S = 2.0  # for a process that broke a connection to end
_CHANGED_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Seat:
    """The place of a process that rank 0 has started.

    Attributes:
        rank: 1 or more; 0 for the process that starts the others.
        port: Where rank 0 listens.
        ready: Told with one byte that the process is about to join the others.
    """

    rank: int
    port: int
    ready: BinaryIO | None = None


class SeatEnvironment(ClusterEnvironment):
    """Processes on one machine that know their ranks: nothing is read from the environment."""

    def __init__(self, seat: Seat) -> None:
        """Take a place."""
        super().__init__()
        self.seat = seat
        self._world_size = 1

    @property
    def creates_processes_externally(self) -> bool:
        """Keep Lightning from starting processes."""
        return True

    @property
    def main_address(self) -> str:
        """This machine."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """Where rank 0 listens."""
        return self.seat.port

    @staticmethod
    def detect() -> bool:
        """Leave Lightning's own choice alone."""
        return False

    def world_size(self) -> int:
        """Number of processes."""
        return self._world_size

    def set_world_size(self, size: int) -> None:
        """Learn the number of processes."""
        self._world_size = size

    def global_rank(self) -> int:
        """This process."""
        return self.seat.rank

    def set_global_rank(self, rank: int) -> None:
        """Tell Lightning's loggers and messages who they belong to."""
        rank_zero_only.rank = rank

    def local_rank(self) -> int:
        """This process; all are on one machine."""
        return self.seat.rank

    def node_rank(self) -> int:
        """The only machine."""
        return 0


def job_fabric(cfg: DictConfig, seat: Seat | None) -> Fabric:
    """Return the devices and processes that a config asks for; nothing is started.

    Args:
        cfg: With the group `trainer`.
        seat: Of a process that rank 0 has started; None in every other one.

    Raises:
        InputError: There are no such devices, or the processes and the settings do not fit.
    """
    settings = cfg.trainer
    launcher = started_by()
    environment: ClusterEnvironment
    if seat is None and launcher is not None and spans_processes(cfg):
        environment = (
            TorchElasticEnvironment()
            if launcher == "torchrun"
            else SLURMEnvironment(auto_requeue=False)
        )
    else:
        environment = SeatEnvironment(seat or Seat(rank=0, port=find_free_network_port()))
    try:
        fabric = Fabric(
            accelerator=accelerator(cfg),
            devices=settings.devices,
            num_nodes=settings.get("num_nodes", 1),
            strategy="ddp" if spans_processes(cfg) else "auto",
            plugins=[environment],
        )
    except (MisconfigurationException, ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"trainer.accelerator={settings.accelerator}, trainer.devices={settings.devices}: "
            f"{' '.join(str(error).split())}"
        ) from error
    _check_processes(cfg, fabric, environment)
    return fabric


def accelerator(cfg: DictConfig) -> str:
    """Return Lightning's name of the kind of device; `auto` is an NVIDIA or AMD GPU, or the CPU."""
    name = str(cfg.trainer.accelerator)
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def environment_plugins(fabric: Fabric) -> list[ClusterEnvironment]:
    """Return what makes a Trainer agree with a job's Fabric on who its processes are."""
    environment = getattr(fabric.strategy, "cluster_environment", None)
    return [] if environment is None else [environment]


def _check_processes(cfg: DictConfig, fabric: Fabric, environment: ClusterEnvironment) -> None:
    settings = cfg.trainer
    if not spans_processes(cfg):
        if fabric.world_size > 1:
            raise InputError(
                f"trainer.devices={settings.devices}: several devices need trainer=ddp"
            )
        if started_by() == "torchrun" and int(os.environ["WORLD_SIZE"]) > 1:
            raise InputError("torchrun has started several processes: add trainer=ddp")
        return
    num_nodes = settings.get("num_nodes", 1)
    if isinstance(environment, SeatEnvironment):
        if num_nodes > 1:
            raise InputError(
                f"trainer.num_nodes={num_nodes}: several machines need torchrun or srun, which "
                "start a process for each device; see docs/scaling.md"
            )
        return
    wanted, found = fabric.strategy.num_processes * num_nodes, environment.world_size()
    if wanted != found:
        raise InputError(
            f"trainer.devices={settings.devices}, trainer.num_nodes={num_nodes}: that is {wanted} "
            f"processes, {started_by()} has started {found}"
        )


@contextmanager
def joined(job: Job, cfg: DictConfig, folder: Path, fabric: Fabric) -> Iterator[Path]:
    """Bring the processes of a job together, and let them end together.

    Args:
        job: What the processes that are still to be started shall do.
        cfg: Their config.
        folder: The run's folder, as this process sees it.
        fabric: From `job_fabric`.

    Yields:
        The run's folder: that of rank 0. An empty job folder of another rank is removed.

    Raises:
        RunError: A process that was started here has failed.
    """
    if fabric.world_size == 1:
        yield folder
        return
    environment = fabric.strategy.cluster_environment
    variables = {name: os.environ.get(name) for name in _CHANGED_VARIABLES}
    num_threads = torch.get_num_threads()
    children = None
    if isinstance(environment, SeatEnvironment):
        if environment.seat.ready is not None:
            environment.seat.ready.write(b"1")
            environment.seat.ready.close()
        elif environment.seat.rank == 0:
            children = _Children(job, cfg, folder, environment.seat.port, fabric.world_size)
    try:
        if children is not None:
            children.wait_until_ready()
        fabric.launch()
        run_folder = from_first(folder)
        if run_folder.resolve() != folder.resolve():
            discard_job_folder(folder)
        yield run_folder
        if children is not None:
            children.wait()
    except (RuntimeError, torch.distributed.DistError) as error:
        failed = children.failed(_LAST_WORDS_S) if children is not None else None
        if failed is None or type(error).__module__.startswith("diversed"):
            raise  # this process knows better what went wrong
        if (folder / MANIFEST_FILE).is_file():
            mark_failed(folder, failed)
        raise RunError(failed) from error
    finally:
        if children is not None:
            children.end()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        torch.set_num_threads(num_threads)
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class _Children:
    """Ranks 1 and up, on this machine; they end with this process, however it ends."""

    def __init__(
        self, job: Job, cfg: DictConfig, folder: Path, port: int, num_processes: int
    ) -> None:
        order = {
            "job": f"{job.__module__}:{job.__qualname__}",
            "config": plain(cfg),
            "folder": str(folder),
            "port": port,
        }
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._is_ending = False
        paths = os.pathsep.join(path for path in sys.path if path)
        for rank in range(1, num_processes):
            process = subprocess.Popen(
                [sys.executable, "-m", "diversed.app.rank"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": paths, "LOCAL_RANK": str(rank)},
                start_new_session=True,  # Ctrl-C goes to rank 0, which tells the others
            )
            self._processes[rank] = process
            if process.stdin is None or process.stdout is None:
                raise RuntimeError("a process was started without pipes")
            process.stdin.write(json.dumps({**order, "rank": rank}).encode() + b"\n")
            process.stdin.flush()  # it stays open: where it closes, the process ends itself
        threading.Thread(target=self._watch, daemon=True).start()

    def wait_until_ready(self) -> None:
        """Return once every process is about to join; RuntimeError where one ended instead."""
        for rank, process in self._processes.items():
            if process.stdout is None or process.stdout.read(1) != b"1":
                process.wait()
                raise RuntimeError(self.failed() or f"the process of rank {rank} did not join")

    def wait(self) -> None:
        """Return once all have ended well."""
        for process in self._processes.values():
            process.wait()
        failed = self.failed()
        if failed is not None:
            raise RuntimeError(failed)

    def failed(self, patience_s: float = 0.0) -> str | None:
        """Return which process has failed, if any has or does so in the next seconds."""
        until = time.monotonic() + patience_s
        while True:
            for rank, process in self._processes.items():
                if process.poll():
                    return (
                        f"the process of rank {rank} ended with exit code {process.returncode}; "
                        "what it wrote stands above"
                    )
            if time.monotonic() >= until:
                return None
            time.sleep(0.05)

    def end(self) -> None:
        """End those that are still there."""
        self._is_ending = True
        for process in self._processes.values():
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        for process in self._processes.values():
            process.wait()

    def _watch(self) -> None:
        """End this process where another one failed and it does not notice, waiting on a GPU."""
        while not self._is_ending and self.failed() is None:
            time.sleep(1)
        patience = time.monotonic() + _GRACE_S
        while not self._is_ending and time.monotonic() < patience:
            time.sleep(1)
        if not self._is_ending:
            logger.error("%s", self.failed())
            os._exit(1)
