"""The runs of `sweeps/evidence`, a folder for each sweep file, as the tables of their claims."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from diversed.evaluation.evidence import (
    by_seed,
    coin_flip,
    measure_against,
    measure_against_best,
    measure_groups,
)
from diversed.evaluation.summary import static_front_band, summarise
from diversed.figures.checks import MissingRecords
from diversed.figures.evidence_tables import control_table, group_table, rival_table
from diversed.figures.front import plot_front
from diversed.figures.labels import SETTING_COLUMNS
from diversed.figures.style import PANEL_COLUMNS
from diversed.notebooks.data import ANALYSIS, RECORDS_VARIABLE, open_records
from diversed.records.store import RecordsError

STUDIES = (
    *("static", "heads", "heads_mlp", "rules", "lossy", "controls", "dial", "ablations", "longer"),
)
"""Sweep files whose runs are compared, in the order of the tables."""

COMMITTED = ANALYSIS / "records" / "tiny"

FRONT_STUDIES = ("static", "heads", "heads_mlp")
"""What the claim itself needs."""

COIN_SHARES = (0.25, 0.5, 0.75)
_DRAWN = ("heads", "heads_mlp", "controls", "rules", "lossy")
_METHODS = {"heads_mlp": "diversed_mlp"}
_WEIGHTS = {"ablations": 1.5}  # of one arm lambda weighs a sum
_PLACES = [
    f"{name}{end}" for name in ("quality", "expected_acceptance") for end in ("", "_low", "_high")
]


def evidence_folder() -> Path:
    """Return the environment's RECORDS if it holds studies, else the committed ones."""
    given = Path(os.environ.get(RECORDS_VARIABLE) or COMMITTED)
    return given if all((given / name).is_dir() for name in ("static", "heads")) else COMMITTED


class Evidence:
    """The studies below a folder; those that are not there yet are left out of the tables."""

    def __init__(self, folder: Path) -> None:
        """Remember where to look.

        Args:
            folder: Holds a folder of runs for each of `STUDIES`.
        """
        self.folder = folder

    @cached_property
    def studies(self) -> dict[str, pd.DataFrame]:
        """Records by study.

        Raises:
            MissingRecords: There is no static front, or no head to measure.
        """
        found = {}
        for name in STUDIES:
            try:
                found[name] = open_records(self.folder / name).records
            except RecordsError:
                continue
        if missing := {"static", "heads"} - found.keys():
            raise MissingRecords(f"runs in {self.folder / min(missing)}: make front")
        return found

    @cached_property
    def groups(self) -> dict[str, dict[str, pd.DataFrame]]:
        """Records by study and group, and under "coin" flips between w = 0 and w = 1."""
        found = {name: by_seed(records) for name, records in self.studies.items()}
        weights = self.studies["static"].groupby("target_weight")
        if {0.0, 1.0} <= set(weights.groups):
            ends = [weights.get_group(weight) for weight in (0.0, 1.0)]
            flips = [coin_flip(ends[0], ends[1], share) for share in COIN_SHARES]
            found["coin"] = {str(flip["run_name"].iloc[0]): flip for flip in flips}
        return found

    @cached_property
    def measured(self) -> pd.DataFrame:
        """`evaluation.evidence.measure_groups` for every group, with its `study`."""
        static = self.studies["static"]
        parts = [
            measure_groups(groups, static, _WEIGHTS.get(study)).assign(study=study)
            for study, groups in self.groups.items()
            if study != "static"
        ]
        return pd.concat(parts, ignore_index=True)

    @cached_property
    def controls(self) -> pd.DataFrame:
        """`evaluation.evidence.measure_against` of the heads of each lambda: their controls.

        Raises:
            MissingRecords: There is no control.
        """
        if "controls" not in self.groups:
            raise MissingRecords(f"runs in {self.folder / 'controls'}: make evidence")
        parts = []
        for own in self.groups["heads"].values():
            weight = float(own["acceptance_weight"].iloc[0])
            rivals = {
                name: records
                for name, records in self.groups["controls"].items()
                if float(records["acceptance_weight"].iloc[0]) == weight
            }
            if rivals:
                parts.append(measure_against(own, rivals, self.studies["static"], weight))
        return pd.concat(parts, ignore_index=True)

    @cached_property
    def rivals(self) -> pd.DataFrame:
        """`evaluation.evidence.measure_against_best` of all heads, with their `study` and `group`.

        The families are the rules of "rules" and "lossy", by name.

        Raises:
            MissingRecords: There is no such rule.
        """
        families: dict[str, dict[str, pd.DataFrame]] = {}
        for study in ("lossy", "rules"):
            for name, records in self.groups.get(study, {}).items():
                families.setdefault(records["method"].iloc[0], {})[name] = records
        if not families:
            raise MissingRecords(f"runs in {self.folder / 'lossy'}: make evidence")
        parts = []
        for study in ("heads", "heads_mlp"):
            for name, own in self.groups.get(study, {}).items():
                weight = float(own["acceptance_weight"].iloc[0])
                table = measure_against_best(own, families, weight)
                parts.append(table.assign(study=study, group=name))
        return pd.concat(parts, ignore_index=True)

    @cached_property
    def band(self) -> pd.DataFrame:
        """The confidence band of the static hull, as `figures.front.plot_front` takes it."""
        static = self.studies["static"]
        own = {column: static[column].iloc[0] for column in PANEL_COLUMNS}
        return static_front_band(static).assign(**own)

    def points(self, studies: Sequence[str]) -> pd.DataFrame:
        """Return the rows of `figures.front.plot_front`: static runs, and a mean for each group."""
        numbers = self.measured.set_index(["study", "group"])
        rows = [summarise(self.studies["static"])]
        for study in studies:
            for name, records in self.groups.get(study, {}).items():
                first = records.iloc[0]
                row = {column: first[column] for column in (*PANEL_COLUMNS, *SETTING_COLUMNS)}
                row |= {"run_name": name, "method": _METHODS.get(study, first["method"])}
                row |= {column: numbers.loc[(study, name), column] for column in _PLACES}
                rows.append(pd.DataFrame([row]))
        table = pd.concat(rows, ignore_index=True)
        return table.astype(dict.fromkeys(SETTING_COLUMNS[:3], float))

    def front_figure(self) -> Figure:
        """Draw heads, rules and rivals over the static front; one point for each group of seeds."""
        return plot_front(self.points(_DRAWN), band=self.band, quality_label="accuracy")

    def dial_figure(self) -> Figure:
        """Draw one head with its dial turned, beside heads trained for their lambda."""
        return plot_front(self.points(("heads", "dial")), band=self.band, quality_label="accuracy")

    def group_table(self) -> pd.DataFrame:
        """Return every group's place, and its distance above the static front."""
        return group_table(self.measured)

    def rival_table(self) -> pd.DataFrame:
        """Return how far the heads lie above rules without training."""
        return rival_table(self.rivals)

    def control_table(self) -> pd.DataFrame:
        """Return how far the heads lie above each control."""
        return control_table(self.controls)
