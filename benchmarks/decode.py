"""Time decoding against its peers, in one process, every prompt with each system in turn.

    python benchmarks/decode.py                                    # the embedded pair
    python benchmarks/decode.py --target DIR --draft DIR --dtype bfloat16 --prompts prompts.txt

Systems: ours (lossless, N drafted tokens), ours plain, transformers' assisted generation with the
same N (constant schedule, no confidence threshold), transformers' plain `generate`, and flashspec
where it is installed. All sample the target's own law. Prints Markdown: tokens per second relative
to a peer with 95 % bootstrap intervals over prompts, where our time goes, how far that is from the
floor (the weights that calls must read, at the speed at which this machine copies memory), batch
against batch 1, and the best N of ours and of transformers. With `--head` DIVERSED, whose
law is its own, is a system, too; `--no-peers` times ours alone.
"""

import argparse
import importlib.util
import logging
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from diversed import AutoregressiveVerifier, DecodeSettings, LosslessVerifier, SpeculativeDecoder
from diversed.core import loop, noise
from diversed.core.kernel import Verifier
from diversed.evaluation.timing import speed_ratio, timed
from diversed.generation import head_verifier
from diversed.models.checkpoint import load_head, new_head
from diversed.models.hf import HFLanguageModel
from diversed.models.loading import ModelPair, ModelSource, load_pair
from diversed.tasks.arithmetic import ArithmeticTask

System = Callable[[Sequence[str], int], int]
"""(prompts of one batch, seed) -> number of new tokens."""

NUM_WARMUP = 2


@dataclass(frozen=True)
class Options:
    """What is timed."""

    num_prompts: int
    max_new_tokens: int
    draft_length: int
    batch_size: int
    lengths: Sequence[int] = ()
    has_peers: bool = True


def ours(pair: ModelPair, options: Options, verifier: Any) -> System:
    """Return our decoder as a system."""
    settings = DecodeSettings(options.max_new_tokens, options.draft_length)

    def run(prompts: Sequence[str], seed: int) -> int:
        decoder = SpeculativeDecoder(pair, verifier, replace(settings, seed=seed))
        return int(decoder.generate(prompts).result.counts.emitted.sum())

    return run


def transformers_system(pair: ModelPair, options: Options, *, is_assisted: bool) -> System:
    """Return `generate`, plain or assisted by the draft, at temperature 1 without filters."""
    draft = pair.draft.model
    extra: dict[str, Any] = {}
    if is_assisted:
        config = draft.generation_config
        config.num_assistant_tokens = options.draft_length
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0
        extra["assistant_model"] = draft

    def run(prompts: Sequence[str], seed: int) -> int:
        torch.manual_seed(seed)
        ids = torch.tensor([pair.tokenizer(prompts[0]).input_ids], device=pair.device)
        output = pair.target.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=options.max_new_tokens,
            eos_token_id=list(pair.eos_ids),
            pad_token_id=pair.eos_ids[0],
            **extra,
        )
        return int(output.shape[1] - ids.shape[1])

    return run


def flashspec_system(pair: ModelPair, options: Options) -> System:
    """Return flashspec's eager loop with one model drafter and a fixed N."""
    import flashspec
    from flashspec.engine import HuggingFaceDrafter, TargetModel

    device, dtype = pair.device, pair.target.model.dtype
    target = TargetModel("target", device, dtype, model=pair.target.model)
    drafter = HuggingFaceDrafter("draft", device, dtype, model=pair.draft.model)
    drafter.set_temperature(1.0)

    def run(prompts: Sequence[str], seed: int) -> int:
        sampling = flashspec.SamplingConfig(temperature=1.0, seed=seed, gamma=options.draft_length)
        config = flashspec.FlashSpecConfig(
            device=str(device),
            compile=False,
            drafter_strategy="bandit",
            bandit=flashspec.BanditConfig(n_arms=1),
            sampling=sampling,
        )
        engine = flashspec.SpeculativeEngine(config, [drafter], target)
        ids = torch.tensor([pair.tokenizer(prompts[0]).input_ids], device=device)
        result = engine.generate(
            ids, max_new_tokens=options.max_new_tokens, eos_token_ids=list(pair.eos_ids)
        )
        return int(result.n_tokens_generated)

    return run


