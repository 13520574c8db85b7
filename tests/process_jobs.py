"""Jobs that `app.processes` starts further processes for, in tests."""

import os
import signal
import sys
from pathlib import Path

from composed import composed

from diversed.app.processes import job_fabric, joined
from diversed.training.distributed import add_up_numbers, process_rank


def rank_sum(cfg, folder, seat=None):
    """Write the sum of all ranks; `name` says who fails, and when."""
    fabric = job_fabric(cfg, seat)
    rank = 0 if seat is None else seat.rank
    if cfg.name == "no start" and rank == 1:
        sys.exit("rank 1 has no models")
    with joined(rank_sum, cfg, folder, fabric) as run_folder:
        if cfg.name == "breaks" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        (total,) = add_up_numbers([process_rank() + 1], fabric.device)
        if cfg.name == "waits":
            (run_folder / f"rank{rank}").write_text(str(os.getpid()))
            while True:
                signal.pause()
        (run_folder / f"rank{rank}").write_text(str(int(total)))
    return total


def main():
    """Be the process that the user starts: FOLDER and overrides."""
    rank_sum(composed("eval", *sys.argv[2:]), Path(sys.argv[1]))
