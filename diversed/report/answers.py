"""Records and traces -> prompts with the answers of several runs, token by token."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from diversed.records.schema import EMITTED
from diversed.report.runs import Run

MISSING = "–"
OUTCOMES = ("right", "wrong", "partial", "error")
_NUM_SHADES = 10


@dataclass(frozen=True)
class Token:
    """One entry of a trace.

    Attributes:
        text: Its text; the token's id in angle brackets where a lone token has none.
        status: accepted, rejected, unjudged, recovered or bonus.
        shade: w in tenths, 0 to 10; None where there is no w.
        numbers: p, q, nu, TV, w and accept probability, as `short_number` writes them, between
            spaces.
    """

    text: str
    status: str
    shade: int | None
    numbers: str


@dataclass(frozen=True)
class Block:
    """One verification round: its index, the position of its first token, its entries.

    An entry's place in the block follows from their order: the drafted ones as drafted, then the
    recovered or bonus token at the place behind the accepted ones.
    """

    index: int
    start: int
    tokens: list[Token]

    @property
    def numbers(self) -> str:
        """Index and start, then the numbers of each token, between commas."""
        return ",".join([f"{self.index} {self.start}", *(token.numbers for token in self.tokens)])


@dataclass(frozen=True)
class Answer:
    """What one run made of a prompt.

    Attributes:
        run: Index of the run among those shown.
        outcome: right (quality 1), wrong (quality 0), partial (between) or error (no quality).
        row: The record; None where text or value is missing.
        blocks: Its tokens; empty without a trace.
        is_exact: Whether the tokens' texts, joined, are the record's text: a character may be
            spread over several tokens, and some tokenizers drop a lone token's space.
        has_own_prompt: Whether the run's prompt is not the one shown.
    """

    run: int
    outcome: str
    row: Mapping[str, Any]
    blocks: list[Block] = field(default_factory=list)
    is_exact: bool = True
    has_own_prompt: bool = False


@dataclass(frozen=True)
class Comparison:
    """One sample of one prompt under every run; None where a run has no such row."""

    prompt_id: str
    sample: int
    prompt: str
    reference: str | None
    is_prompt_cut: bool
    answers: list[Answer | None]


def order_prompts(runs: Sequence[Run]) -> list[str]:
    """Return the ids of all prompts: those that most runs completed first, then as recorded."""
    num_completed: dict[str, int] = {}
    for run in runs:
        has_text = run.records["text"].notna().groupby(run.records["prompt_id"], sort=False).sum()
        for prompt_id, number in has_text.items():
            name = str(prompt_id)
            num_completed[name] = num_completed.get(name, 0) + int(number)
    return sorted(num_completed, key=lambda prompt_id: -num_completed[prompt_id])


def compare(runs: Sequence[Run], prompt_ids: Sequence[str]) -> Iterable[Comparison]:
    """Yield every sample of some prompts under some runs, in the order of the ids.

    Args:
        runs: The runs; one without a trace gives texts without tokens.
        prompt_ids: Prompts to show.
    """
    rows = [_by_sample(run.records, prompt_ids) for run in runs]
    traces = [_by_sample(run.read_trace(), prompt_ids) if run.has_trace else {} for run in runs]
    samples: dict[str, set[int]] = {prompt_id: set() for prompt_id in prompt_ids}
    for table in rows:
        for prompt_id, sample in table:
            samples[prompt_id].add(sample)
    for prompt_id in prompt_ids:
        for sample in sorted(samples[prompt_id]):
            key = (prompt_id, sample)
            records = [_record(table[key]) if key in table else None for table in rows]
            first = next(record for record in records if record is not None)
            yield Comparison(
                prompt_id=prompt_id,
                sample=sample,
                prompt=first["prompt"] or "",
                reference=first["reference"],
                is_prompt_cut=bool(first["is_prompt_cut"]),
                answers=[
                    None
                    if record is None
                    else _answer(index, record, traces[index].get(key), first["prompt"])
                    for index, record in enumerate(records)
                ],
            )


def short_number(value: float) -> str:
    """Return three significant digits in few bytes: no leading zero, "-" for NaN.

    "1-" is a number below 1 that would round to 1.

    >>> [short_number(value) for value in (0.17851, 0.99996, 1.0, 0.0000234, float("nan"))]
    ['.179', '1-', '1', '2.34e-5', '-']
    """
    if pd.isna(value):
        return "-"
    text = f"{value:.3g}"
    if text == "1" and value < 1:
        return "1-"
    mantissa, _, exponent = text.partition("e")
    return mantissa.removeprefix("0") + f"e{int(exponent)}" if exponent else _bare(text)


def _bare(text: str) -> str:
    return text.removeprefix("0") if text.startswith("0.") else text


def _by_sample(
    table: pd.DataFrame, prompt_ids: Sequence[str]
) -> dict[tuple[str, int], pd.DataFrame]:
    kept = table[table["prompt_id"].isin(list(prompt_ids))]
    groups = [part for _, part in kept.groupby(["prompt_id", "sample"], sort=False)]
    return {(str(part["prompt_id"].iloc[0]), int(part["sample"].iloc[0])): part for part in groups}


def _record(rows: pd.DataFrame) -> dict[str, Any]:
    row = rows.iloc[0].to_dict()
    return {str(name): None if pd.isna(value) else value for name, value in row.items()}


def _answer(
    run: int, record: dict[str, Any], trace: pd.DataFrame | None, shown_prompt: str | None
) -> Answer:
    blocks = [] if trace is None else _blocks(trace)
    emitted = [] if trace is None else trace.loc[trace["status"].isin(EMITTED), "token"].tolist()
    if record["end_reason"] == "eos":
        emitted = emitted[:-1]  # the end token is no part of the text
    return Answer(
        run=run,
        outcome=_outcome(record["quality"]),
        row=record,
        blocks=blocks,
        is_exact="".join(emitted) == (record["text"] or ""),
        has_own_prompt=record["prompt"] != shown_prompt,
    )


def _outcome(quality: float | None) -> str:
    if quality is None:
        return "error"
    if 0 < quality < 1:
        return "partial"
    return "right" if quality >= 1 else "wrong"


def _blocks(trace: pd.DataFrame) -> list[Block]:
    blocks = []
    for index, entries in trace.groupby("block", sort=True):
        rows = entries.to_dict("records")
        start = rows[0]["position"] - rows[0]["block_position"]
        blocks.append(Block(int(str(index)), int(start), [_token(row) for row in rows]))
    return blocks


def _token(entry: Mapping[Any, Any]) -> Token:
    target, draft, weight = entry["target_prob"], entry["draft_prob"], entry["target_weight"]
    values = (
        target,
        draft,
        weight * target + (1 - weight) * draft,
        entry["tv_distance"],
        weight,
        entry["accept_prob"],
    )
    return Token(
        text=entry["token"] or f"⟨{entry['token_id']}⟩",
        status=entry["status"],
        shade=None if pd.isna(weight) else round(weight * _NUM_SHADES),
        numbers=" ".join(map(short_number, values)),
    )
