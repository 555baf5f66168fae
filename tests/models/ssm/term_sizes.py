"""How large the terms are that a gradient is the sum of.

Terms may cancel down to a number so small that no order of summation agrees with another on its last digits. What
rounding may do is therefore measured against the terms, not against their sum. Every function here is a gradient with
each elementary product replaced by its size, so it bounds the gradient itself from above.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad, silu

from marble.models.ssm.ssd import Mamba2
from marble.models.ssm.ssd_reference import recurrence, softplus

#: what an element of a gradient may be off by in float64, as a part of its terms. The exponent of a decay of e^-80 is
#: rounded to 80 times the last digit of 1, so twice that many roundings are allowed.
ROUNDING = 160 * torch.finfo(torch.float64).eps


def selective_scan_terms(loop: Callable[..., Tensor], inputs: Sequence[Tensor], cotangent: Tensor) -> dict[str, Tensor]:
    """Of x, dt, A, B, C, D of a selective scan, given its recurrence and the cotangent of its output."""
    x, dt, A, B, C, D = (value.detach().double() for value in inputs)
    leaves = [v.requires_grad_() for v in (x.abs(), dt.clone(), A.clone(), B.abs(), C.abs(), D.abs())]
    gx, gdt, gA, gB, gC, gD = torch.autograd.grad((loop(*leaves) * cotangent.abs()).sum(), leaves)
    written = (gx - D.abs() * cotangent.abs()) * x.abs() / dt  # what dt gets through dt * x
    return {"x": gx, "dt": 2 * written - gdt, "A": gA, "B": gB, "C": gC, "D": gD}  # gdt = written - through the decay


def mamba2_terms(block: Mamba2, tokens: Tensor, d_out: Tensor, d_state: Tensor) -> dict[str, Tensor]:
    """Of the tokens and of every parameter of the block, given the cotangents of its output and of its last state."""
    shape, T = block.shape, len(tokens)
    w = {name: parameter.detach() for name, parameter in block.named_parameters()}
    rows = tokens @ w["in_proj.weight"].t()
    z, raw, dt_row = torch.split(rows, [shape.inner, shape.convolved, shape.heads], dim=1)
    padded = pad(raw.t(), (shape.conv - 1, 0))  # (channels, K-1+T)
    u = conv1d(padded, w["conv1d.weight"], w["conv1d.bias"], groups=shape.convolved).t()
    width = shape.groups * shape.state
    x, B, C = torch.split(silu(u), [shape.inner, width, width], dim=1)
    scanned = (x.reshape(T, shape.heads, -1), B.reshape(T, shape.groups, -1), C.reshape(T, shape.groups, -1))
    dt, A = softplus(dt_row + w["dt_bias"]), -torch.exp(w["A_log"])

    y, _ = recurrence(scanned[0], dt, A, scanned[1], scanned[2], w["D"])
    gated = y.reshape(T, -1) * silu(z)
    by_group = gated.view(T, shape.groups, -1)
    inverse = torch.rsqrt(by_group.square().mean(-1, keepdim=True) + shape.eps)  # (T, G, 1)
    unit = by_group * inverse

    of_normal = d_out.abs() @ w["out_proj.weight"].abs()  # (T, H*P)
    of_unit = (of_normal * w["norm.weight"].abs()).view_as(unit)
    of_gated = (of_unit + unit.abs() * (of_unit * unit.abs()).mean(-1, keepdim=True)) * inverse
    of_gated = of_gated.reshape(T, -1)
    of_y = (of_gated * silu(z).abs()).view_as(y)

    leaves = [v.abs().requires_grad_() for v in (*scanned, w["D"])] + [v.clone().requires_grad_() for v in (dt, A)]
    y_abs, state = recurrence(leaves[0], leaves[4], leaves[5], leaves[1], leaves[2], leaves[3])
    of_x, of_B, of_C, of_D, of_dt, of_A = torch.autograd.grad(
        (y_abs * of_y).sum() + (state * d_state.abs()).sum(), leaves
    )
    written = ((of_x - w["D"].abs()[:, None] * of_y) * scanned[0].abs()).sum(-1) / dt
    of_dt = 2 * written - of_dt

    of_act = torch.cat([part.reshape(T, -1) for part in (of_x, of_B, of_C)], dim=1)
    of_u = of_act * _silu_slope(u).abs()
    taps = w["conv1d.weight"][:, 0]  # (channels, K)
    later = pad(of_u.t(), (0, shape.conv - 1))  # (channels, T+K-1)
    of_raw = torch.zeros_like(of_u.t())
    for k, shift in enumerate(range(shape.conv - 1, -1, -1)):
        of_raw += later[:, shift : shift + T] * taps[:, k, None].abs()
    of_taps = torch.stack([(of_u.t() * padded[:, k : k + T].abs()).sum(1) for k in range(taps.shape[1])], dim=1)
    of_dt_row = of_dt * -torch.expm1(-dt)
    of_rows = torch.cat([of_gated * (y.reshape(T, -1) * _silu_slope(z)).abs(), of_raw.t(), of_dt_row], dim=1)
    return {
        "tokens": of_rows @ w["in_proj.weight"].abs(),
        "in_proj.weight": of_rows.t() @ tokens.abs(),
        "conv1d.weight": of_taps[:, None],
        "conv1d.bias": of_u.sum(0),
        "dt_bias": of_dt_row.sum(0),
        "A_log": of_A * -A,
        "D": of_D,
        "norm.weight": (of_normal * unit.reshape(T, -1).abs()).sum(0),
        "out_proj.weight": d_out.abs().t() @ (unit.reshape(T, -1) * w["norm.weight"]).abs(),
    }


def worst_of_the_terms(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], terms: Mapping[str, Tensor]
) -> tuple[float, str]:
    """The largest error of any element as a part of its terms, and whose it is."""

    def error(name: str) -> float:
        assert torch.isfinite(found[name]).all(), f"{name} is not finite"
        off = (found[name].double() - expected[name]).abs()
        return float((off / terms[name].clamp_min(torch.finfo(torch.float64).tiny)).max())

    return max((error(name), name) for name in terms)


def _silu_slope(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return gate * (1 + x * (1 - gate))
