"""The ensemble head: hidden states of both models -> logit of the target's weight w."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from torch import Tensor, nn

from diversed.core.checks import check_shape
from diversed.core.probs import NUM_FEATURES

HEAD_KINDS = ("linear", "mlp")
HEAD_READS = ("hidden", "features", "constant", "prompt", "position", "shuffled")
"""What a head reads: hidden states, scalars alone, or what `diversed.controls` hands it."""

_CARD = """---
{{ card_data }}
---

# Verification head for {{ target.name }} and {{ draft.name }}

A head of [DIVERSED](https://arxiv.org/abs/2604.07622) for relaxed speculative decoding. While the
target reads what the draft proposed, the head reads the last hidden states of both and says, token
by token, how far to trust which: a drafted token is verified against w p + (1 - w) q, with p the
target's distribution, q the draft's and w the head's output. The output is *not* the target's own
law; how far quality and speed move was decided by the reward and the weight it was trained with.

Kind `{{ kind }}`, {{ num_parameters }} parameters, fp32. It fits this pair and no other:

| role | model | revision | hidden size |
| --- | --- | --- | --- |
| target | {{ target.name }} | {{ target.revision or "not from the hub" }} | {{ target_size }} |
| draft | {{ draft.name }} | {{ draft.revision or "not from the hub" }} | {{ draft_size }} |

## Use

With the package `diversed`:

```python
from diversed import SpeculativeDecoder
from diversed.generation import checkpoint_verifier
from diversed.models.loading import ModelSource, load_pair

pair = load_pair(ModelSource("{{ target.name }}"), ModelSource("{{ draft.name }}"))
decoder = SpeculativeDecoder(pair, checkpoint_verifier(pair, "{{ repo_id }}"))
print(decoder.generate(["Once upon a time"]).texts[0])
```

In a `generate` of transformers, with both models loaded as `target` and `draft`:

```python
from functools import partial

from diversed import diversed_generate
from diversed.generation import head_verifier
from diversed.models.head import EnsembleHead

verifier = head_verifier(EnsembleHead.from_pretrained("{{ repo_id }}"))
generate = partial(diversed_generate, draft=draft, verifier=verifier)
output = target.generate(**inputs, custom_generate=generate, do_sample=True, top_k=0)
```

Only the first way checks that the models are the head's own. `head_verifier` and
`checkpoint_verifier` take a `dial` that is added to the logit of w: above 0 towards the target's
quality, below 0 towards the draft's speed.
"""
_UNKNOWN_ID = "<id of this repository>"


class EnsembleHead(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="diversed",
    tags=["speculative-decoding"],
    model_card_template=_CARD,
):
    """A small network that reads both models' last hidden states and says how far to trust which.

    Inputs are standardised with the mean and spread of the first batch it is trained on; the output
    layer starts at zero, so training starts from one constant weight. Everything is fp32, whatever
    the models' dtype. `save_pretrained`, `from_pretrained` and `push_to_hub` come from
    `huggingface_hub`; `config.json` names the pair that the head belongs to.

    Source: DIVERSED (arXiv:2604.07622), ensemble head; its linear form is `kind="linear"`. The
    standardisation, the zero start and the scalar features are ours.
    """

    input_mean: Tensor
    input_scale: Tensor
    is_standardised: Tensor

    def __init__(
        self,
        draft_size: int,
        target_size: int,
        kind: str = "linear",
        width: int = 64,
        uses_features: bool = False,
        initial_weight: float = 0.9,
        reads: str = "hidden",
        pair: Mapping[str, Any] | None = None,
    ) -> None:
        """Build a head.

        Args:
            draft_size: Width of the draft's hidden states.
            target_size: Width of the target's hidden states.
            kind: "linear" (one layer) or "mlp" (one hidden layer).
            width: Hidden layer of the mlp; unused by the linear head.
            uses_features: Also read the scalars of `probs.distribution_features`; a head that reads
                "features" always does.
            initial_weight: w before training, in (0, 1).
            reads: One of `HEAD_READS`. With "features" the head ignores the hidden states; else it
                computes the same whatever it is, and who decodes with it must hand it what it
                names.
            pair: Names, revisions and sizes of the two models, stored in `config.json`.

        Raises:
            ValueError: A value is out of range.
        """
        super().__init__()
        self.kind = kind
        self.reads = reads
        if kind not in HEAD_KINDS:
            raise ValueError(f"head.kind={kind!r}: must be one of {', '.join(HEAD_KINDS)}")
        if reads not in HEAD_READS:
            raise ValueError(f"head.reads={reads!r}: must be one of {', '.join(HEAD_READS)}")
        if not 0 < initial_weight < 1:
            raise ValueError(f"head.initial_weight={initial_weight}: must lie in (0, 1)")
        if width < 1:
            raise ValueError(f"head.width={width}: must be at least 1")
        self.draft_size = draft_size
        self.target_size = target_size
        self.uses_features = uses_features or reads == "features"
        self.pair = dict(pair or {})
        input_size = 0 if reads == "features" else draft_size + target_size
        input_size += NUM_FEATURES if self.uses_features else 0
        self.register_buffer("input_mean", torch.zeros(input_size))
        self.register_buffer("input_scale", torch.ones(input_size))
        self.register_buffer("is_standardised", torch.tensor(False))
        if kind == "linear":
            output = nn.Linear(input_size, 1)
            self.layers = nn.Sequential(output)
        else:
            output = nn.Linear(width, 1)
            self.layers = nn.Sequential(nn.Linear(input_size, width), nn.Tanh(), output)
        nn.init.zeros_(output.weight)
        nn.init.constant_(output.bias, math.log(initial_weight / (1 - initial_weight)))

    def standardise(
        self,
        draft_hidden: Tensor,
        target_hidden: Tensor,
        features: Tensor | None,
        add: Callable[[Tensor], Tensor] = lambda values: values,
    ) -> None:
        """Set mean and spread of the inputs from a first batch; later calls change nothing.

        Args:
            draft_hidden: As in `forward`.
            target_hidden: As in `forward`.
            features: As in `forward`.
            add: Sums a tensor over the processes that hold parts of the batch (this one's may be
                empty); all of them call this method.
        """
        if bool(self.is_standardised):
            return
        inputs = self._inputs(draft_hidden, target_hidden, features).flatten(0, -2)
        number = inputs.shape[0]
        mean = spread = inputs.new_zeros(inputs.shape[1])
        if number:
            mean, spread = inputs.mean(0), inputs.std(0, correction=0)
        share = number / float(add(inputs.new_tensor(number)))
        whole_mean = add(mean * share)
        # Alone, share is 1, and the root of a square is exact: mean and spread are the batch's own.
        variance = add((spread.square() + (mean - whole_mean).square()) * share)
        self.input_mean.copy_(whole_mean)
        self.input_scale.copy_(variance.sqrt().clamp(min=1e-3))
        self.is_standardised.fill_(True)

    def forward(
        self, draft_hidden: Tensor, target_hidden: Tensor, features: Tensor | None = None
    ) -> Tensor:
        """Return the logit of w.

        Args:
            draft_hidden: h_q, shape [..., D_q].
            target_hidden: h_p, shape [..., D_p].
            features: Shape [..., 5]; needed if `uses_features`, ignored otherwise.

        Returns:
            Shape [...]; w is its sigmoid.

        Raises:
            ValueError: A width does not fit, or features are missing.
        """
        inputs = self._inputs(draft_hidden, target_hidden, features)
        logit: Tensor = self.layers((inputs - self.input_mean) / self.input_scale)
        return logit.squeeze(-1)

    def _inputs(
        self, draft_hidden: Tensor, target_hidden: Tensor, features: Tensor | None
    ) -> Tensor:
        leading = (None,) * (draft_hidden.dim() - 1)
        check_shape("draft_hidden", draft_hidden, (*leading, self.draft_size))
        check_shape("target_hidden", target_hidden, (*leading, self.target_size))
        parts = [] if self.reads == "features" else [draft_hidden.float(), target_hidden.float()]
        if self.uses_features:
            if features is None:
                raise ValueError("this head reads features of the distributions, but got none")
            parts.append(features.float())
        return torch.cat(parts, dim=-1)

    def generate_model_card(self, *args: Any, **details: Any) -> ModelCard:
        """Return the card of a hub repository: what the head is, its pair, how to use it.

        Args:
            args: As in `PyTorchModelHubMixin`.
            details: Values for the card's text, such as `repo_id`.
        """
        unknown = {"name": "an unnamed model", "revision": None}
        roles = {role: unknown | dict(self.pair.get(role, {})) for role in ("target", "draft")}
        own = {
            **roles,
            "kind": self.kind,
            "num_parameters": sum(parameter.numel() for parameter in self.parameters()),
            "target_size": self.target_size,
            "draft_size": self.draft_size,
            "repo_id": _UNKNOWN_ID,
        }
        card = super().generate_model_card(*args, **(own | details))
        on_hub = [role["name"] for role in roles.values() if role["revision"] is not None]
        if on_hub:
            card.data["base_model"] = on_hub
        return card

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the head as one commit, with a card that names `repo_id`.

        Args:
            repo_id: Owner and name of the repository, which is made if there is none.
            options: As in `PyTorchModelHubMixin.push_to_hub`.

        Returns:
            Address of the commit.
        """
        details = {"repo_id": repo_id} if "/" in repo_id else {}
        details |= options.pop("model_card_kwargs", None) or {}
        return super().push_to_hub(repo_id, model_card_kwargs=details, **options)
