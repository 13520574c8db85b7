"""What the scripts print without running anything."""

from pathlib import Path

import pytest
import yaml
from composed import CONFIG_FOLDER, ROOT, composed
from omegaconf import OmegaConf
from script_processes import run_script

pytestmark = pytest.mark.e2e

SCRIPTS = [
    f"{path.stem}.py"
    for path in sorted(CONFIG_FOLDER.glob("*.yaml"))
    if (ROOT / f"{path.stem}.py").is_file()
]


def printed(folder: Path, *words: str) -> str:
    done = run_script(folder, *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert list(folder.iterdir()) == []
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_says_what_the_job_does_and_lists_groups_and_keys(tmp_path: Path, script: str) -> None:
    text = printed(tmp_path, script, "--help")
    header = yaml.safe_load((CONFIG_FOLDER / script).with_suffix(".yaml").read_text())
    assert text.startswith(header["hydra"]["help"]["header"])
    for group in ("model", "data", "verifier", "experiment", "debug"):
        choices = sorted(path.stem for path in (CONFIG_FOLDER / group).glob("*.yaml"))
        assert f"\n{group}: {', '.join(choices)}\n" in text
    for key in ("draft_length: 5", "seed: 0", "check: false"):
        assert key in text
    assert "powered by Hydra" not in text


def test_the_composed_config_is_printed(tmp_path: Path) -> None:
    words = ("experiment=table2_xsum_qwen", "debug=smoke", "seed=4")
    text = printed(tmp_path, "train.py", "--cfg", "job", *words)
    assert OmegaConf.create(text) == composed("train", *words)