def interleaved(systems: dict[str, System], prompts: Sequence[str]) -> pd.DataFrame:
    """Return run_name, prompt, num_tokens, seconds of every system on every prompt."""
    for system in systems.values():
        for index in range(NUM_WARMUP):
            system(prompts[index : index + 1], index)
    names, rows = list(systems), []
    for index, prompt in enumerate(prompts):
        shift = index % len(names)  # no system always follows the same one
        for name in names[shift:] + names[:shift]:
            started = time.perf_counter()
            num_tokens = systems[name]([prompt], index)
            rows.append((name, index, num_tokens, time.perf_counter() - started))
    return pd.DataFrame(rows, columns=["run_name", "prompt", "num_tokens", "seconds"])


@dataclass
class Calls:
    """What the forward calls of one model took, prefill included.

    Attributes:
        seconds: In its layers and its output head.
        num_bytes: Weights that the calls had to read: all but the input embedding, once a call.
    """

    seconds: float = 0.0
    num_bytes: int = 0


@contextmanager
def call_timers(pair: ModelPair) -> Iterator[dict[str, Calls]]:
    """Time every call of both models' own modules.

    Yields:
        "target" and "draft" -> what their calls took.
    """
    calls = {"target": Calls(), "draft": Calls()}
    handles = []
    for role, lm in (("target", pair.target), ("draft", pair.draft)):
        embedding = lm.model.get_input_embeddings()
        layers, output_head = lm.model.base_model, lm.model.get_output_embeddings()
        sizes = {
            layers: num_bytes(layers) - num_bytes(embedding),
            output_head: num_bytes(output_head),
        }
        starts: list[float] = []

        def before(*_: Any, starts: list[float] = starts) -> None:
            starts.append(time.perf_counter())

        def after(
            module: Any, *_: Any, starts: Any = starts, own: Calls = calls[role], sizes: Any = sizes
        ) -> None:
            own.seconds += time.perf_counter() - starts.pop()
            own.num_bytes += sizes[module]

        for module in sizes:
            handles += [
                module.register_forward_pre_hook(before),
                module.register_forward_hook(after),
            ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def num_bytes(module: torch.nn.Module) -> int:
    """Return the size of a module's weights."""
    return sum(weight.numel() * weight.element_size() for weight in module.parameters())


def memory_bandwidth(device: torch.device, size: int = 2**28, num_repeats: int = 5) -> float:
    """Return the bytes per second, read and written, of the fastest of some copies of 1 GiB."""
    source = torch.ones(size, dtype=torch.float32, device=device)
    copy = torch.empty_like(source)
    times = [timed(partial(copy.copy_, source), device)[1] for _ in range(num_repeats)]
    return 2 * source.numel() * source.element_size() / min(times)


class TimedVerifier:
    """A verifier that notes the seconds of its own work."""

    def __init__(self, verifier: Verifier) -> None:
        """Wrap a verifier."""
        self._verifier = verifier
        self.name, self.is_lossy, self.bonus = verifier.name, verifier.is_lossy, verifier.bonus
        self.settings = verifier.settings
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        """Return a method of the rule, timed."""
        method = getattr(self._verifier, name)

        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = method(*arguments)
            self.seconds += time.perf_counter() - started
            return result

        return timed


SAMPLING = [(loop, "logits_to_probs"), (loop, "stochastic_accepts")]
SAMPLING += [(noise, name) for name in ("stream_keys", "uniform", "exponential", "race")]
CACHE = [(HFLanguageModel, "retain")]


@contextmanager
def function_timer(places: Sequence[tuple[Any, str]]) -> Iterator[dict[str, float]]:
    """Time functions of modules, or methods of classes.

    Yields:
        Function name -> seconds.
    """
    seconds: dict[str, float] = defaultdict(float)
    kept = {place: getattr(*place) for place in places}

    def clocked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments)
            seconds[name] += time.perf_counter() - started
            return result

        return run

    for (owner, name), function in kept.items():
        setattr(owner, name, clocked(name, function))
    try:
        yield seconds
    finally:
        for (owner, name), function in kept.items():
            setattr(owner, name, function)


