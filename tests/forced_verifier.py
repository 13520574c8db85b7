"""A verifier that passes what a test wants: all of a block, nothing, or a pattern of it."""

from dataclasses import replace

import torch

from diversed.core.verifiers import StaticVerifier

WEIGHT = 0.5

PATTERNS = {
    "all accepted": lambda column, token: True,
    "all rejected": lambda column, token: False,
    "alternating": lambda column, token: column % 2 == 0,
    "ragged": lambda column, token: token % 3 > 0,  # rows differ
}


class ForcedVerifier(StaticVerifier):
    """Passes what a pattern of (column, token) says; what replaces and follows is as usual."""

    def __init__(self, pattern, bonus="verifier"):
        super().__init__(WEIGHT, bonus)
        self.pattern = PATTERNS[pattern]

    def judge(self, view, draft_ids, tv):
        rows = draft_ids.tolist()
        passes = [[float(self.pattern(*pair)) for pair in enumerate(row)] for row in rows]
        return replace(super().judge(view, draft_ids, tv), accept_probs=torch.tensor(passes))
