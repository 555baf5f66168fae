"""Pieces that attention-based models share: the token embedding, the (gated) attention score, what is shown of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from marble.errors import InputError
from marble.specs import unknown_choice

# in place where the way back looks at the result: fresh pages cost more than arithmetic
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": partial(nn.ReLU, inplace=True), "gelu": nn.GELU}


def token_embedding(dim: int, hidden: int, act: str = "relu", dropout: float = 0.0) -> nn.Sequential:
    """Linear(dim, hidden) - activation - dropout, applied to every token."""
    if act not in _ACTIVATIONS:
        raise InputError(unknown_choice("act", act, list(_ACTIVATIONS)))
    return nn.Sequential(nn.Linear(dim, hidden), _ACTIVATIONS[act](), nn.Dropout(dropout))


class GatedAttention(nn.Module):
    """Raw attention scores w tanh(V h), gated: w (tanh(V h) * sigmoid(U h)); every layer has a bias.

    Args:
        dim: width of the tokens h.
        hidden: width of V and U.
        heads: how many scores each token gets.
        gated: whether U exists.
        dropout: of both branches, after their activation.
    """

    def __init__(self, dim: int, hidden: int, heads: int = 1, gated: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.value = nn.Linear(dim, hidden)
        self.gate = nn.Linear(dim, hidden) if gated else None
        self.score = nn.Linear(hidden, heads)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor) -> Tensor:
        """(N, dim) tokens -> (heads, N) scores before the softmax."""
        # in place: the products' way back does not look at their results
        x = self.dropout(self.value(h).tanh_())  # (N, hidden)
        if self.gate is not None:
            x = x * self.dropout(self.gate(h).sigmoid_())
        scores: Tensor = self.score(x)  # (N, heads)
        return scores.T


def of_predicted(values: Tensor, logits: Tensor, dim: int) -> Tensor:
    """What `values` hold along `dim` for the class of the largest logit; the host never learns which that is."""
    return values.index_select(dim, logits.argmax().view(1)).squeeze(dim)
