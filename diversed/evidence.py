"""Run the sweeps of the evidence on the embedded pair, then draw and tabulate what they show.

    python -m diversed.evidence                       the front: static weights, heads (make front)
    python -m diversed.evidence --all                 and controls, rivals, rules, dial, ablations
    python -m diversed.evidence dial --output FOLDER  one study
    python -m diversed.evidence --show                only draw what is there

A study is a file of sweeps/evidence/. Finished points are skipped, so the same command goes on
where a stopped one was. Below the output folder (default: outputs/evidence) stand a folder of runs
for each study, and evidence/ with figures and tables.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from diversed.config import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from diversed.notebooks import Shown, show
from diversed.notebooks.evidence import FRONT_STUDIES, STUDIES, Evidence
from diversed.notebooks.showing import OUT_VARIABLE, SKIPPED

SWEEPS = Path(__file__).resolve().parents[1] / "sweeps" / "evidence"
DRAWN_FOLDER = "evidence"


def main() -> None:
    """Run the studies that the command line names, and draw all that are there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="*", help=f"some of {', '.join(STUDIES)}")
    parser.add_argument("--all", action="store_true", help="every study")
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument("--output", type=Path, default=Path("outputs/evidence"))
    arguments = parser.parse_args()
    if unknown := set(arguments.studies) - set(STUDIES):
        sys.stderr.write(f"{min(unknown)}: no such study; there are {', '.join(STUDIES)}\n")
        sys.exit(EXIT_BAD_INPUT)
    chosen = STUDIES if arguments.all else arguments.studies or FRONT_STUDIES
    codes = [] if arguments.show else run_studies(chosen, arguments.output)
    os.environ[OUT_VARIABLE] = str(arguments.output / DRAWN_FOLDER)
    for shown in draw(arguments.output):
        _tell(shown, Console())
    sys.exit(max(codes, default=0))


def run_studies(studies: Sequence[str], output: Path) -> list[int]:
    """Run sweeps one after the other, up to the first that the user stops; return exit codes."""
    codes: list[int] = []
    for study in studies:
        command = [sys.executable, "-m", "diversed.sweep", str(SWEEPS / f"{study}.yaml")]
        process = subprocess.run(  # noqa: S603 - our own module, no shell
            [*command, "--output", str(output / study)], check=False
        )
        codes.append(process.returncode)
        if process.returncode == EXIT_INTERRUPTED:
            break
    return codes


def draw(output: Path) -> list[Shown]:
    """Draw figures and tables of the studies below a folder into the environment's FIGURES_OUT."""
    evidence = Evidence(output)
    return [
        show("evidence_front", evidence.front_figure),
        show("evidence_dial", evidence.dial_figure),
        show("evidence_groups", evidence.group_table),
        show("evidence_rivals", evidence.rival_table),
        show("evidence_controls", evidence.control_table),
    ]


def _tell(shown: Shown, console: Console) -> None:
    text = shown.bundle["text/plain"]
    if shown.kind != SKIPPED and shown.files:
        text = f"{text}\n{', '.join(map(str, shown.files))}"
    console.print(text, soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    main()
