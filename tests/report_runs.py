"""Runs on disk whose every token is written out by hand, for tests of the trace report."""

import math
from pathlib import Path

import pandas as pd

from diversed.records.schema import ROW_COLUMNS, RUN_COLUMNS, TRACE_COLUMNS
from diversed.records.store import write_manifest, write_records, write_trace

HOSTILE = "<script>window.wasRun = true</script>"
DRAFTED = ("accepted", "rejected", "unjudged")
EMITTED = ("accepted", "recovered", "bonus")


def block(*entries, weight=1.0):
    """Return a block: entries are (text, status, p, q, TV)."""
    return [(*entry, weight) for entry in entries]


def answer(prompt_id, blocks, *, quality=1.0, **changes):
    """Return a record and its trace; the text is the emitted tokens' but the end token's."""
    emitted = [text for entries in blocks for text, status, *_ in entries if status in EMITTED]
    counts = {f"num_{name}": 0 for name in ("accepted", "recovered", "bonus")}
    num_drafted = num_judged = 0
    for entries in blocks:
        for _, status, *_ in entries:
            num_drafted += status in DRAFTED
            num_judged += status in ("accepted", "rejected")
            if status in EMITTED:
                counts[f"num_{status}"] += 1
    weights = [entry[-1] for entries in blocks for entry in entries if entry[1] in EMITTED]
    weight = None if not weights or math.isnan(weights[0]) else sum(weights) / len(weights)
    record = dict.fromkeys(ROW_COLUMNS) | {
        "prompt_id": prompt_id,
        "sample": 0,
        "prompt": f"Question {prompt_id}?\n",
        "is_prompt_cut": False,
        "text": "".join(emitted).removesuffix("<eos>"),
        "quality": quality,
        "end_reason": "eos",
        "is_truncated": False,
        "num_tokens": len(emitted),
        "num_drafted": num_drafted,
        "num_judged": num_judged,
        "num_blocks": len(blocks),
        "num_draft_calls": num_drafted,
        "expected_acceptance": 0.75,
        "expected_acceptance_sum": 0.75 * len(emitted),
        "bias": 0.0,
        "mean_target_weight": weight,
        "seconds": 0.5,
        **counts,
    }
    record |= changes
    return record, _trace(record, blocks)


def failed(prompt_id, error):
    """Return the record of a prompt without a completion."""
    unset = {"prompt_id": prompt_id, "sample": 0, "prompt": f"Question {prompt_id}?\n"}
    return dict.fromkeys(ROW_COLUMNS) | unset | {"is_prompt_cut": False, "error": error}, []


def _trace(record, blocks):
    rows, start = [], 0
    for index, entries in enumerate(blocks):
        num_drafted = num_accepted = 0
        for text, status, target, draft, distance, weight in entries:
            place = num_drafted if status in DRAFTED else num_accepted
            verify = weight * target + (1 - weight) * draft
            rows.append(
                {
                    "prompt_id": record["prompt_id"],
                    "sample": record["sample"],
                    "block": index,
                    "position": start + place,
                    "block_position": place,
                    "token_id": len(rows),
                    "token": text,
                    "status": status,
                    "target_prob": target,
                    "draft_prob": draft,
                    "tv_distance": distance,
                    "target_weight": weight,
                    "accept_prob": min(1.0, verify / draft) if status in DRAFTED else math.nan,
                    "expected_acceptance": 1 - weight * distance,
                }
            )
            num_drafted += status in DRAFTED
            num_accepted += status == "accepted"
        start += sum(entry[1] in EMITTED for entry in entries)
    return rows


def write_run(folder, name, answers, *, method="lossless", has_trace=True, **run_columns):
    """Write a run's folder and return it."""
    run = dict.fromkeys(RUN_COLUMNS) | {
        "run_name": name,
        "method": method,
        "model": "pair",
        "data": "questions",
        "split": "test",
        "seed": 0,
        "setting": "",
        "draft_length": 3,
        "temperature": 1.0,
    }
    manifest = {
        "run": run | run_columns,
        "git": {"sha": "0123456789abcdef", "is_dirty": False},
        "versions": {"diversed": "1.2.3"},
        "pair": {"target": {"name": "big"}, "draft": {"name": "small"}},
        "device": "cpu",
        "written_at": "2026-01-02T03:04:05+00:00",
    }
    write_manifest(folder, manifest)
    write_records(folder, [record for record, _ in answers])
    if has_trace:
        rows = [row for _, trace in answers for row in trace]
        write_trace(folder, pd.DataFrame(rows, columns=list(TRACE_COLUMNS)))
    return Path(folder)


def acceptance_run(folder, name, acceptance, **columns):
    """Write a run of one prompt and one token with a given acceptance A."""
    entries = block(("x", "bonus", 1, 1, 0))
    return write_run(
        folder / name, name, [answer("a", [entries], expected_acceptance=acceptance)], **columns
    )


def write_examples(folder):
    """Write three runs over three prompts and return their folders.

    Both speculative runs reject once; `static` is wrong on b, where its text is hostile; c is
    scored 0.25 by all. Plain decoding has no draft.
    """
    nan = math.nan
    lossless = [
        answer(
            "a",
            [
                block(
                    ("It", "accepted", 0.6, 0.5, 0.2),
                    (" was", "rejected", 0.1, 0.8, 0.7),
                    (" so", "unjudged", 0.99996, 0.4, 0.6),
                    (" is", "recovered", 0.9, 0.2, 0.7),
                ),
                block((" 4", "accepted", 1.0, 0.97, 0.00002), ("<eos>", "bonus", 0.7, 0.3, 0.4)),
            ],
            reference="4",
            answer="4",
        ),
        answer("b", [block(("7\n8", "accepted", 0.25, 0.5, 0.3), ("<eos>", "bonus", 1, 1, 0))]),
        answer("c", [block(("x", "accepted", 0.5, 0.5, 0.1))], quality=0.25, end_reason="length"),
    ]
    static = [
        answer(
            "a", [block(("It is 4", "accepted", 0.3, 0.6, 0.35), weight=0.5)], end_reason="stop"
        ),
        answer(
            "b",
            [
                block(
                    (" 9", "rejected", 0.02, 0.62, 0.5),
                    (HOSTILE, "recovered", 0.5, 0.123456, 0.5),
                    weight=0.5,
                )
            ],
            quality=0.0,
            end_reason="length",
            prompt=f"Question b?\n{HOSTILE}",
            is_truncated=True,
        ),
        answer(
            "c",
            [block(("x", "bonus", 0.5, 0.5, 0.1), weight=0.5)],
            quality=0.25,
            end_reason="length",
        ),
    ]
    plain = [
        answer(
            name,
            [block((text, "bonus", 0.5, nan, nan), weight=nan)],
            quality=quality,
            end_reason="length",
            expected_acceptance=None,
        )
        for name, text, quality in (("a", "It is 4", 1.0), ("b", "7", 1.0), ("c", "x", 0.25))
    ]
    return [
        write_run(folder / "lossless", "exact", lossless),
        write_run(folder / "static", "mixed", static, method="static", target_weight=0.5),
        write_run(folder / "plain", "plain", plain, method="autoregressive", draft_length=None),
    ]
