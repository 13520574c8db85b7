"""`benchmarks` is no package: its scripts find each other as they do when they are run."""

import sys

from composed import ROOT

sys.path.append(str(ROOT / "benchmarks"))
