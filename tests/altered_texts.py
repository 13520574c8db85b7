"""Completions of many kinds, made from a reference and the text that was posed."""

import random
import re


def altered(reference: str, posed: str) -> dict[str, str]:
    """Return kind -> completion: right, partly right, empty, and texts that no one expects."""
    words = reference.split()
    shuffled = words[:]
    random.Random(len(reference)).shuffle(shuffled)
    return {
        "reference": reference,
        "padded": f"\n\n  {reference} \t\n",
        "first three sentences": " ".join(re.split(r"(?<=[.!?])\s+", posed)[:3]),
        "shuffled": " ".join(shuffled),
        "half": " ".join(words[: len(words) // 2]),
        "twice": f"{reference}\n{reference}",
        "upper case": reference.upper(),
        "one word": words[0] if words else "",
        "empty": "",
        "blank": " \n\u00a0\t",
        "unicode": "\u4f60\u597d \U0001f600\u200d\U0001f680 \u202e"
        + reference.replace("e", "\u00e9").replace("n", "n\u0303\x00"),
    }