def where_time_goes(
    pair: ModelPair, options: Options, verifier: Any, prompts: Sequence[str], bandwidth: float
) -> dict[str, float]:
    """Return our tokens per second, shares of our decoding time by part, and that of the floor."""
    timed_verifier: Any = verifier
    if not isinstance(verifier, AutoregressiveVerifier):
        timed_verifier = TimedVerifier(verifier)
    system, size = ours(pair, options, timed_verifier), options.batch_size
    system(prompts[:size], 0)
    if isinstance(timed_verifier, TimedVerifier):
        timed_verifier.seconds = 0.0
    with (
        call_timers(pair) as calls,
        function_timer(SAMPLING) as sampling,
        function_timer(CACHE) as cache,
    ):
        started = time.perf_counter()
        tokens = sum(
            system(prompts[start : start + size], start) for start in range(0, len(prompts), size)
        )
        total = time.perf_counter() - started
    parts = {
        "target": calls["target"].seconds,
        "draft": calls["draft"].seconds,
        "head and verifier": getattr(timed_verifier, "seconds", 0.0),
        "sampling": sum(sampling.values()),
        "cache": sum(cache.values()),
    }
    parts["the rest"] = total - sum(parts.values())
    parts["floor"] = sum(one.num_bytes for one in calls.values()) / bandwidth
    return {"tokens/s": tokens / total} | {name: part / total for name, part in parts.items()}


def tokens_per_second(system: System, prompts: Sequence[str], batch_size: int) -> float:
    """Return the speed of a system over all prompts, in batches."""
    system(prompts[:batch_size], 0)
    started = time.perf_counter()
    starts = range(0, len(prompts), batch_size)
    tokens = sum(system(prompts[start : start + batch_size], start) for start in starts)
    return tokens / (time.perf_counter() - started)


def report(pair: ModelPair, options: Options, prompts: Sequence[str], head: str | None) -> None:
    """Print everything."""
    learnt = head_verifier(load_head(head, pair) if head else new_head(pair).eval())
    peers: dict[str, System] = {}
    if options.has_peers:
        peers["transformers assisted"] = transformers_system(pair, options, is_assisted=True)
        peers["transformers plain"] = transformers_system(pair, options, is_assisted=False)
        if importlib.util.find_spec("flashspec") is not None:
            peers["flashspec"] = flashspec_system(pair, options)
        else:
            show("flashspec: skipped, not installed (`pip install 'diversed[bench]'`)\n")
    systems = {
        "ours": ours(pair, options, LosslessVerifier()),
        "ours plain": ours(pair, options, AutoregressiveVerifier()),
        **({"ours DIVERSED": ours(pair, options, learnt)} if head else {}),
        **peers,
    }
    speeds = interleaved(systems, prompts)
    show(f"**Batch 1, N = {options.draft_length}, {len(prompts)} prompts, T = 1**\n")
    show("| system | tokens/s | ours / it |\n| --- | --- | --- |")
    for name in systems:
        rows = speeds[speeds["run_name"] == name]
        speed = rows["num_tokens"].sum() / rows["seconds"].sum()
        ratio = "" if name == "ours" else interval(speed_ratio(speeds, "ours", name))
        show(f"| {name} | {speed:.1f} | {ratio} |")

    bandwidth = memory_bandwidth(pair.device)
    show(f"\n**Where our time goes** (shares of decode time; memory {bandwidth / 1e9:.1f} GB/s)\n")
    verifiers: list[Any] = [LosslessVerifier(), learnt, AutoregressiveVerifier()]
    for size in dict.fromkeys((1, options.batch_size)):
        one = replace(options, batch_size=size)
        shares = {v.name: where_time_goes(pair, one, v, prompts, bandwidth) for v in verifiers}
        show(f"batch {size}\n\n{pd.DataFrame(shares).T.round(3).to_markdown()}\n")

    if options.batch_size > 1:
        sizes = (1, options.batch_size)
        show(f"**Batch {options.batch_size} against batch 1** (tokens/s)\n")
        show(f"| system | batch 1 | batch {sizes[1]} | ratio |\n| --- | --- | --- | --- |")
        for name in (name for name in systems if name.startswith("ours")):
            single, batched = (tokens_per_second(systems[name], prompts, size) for size in sizes)
            show(f"| {name} | {single:.1f} | {batched:.1f} | {batched / single:.2f} |")

    if options.lengths:
        columns = ["ours", "transformers assisted"] if options.has_peers else ["ours"]
        show("\n**By draft length** (tokens/s at batch 1)\n")
        show(f"| N | {' | '.join(columns)} |\n{'| --- ' * (len(columns) + 1)}|")
    for length in options.lengths:
        one = replace(options, draft_length=length)
        by_length = {"ours": ours(pair, one, LosslessVerifier())}
        if options.has_peers:
            by_length[columns[1]] = transformers_system(pair, one, is_assisted=True)
        sums = interleaved(by_length, prompts).groupby("run_name").sum()
        per_second = sums["num_tokens"] / sums["seconds"]
        show(f"| {length} | {' | '.join(f'{per_second[name]:.1f}' for name in columns)} |")


