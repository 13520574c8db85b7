"""The command: folders of runs in, one HTML file out."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from diversed.records.store import RecordsError, replace_file
from diversed.report.page import Limits, render
from diversed.report.runs import load_runs

logger = logging.getLogger(__name__)

FILE = "report.html"
_BAD_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a report; exit with one line and code 2 where the input is at fault.

    Args:
        arguments: Words of the command line; None for the process's own.
    """
    limits = Limits()
    parser = argparse.ArgumentParser(
        prog="python -m diversed.report",
        description="Write one HTML page that shows generated texts token by token.",
    )
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="RUN_DIR", help="a run, or a folder of runs"
    )
    parser.add_argument("--out", type=Path, help=f"default: {FILE} in the first RUN_DIR")
    parser.add_argument(
        "--num-prompts", type=_count, default=limits.num_prompts, help="most prompts (%(default)s)"
    )
    parser.add_argument(
        "--num-runs",
        type=_count,
        help=f"most runs in parallel (as many as RUN_DIR, {limits.num_runs} at least)",
    )
    parser.add_argument(
        "--max-kilobytes",
        type=_count,
        default=limits.num_bytes // 1000,
        help="size of the page that ends the prompts (%(default)s)",
    )
    options = parser.parse_args(arguments)
    out = options.out or options.folders[0] / FILE
    num_runs = options.num_runs
    if num_runs is None:
        num_runs = max(limits.num_runs, len(options.folders))
    try:
        limits = Limits(options.num_prompts, num_runs, options.max_kilobytes * 1000)
        page = render(load_runs(options.folders), limits)
        content = page.encode()
        replace_file(out, lambda partial: partial.write_bytes(content))
    except (RecordsError, OSError) as error:
        parser.exit(_BAD_INPUT, f"{error}\n")
    logger.info("%s (%d kB)", out, len(content) // 1000)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: must be at least 1")
    return number


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    main()
