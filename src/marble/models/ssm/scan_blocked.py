"""A linear recurrence in few launches, for accelerators: there a launch per token would cost more than the arithmetic.

Tokens are taken in blocks of `BLOCK`. What each block makes of nothing is found for all blocks at once; from block end
to block end that is the same recurrence again, with the product of each block's decays, and is solved in the same way;
with the states that blocks then start from, all of them are run at once. T tokens take about 2 BLOCK log T / log BLOCK
launches and a fixed multiple of the arithmetic. Decays are only ever multiplied, never divided out: nothing overflows.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: tokens; fewer make more levels, more make longer loops: four takes the fewest launches
BLOCK = 4


def scan_forwards(decay: Tensor, state: Tensor) -> None:
    """state_t += decay_t state_{t-1} from the second token on, in place; both (T, ...)."""
    tokens, blocks = len(state), len(state) // BLOCK
    done = 1
    if blocks > 1:
        done = blocks * BLOCK
        a, h = (_cut(rows[:done], blocks) for rows in (decay, state))  # (blocks, BLOCK, ...)
        ends = h[:, 0]
        for k in range(1, BLOCK):
            ends = torch.addcmul(h[:, k], a[:, k], ends)
        scan_forwards(a.prod(1), ends)
        h[1:, 0].addcmul_(a[1:, 0], ends[:-1])
        for k in range(1, BLOCK):
            h[:, k].addcmul_(a[:, k], h[:, k - 1])
    for t in range(done, tokens):
        state[t].addcmul_(decay[t], state[t - 1])


def scan_backwards(decay: Tensor, adjoint: Tensor) -> None:
    """adjoint_t += decay_t adjoint_{t+1} up to the last token but one, in place; both (T, ...)."""
    tokens, blocks = len(adjoint), len(adjoint) // BLOCK
    left = tokens - 1
    if blocks > 1:
        left = tokens - blocks * BLOCK
        a, g = (_cut(rows[left:], blocks) for rows in (decay, adjoint))  # (blocks, BLOCK, ...)
        starts = g[:, -1]
        for k in reversed(range(BLOCK - 1)):
            starts = torch.addcmul(g[:, k], a[:, k], starts)
        scan_backwards(a.prod(1), starts)
        g[:-1, -1].addcmul_(a[:-1, -1], starts[1:])
        for k in reversed(range(BLOCK - 1)):
            g[:, k].addcmul_(a[:, k], g[:, k + 1])
    for t in reversed(range(left)):
        adjoint[t].addcmul_(decay[t], adjoint[t + 1])


def _cut(rows: Tensor, blocks: int) -> Tensor:
    """(blocks * BLOCK, ...) -> (blocks, BLOCK, ...), of the same memory."""
    return rows.view(blocks, BLOCK, *rows.shape[1:])
