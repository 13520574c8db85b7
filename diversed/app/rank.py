"""One more process of a job, started by `app.processes`: `python -m diversed.app.rank`.

Standard input brings one line, the order: which job, with what config, in which folder, as which
rank. It stays open while rank 0 is there. Nothing but errors is written, and no file.
"""

import json
import logging
import os
import sys
import threading
import warnings
from importlib import import_module
from pathlib import Path

from omegaconf import OmegaConf

from diversed.app.processes import Seat
from diversed.config import Interrupted

EXIT_ALONE = 3


def main() -> None:
    """Do what the order says, then end."""
    ready = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print belongs to the errors, rank 0 reads the pipe
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_rank_0, daemon=True).start()
    rank = order["rank"]
    logging.basicConfig(
        level=logging.ERROR, format=f"[rank {rank}][%(name)s][%(levelname)s] - %(message)s"
    )
    for name in ("lightning", "lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("diversed.training").setLevel(logging.WARNING)  # of its own prompts
    warnings.simplefilter("ignore", FutureWarning)  # rank 0 shows it
    module, _, name = order["job"].partition(":")
    job = getattr(import_module(module), name)
    seat = Seat(rank=rank, port=order["port"], ready=ready)
    try:
        job(OmegaConf.create(order["config"]), Path(order["folder"]), seat)
    except Interrupted:  # rank 0 says so
        return


def _end_with_rank_0() -> None:
    """End this process where rank 0 is gone, or has enough."""
    while os.read(0, 1):  # unbuffered: a lock on sys.stdin would get in the way of an orderly end
        pass
    os._exit(EXIT_ALONE)


if __name__ == "__main__":
    main()
