"""Columns of a record: one row per (run, prompt, sample).

A run's own settings stand once, in its manifest, and are joined to every row when records are read.
"""

from collections.abc import Mapping

SCHEMA_VERSION = 2

ADDED_ROW_COLUMNS: Mapping[int, Mapping[str, object]] = {2: {"is_prompt_cut": False}}
"""Schema version -> columns that it added to a row, with their value in older records."""

ADDED_RUN_COLUMNS: Mapping[int, Mapping[str, object]] = {2: {"setting": ""}}
"""The same for what it added to a run."""

ROW_COLUMNS: Mapping[str, str] = {
    "prompt_id": "the example's id",
    "sample": "number of the sample of this prompt, from 0",
    "prompt": "text that was completed; a conversation as its template renders it",
    "is_prompt_cut": "whether the end of the task's long text is missing, for want of context",
    "text": "completion, without its end token",
    "answer": "what the task extracted from it, or null",
    "reference": "the right answer as the task states it, or null",
    "quality": "reward of the completion, in [0, 1]; null where `error` is set",
    "error": "why there is no completion or score; null otherwise",
    "end_reason": "eos, stop or length",
    "is_truncated": "whether the completion was cut at the token cap",
    "num_tokens": "emitted tokens",
    "num_drafted": "drafted tokens",
    "num_judged": "drafted tokens that were accepted or rejected",
    "num_accepted": "accepted tokens",
    "num_recovered": "tokens drawn in the place of a rejected one",
    "num_bonus": "tokens drawn after a block that was accepted whole",
    "num_blocks": "target calls, the prompt's prefill not counted",
    "num_draft_calls": "draft calls, the prompt's prefill not counted",
    "expected_acceptance": "the objective's A: mean over emitted tokens of sum min(q, pi)",
    "expected_acceptance_sum": "the same as a sum over emitted tokens",
    "bias": "mean over emitted tokens of (1 - w) TV(q, p)",
    "mean_target_weight": "mean of w over emitted tokens",
    "seconds": "wall-clock time of the row's batch divided by its rows",
}

RUN_COLUMNS: Mapping[str, str] = {
    "run_name": "name of the run, unique within a table",
    "method": "name of the verifier",
    "model": "name of the pair",
    "data": "name of the task",
    "split": "split of the task",
    "seed": "seed of the run",
    "setting": "the verifier's own settings as text, such as `lenience=0.5 residual=target`",
    "target_weight": "w of a static verifier, else null",
    "acceptance_weight": "lambda that the head was trained with, else null",
    "dial": "shift of the logit of w, else null",
    "bonus": "what bonus tokens are drawn from",
    "draft_length": "N",
    "temperature": "0 is greedy",
    "top_k": "0 keeps all",
    "top_p": "1 keeps all",
    "max_new_tokens": "token cap of a completion",
    "batch_size": "rows decoded together",
}

TRACE_COLUMNS: Mapping[str, str] = {
    "prompt_id": "the example's id",
    "sample": "number of the sample",
    "block": "index of the verification round",
    "position": "index among the completion's tokens",
    "block_position": "index within the block",
    "token_id": "the token",
    "token": "its text",
    "status": "accepted, rejected, unjudged, recovered or bonus",
    "target_prob": "p(token)",
    "draft_prob": "q(token)",
    "tv_distance": "TV(q, p) at the position",
    "target_weight": "w at the position",
    "accept_prob": "min(1, pi(token) / q(token)) of a drafted token",
    "expected_acceptance": "sum min(q, pi) at the position",
}

EMITTED = ("accepted", "recovered", "bonus")
"""Statuses of a trace's entries that stand in the completion."""

HEADS = ("diversed", "features_head")
"""Methods that are learnt heads, controls not among them."""

MANIFEST_KEYS: Mapping[str, str] = {
    "schema_version": "version of the records' schema",
    "run": "what the run is: the columns of a run",
    "status": "running, finished, failed, stopped (by the user) or killed",
    "results": "summary numbers of the evaluation; of training, the best rollout and validation",
    "config": "the resolved config",
    "pair": "names, revisions, sizes and fingerprints of the weights of target and draft",
    "data": "where the task's rows came from and how they were posed",
    "command": "the script and its arguments",
    "git": "commit of the code, and whether the checkout was changed",
    "versions": "versions of the packages that make the numbers",
    "python": "version of Python",
    "platform": "operating system and machine",
    "device": "where the models were: cpu, or the name of the GPU",
    "num_threads": "CPU threads of one operation",
    "written_at": "time of writing, UTC",
    "head_run": "columns of the run that trained the head, where that is another one and at hand",
    "head": "fingerprint of the weights of the head that was evaluated, once it is",
}
"""Keys of a manifest; one that failed, or was stopped or killed, has `error` beside them."""
