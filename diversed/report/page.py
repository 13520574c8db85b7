"""Runs -> the text of one HTML page that needs nothing else, neither files nor network.

All text of records is escaped by the templates, and a content security policy lets no script run
but the page's own.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from diversed.core.checks import check_at_least_one
from diversed.records.store import RecordsError
from diversed.report import frame
from diversed.report.answers import OUTCOMES, Comparison, compare, order_prompts
from diversed.report.runs import Run, choose_runs

_FOLDER = Path(__file__).parent
_OUTCOME_NAMES = {"partial": "between 0 and 1"}
_OUTCOME_MARKS = {
    "right": "✓ right",
    "wrong": "✗ wrong",
    "partial": "quality",
    "error": "⚠ error",
}


@dataclass(frozen=True)
class Limits:
    """How much a page shows.

    Attributes:
        num_prompts: Most prompts.
        num_runs: Most runs whose texts stand side by side.
        num_bytes: Size that the page keeps below; one prompt is shown whatever its size.
    """

    num_prompts: int = 40
    num_runs: int = 3
    num_bytes: int = 600_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_at_least_one(name, value)


def render(runs: Sequence[Run], limits: Limits | None = None) -> str:
    """Return the report of some runs.

    Args:
        runs: At least one, as `runs.load_runs` returns them.
        limits: How much to show.

    Raises:
        RecordsError: Not one of the runs has a trace.
    """
    limits = limits or Limits()
    if not any(run.has_trace for run in runs):
        names = ", ".join(run.name for run in runs)
        raise RecordsError(f"no trace of {names}: evaluate with evaluation.writes_trace=true")
    shown = choose_runs(runs, limits.num_runs)
    prompt_ids = order_prompts(shown)
    page = _Page(runs, shown, prompt_ids)
    room = limits.num_bytes - len(page.around([], []).encode())
    articles: list[str] = []
    kept: list[Comparison] = []
    for comparison in compare(shown, prompt_ids[: limits.num_prompts]):
        article = page.article(comparison)
        room -= len(article.encode())
        if kept and room < 0:
            break
        articles.append(article)
        kept.append(comparison)
    return page.around(articles, kept)


class _Page:
    """The templates, with the runs of one report."""

    def __init__(self, runs: Sequence[Run], shown: Sequence[Run], prompt_ids: Sequence[str]):
        environment = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._article = environment.get_template("prompt.html.jinja")
        self._page = environment.get_template("page.html.jinja")
        self._runs, self._shown, self._prompt_ids = runs, shown, prompt_ids
        self._has_samples = any(run.records["sample"].max() > 0 for run in shown)

    def article(self, comparison: Comparison) -> str:
        """Return one prompt with its answers."""
        return self._article.render(
            comparison=comparison,
            runs=self._shown,
            facts=frame.facts,
            has_samples=self._has_samples,
            outcome_marks=_OUTCOME_MARKS,
        )

    def around(self, articles: Sequence[str], comparisons: Sequence[Comparison]) -> str:
        """Return the page with some prompts in it."""
        css, js = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
        shared, names = frame.shared_settings(self._runs), {run.name for run in self._shown}
        found = {
            answer.outcome for one in comparisons for answer in one.answers if answer is not None
        }
        return self._page.render(
            title=frame.title(self._runs),
            css=css,
            css_hash=_hash(css),
            js=js,
            js_hash=_hash(js),
            settings=[f"{frame.SETTINGS[name]} {value}" for name, value in shared.items()],
            columns=frame.column_names(),
            shown_rows=[frame.summary_row(run, shared) for run in self._shown],
            other_rows=[
                frame.summary_row(run, shared) for run in self._runs if run.name not in names
            ],
            notes=frame.notes(self._runs, self._shown, self._prompt_ids, comparisons),
            outcomes=[(name, _OUTCOME_NAMES.get(name, name)) for name in OUTCOMES if name in found],
            articles="".join(articles),
            num_comparisons=len(comparisons),
            origins=[frame.origin(run) for run in self._runs],
        )


def _hash(text: str) -> str:
    """Return the SHA-256 of an inline script or style, as a content security policy names it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