def interval(ratio: Any) -> str:
    """Return an estimate with its interval as text."""
    return f"{ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def load(
    target: str | None, draft: str | None, dtype: str, names: Sequence[str] | None = None
) -> ModelPair:
    """Return the pair in two folders, or the embedded one; `names` as a head knows them."""
    if (target is None) != (draft is None):
        raise ValueError("--target and --draft go together")
    paths = (target or "builtin:target", draft or "builtin:draft")
    names = names or (paths if target else ("diversed/tiny-target", "diversed/tiny-draft"))
    sources = [ModelSource(name, path=path) for name, path in zip(names, paths, strict=True)]
    target_source, draft_source = sources
    return load_pair(target_source, draft_source, dtype=dtype)


def show(text: str) -> None:
    """Write a line to the terminal."""
    print(text, flush=True)  # noqa: T201 - a benchmark reports on the terminal


def main() -> None:
    """Read the command line, load the pair, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="folder of the target; default: the embedded pair")
    parser.add_argument("--draft", help="folder of the draft")
    parser.add_argument("--names", nargs=2, help="of target and draft, as the head knows them")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=Path, help="text file, prompts separated by `---` lines")
    parser.add_argument("--head", help="a trained head; default: an untrained one")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--max-new-tokens", type=int, default=112)
    parser.add_argument("--draft-length", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--lengths", type=int, nargs="*", default=(1, 2, 3, 4, 5, 7), help="N")
    arguments = parser.parse_args()
    disable_progress_bar()
    set_verbosity_error()
    logging.getLogger("flashspec").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", FutureWarning)  # of flashspec's use of transformers
    try:
        pair = load(arguments.target, arguments.draft, arguments.dtype, arguments.names)
    except ValueError as error:
        parser.error(str(error))
    if arguments.prompts is not None:
        prompts = arguments.prompts.read_text().split("\n---\n")
    else:
        task = ArithmeticTask(num_train=1, num_validation=1, num_test=arguments.num_prompts)
        prompts = [task.prompt(example) for example in task.examples("test")]
    options = Options(
        min(arguments.num_prompts, len(prompts)),
        arguments.max_new_tokens,
        arguments.draft_length,
        arguments.batch_size,
        arguments.lengths,
        arguments.peers,
    )
    with torch.no_grad():
        report(pair, options, prompts[: options.num_prompts], arguments.head)


if __name__ == "__main__":
    main()
