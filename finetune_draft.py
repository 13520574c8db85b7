"""Fine-tune the draft of a pair: python finetune_draft.py data=arithmetic source=target."""

from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from diversed.config import run_check, run_job, run_script

CONFIG_FOLDER = Path(__file__).resolve().parent / "conf"


@hydra.main(version_base="1.3", config_path="conf", config_name="finetune_draft")
def main(cfg: DictConfig) -> Any:
    """Run one job."""
    from diversed.app import check, finetune_draft

    return run_check(check, cfg) if cfg.check else run_job(finetune_draft, cfg)


if __name__ == "__main__":
    run_script(main, CONFIG_FOLDER, "finetune_draft")
