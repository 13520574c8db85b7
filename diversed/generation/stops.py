"""Stop strings: where a row's tokens complete one."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from diversed.core.ends import EndFinder


def stop_finder(tokenizer: PreTrainedTokenizerBase, stop_strings: Sequence[str]) -> EndFinder:
    """Return a function that finds the token which completes a stop string.

    Args:
        tokenizer: Turns generated ids into text.
        stop_strings: Non-empty strings, at least one.

    Returns:
        (generated ids, first index) -> index of the first token at or after `first` with which the
        text holds a stop string; None where there is none. A stop string that earlier tokens
        complete would have ended the row before.
    """
    # A stop string of n bytes spans at most n tokens, so older tokens need no second look.
    window = max(len(stop.encode()) for stop in stop_strings)

    def has_stop(ids: list[int]) -> bool:
        text = tokenizer.decode(ids, skip_special_tokens=True)
        return any(stop in text for stop in stop_strings)

    def find_end(ids: list[int], first: int) -> int | None:
        start = max(0, first - window)
        if not has_stop(ids[start:]):
            return None
        return next(index for index in range(first, len(ids)) if has_stop(ids[start : index + 1]))

    return find_end


def cut_at_stop(text: str, stop_strings: Sequence[str]) -> str:
    """Return the text in front of the first stop string."""
    places = [text.find(stop) for stop in stop_strings if stop in text]
    return text[: min(places)] if places else text
