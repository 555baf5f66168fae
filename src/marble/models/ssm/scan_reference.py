"""The state-space recurrences as they are defined, one token at a time: what the fast paths are proven equal to.

T tokens, d channels, n states per channel; dt > 0 is the step, A < 0 the decay rate.
"""

from __future__ import annotations

import torch
from torch import Tensor


def selective_scan_reference(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Mamba-1: h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t, y_t = C_t h_t + D x_t.

    Args:
        x: (T, d).
        dt: (T, d).
        A: (d, n).
        B: (T, n).
        C: (T, n).
        D: (d,).

    Returns:
        (T, d).
    """
    h = torch.zeros_like(A)  # (d, n)
    y = []
    for x_t, dt_t, B_t, C_t in zip(x, dt, B, C, strict=True):
        h = torch.exp(dt_t[:, None] * A) * h + (dt_t * x_t)[:, None] * B_t
        y.append(h @ C_t + D * x_t)
    return torch.stack(y) if y else torch.zeros_like(x)


def selective_scan_2d_reference(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """2DMamba: a scan along every row, then the same decay along every column.

    r_ij = a_ij r_i,j-1 + dt_ij B_ij x_ij, h_ij = a_ij h_i-1,j + r_ij, y_ij = C_ij h_ij + D x_ij with a = exp(dt A).

    Args:
        x: (H, W, d).
        dt: (H, W, d).
        A: (d, n).
        B: (H, W, n).
        C: (H, W, n).
        D: (d,).

    Returns:
        (H, W, d).
    """
    height, width = x.shape[:2]
    above = [torch.zeros_like(A)] * width  # h of the row above, (d, n) per column
    y = []
    for i in range(height):
        r = torch.zeros_like(A)
        for j in range(width):
            a = torch.exp(dt[i, j, :, None] * A)
            r = a * r + (dt[i, j] * x[i, j])[:, None] * B[i, j]
            above[j] = a * above[j] + r
            y.append(above[j] @ C[i, j] + D * x[i, j])
    return torch.stack(y).view(x.shape) if y else torch.zeros_like(x)


def s4d_reference(u: Tensor, dt: Tensor, A: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """S4D with B = 1, zero-order hold: h_t = e^{dt A} h_{t-1} + (e^{dt A} - 1)/A u_t, y_t = 2 Re(C h_t) + D u_t.

    Args:
        u: (T, d) real.
        dt: (d,) real.
        A: (d, n) complex; the conjugates are the other n states.
        C: (d, n) complex.
        D: (d,) real.

    Returns:
        (T, d) real.
    """
    decay = torch.exp(dt[:, None] * A)  # (d, n)
    gain = (decay - 1) / A
    h = torch.zeros_like(A)
    y = []
    for u_t in u:
        h = decay * h + gain * u_t[:, None]
        y.append(2 * (C * h).sum(-1).real + D * u_t)
    return torch.stack(y) if y else torch.zeros_like(u)
