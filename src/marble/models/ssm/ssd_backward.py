"""Gradients of `ssd_fast`, written out: a segment is recomputed from its projected rows and the state at its start.

With dy given, and dS' the gradient of the state the chunk hands on (letters as in `ssd_fast`):

    dM = dy x^T                     dx = M^T dy + exp(a_Q - b) (B dS')
    dC = dCB B + (exp(a) dy) S^T    dB = dCB^T C + (exp(a_Q - b) x) dS'^T       dCB = sum over heads of dM * mask
    dS = exp(a_Q) dS' + C^T (exp(a) dy)

The gradient of step k's decay is the sum of dM * M over all pairs (j < k <= i) around it, and of what passes it on the
way from the last state or to the next one. These sums are formed as such, never as differences of larger ones, so
decays down to e^-80 keep all their digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marble.models.ssm.ssd_fast import Decay, Scanned, SegmentScan
from marble.models.ssm.ssd_reference import SsdShape, SsdWeights
from marble.native.layout import CHUNK


class SegmentGradient(SegmentScan):
    """Runs the segments of one sequence from the last to the first, adding up the gradients of the weights."""

    def __init__(self, weights: SsdWeights, shape: SsdShape, d_state: Tensor | None, chunk: int = CHUNK) -> None:
        super().__init__(weights, shape, chunk)
        self.d_state = torch.zeros_like(self.state)  # gradient of the state after the segment at hand
        if d_state is not None:
            self.d_state.copy_(_like(self.state, d_state))
        self.d_taps = torch.zeros_like(self.taps)
        self.d_conv_bias = torch.zeros_like(self.conv_bias)
        self.d_dt_bias, self.d_D = torch.zeros_like(self.dt_bias), torch.zeros_like(self.D)
        self.d_A = torch.zeros_like(self.A, dtype=self.sum_dtype)
        self._next_du = self.taps.new_zeros(
            self.shape.conv - 1, self.shape.convolved
        )  # of the first rows of the next segment

    def recompute(self, rows: Tensor, state: Tensor) -> Tensor:
        """The gated tokens (L, H*P) of a segment that starts from `state`."""
        self.state.copy_(_like(self.state, state))
        return self.forward(rows, keep=True)

    def restore(self, rows: Tensor, scanned: Scanned) -> Tensor:
        """The same, from what `forward_for_later` kept."""
        raise NotImplementedError

    def backward(self, rows: Tensor, d_gated: Tensor) -> Tensor:
        """Gradient (L, z|x|B|C|dt) of the segment just recomputed; it lives in a reused buffer."""
        shape, scratch = self.shape, self.scratch
        L = len(d_gated)
        d_rows = scratch("d_rows", L, shape.projected)
        gate, y = self._gate(rows), scratch("y", L, shape.inner)
        dy = torch.ops.aten.silu.out(gate, out=scratch("dy", L, shape.inner)).mul_(d_gated)
        torch.ops.aten.silu_backward.grad_input(d_gated.mul_(y), gate, grad_input=d_rows[:, : shape.inner])
        self._backward_scan(dy, d_rows[:, -shape.heads :])
        self._backward_convolution(rows, d_rows[:, shape.inner : shape.inner + shape.convolved])
        return d_rows

    def weight_gradients(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Of conv_weight, conv_bias, dt_bias, A_log, D."""
        d_A_log = (self.d_A * self.A).to(self.A.dtype)
        return self.d_taps.t().unsqueeze(1), self.d_conv_bias, self.d_dt_bias, d_A_log, self.d_D

    def _backward_scan(self, dy: Tensor, d_dt_rows: Tensor) -> None:
        shape, scratch = self.shape, self.scratch
        L = len(dy)
        act, d_act = scratch("act", L, shape.convolved), scratch("d_act", L, shape.convolved)
        d_step = scratch("d_step", L, shape.heads)  # of dt*A
        d_log_dt = scratch("d_log_dt", L, shape.heads)
        for slot, ((at, q), decay) in reversed(list(enumerate(zip(self._chunks(L), self.decays)))):
            part = slice(at, at + q)
            for g in range(shape.groups):
                mine = slice(g * self.heads, (g + 1) * self.heads)
                d_step[part, mine], d_log_dt[part, mine] = self._backward_chunk(
                    act[part], d_act[part], dy[part], decay, g, f"{g}.{slot}"
                )
        self._backward_step(d_step, d_log_dt, d_dt_rows)

    def _backward_step(self, d_step: Tensor, d_log_dt: Tensor, d_dt_rows: Tensor) -> None:
        """From the gradients (L, H) of dt*A and ln(dt) to those of A, of the bias and of the rows."""
        dt = self.dt
        self.d_A += (d_step.to(self.sum_dtype) * dt).sum(0)
        slope = -torch.expm1(-dt)  # of softplus
        # d ln(dt) / d row = slope / dt, which tends to 1 as dt vanishes
        d_row = d_step * self.A * slope + d_log_dt * torch.where(dt > 0, slope / dt, 1.0)
        self.d_dt_bias += d_row.sum(0)
        d_dt_rows.copy_(d_row)

    def _backward_chunk(
        self, act: Tensor, d_act: Tensor, dy: Tensor, decay: Decay, g: int, kept_as: str
    ) -> tuple[Tensor, Tensor]:
        """Fill `d_act` and move `d_state` back over the chunk; gradients (q, heads) of dt*A and ln(dt)."""
        shape, scratch = self.shape, self.scratch
        q, mine = len(act), slice(g * self.heads, (g + 1) * self.heads)
        x, B, C = self._views(act, g)
        dx, dB, dC = self._views(d_act, g)
        S, dS = scratch(f"S{kept_as}", *self.d_state[g].shape), self.d_state[g]
        mask = scratch(f"mask{kept_as}", self.heads, q, q)
        past = scratch(f"past{kept_as}", q, self.width)
        dy = self._by_head(dy, g)

        CB = torch.mm(C, B.t())
        M = self._matrix(mask, CB, mine)
        dM = torch.bmm(dy.transpose(0, 1), x.permute(1, 2, 0), out=scratch("dM", self.heads, q, q))
        own = torch.bmm(M.transpose(1, 2), dy.transpose(0, 1), out=scratch("own", self.heads, q, shape.headdim))
        self.d_D[mine] += dM.diagonal(dim1=1, dim2=2).sum(1)
        dCB = dM.mul_(mask).sum(0)  # (q, q)
        pairs = dM.mul_(CB)  # dM * M: what token i takes from token j
        given = pairs.sum(1).t()  # (q, heads)
        across = torch.cumsum(pairs, 2, out=M).tril_(-1).sum(1).t()  # (q, heads) pairs that lie around k and k + 1

        read = torch.mul(dy, decay.read[:, mine, None], out=scratch("read", *x.shape))  # exp(a) dy
        from_past = past.view_as(x).mul_(read).sum(2)  # (q, heads)
        to_next = torch.mm(B, dS, out=scratch("to_next", q, self.width)).view_as(x)
        torch.addcmul(own.transpose(0, 1), to_next, decay.write[:, mine, None], out=dx)
        written = torch.mul(x, decay.write[:, mine, None], out=scratch("written", *x.shape))
        handed_on = to_next.mul_(written).sum(2)  # (q, heads)
        torch.mm(written.view(q, -1), dS.t(), out=scratch("dB", q, shape.state))
        dB.copy_(scratch("dB", q, shape.state).addmm_(dCB.t(), C))
        torch.mm(read.view(q, -1), S.t(), out=scratch("dC", q, shape.state))
        dC.copy_(scratch("dC", q, shape.state).addmm_(dCB, B))

        through = S.mul_(dS).sum(0).view(self.heads, -1).sum(1) * decay.total[mine]  # (heads,)
        dS.view(-1, self.heads, shape.headdim).mul_(decay.total[mine, None])
        dS.addmm_(C.t(), read.view(q, -1))

        wide = self.sum_dtype
        d_step = from_past.to(wide).flip(0).cumsum(0).flip(0) + through
        d_step[1:] += handed_on[:-1].to(wide).cumsum(0) + across[:-1]
        return d_step, given + handed_on

    def _backward_convolution(self, rows: Tensor, d_raw: Tensor) -> None:
        """Fill d_raw (L, c), of all convolved channels or of the last c, from `u` and `d_act` in scratch."""
        scratch, (L, c), halo = self.scratch, d_raw.shape, self.shape.conv - 1
        first = self.shape.convolved - c  # channels before it are somebody else's
        raw, taps = self._raw(rows)[:, first:], self.taps[:, first:]
        du = scratch("du", L + halo, c)
        u, d_act = scratch("u", L, c), scratch("d_act", L, c)
        torch.ops.aten.silu_backward.grad_input(d_act, u, grad_input=du[:L])
        du[L:] = self._next_du[:, first:]
        self.d_conv_bias[first:] += du[:L].sum(0)
        product = scratch("product", L, c)
        for k in range(self.shape.conv):
            self.d_taps[k, first:] += torch.mul(du[:L], raw[k : k + L], out=product).sum(0)
            shifted = du[halo - k : halo - k + L]
            if k == 0:
                torch.mul(shifted, taps[0], out=d_raw)
            else:
                d_raw.addcmul_(shifted, taps[k])
        self._next_du[:, first:] = du[:halo]


def _like(expected: Tensor, state: Tensor) -> Tensor:
    """`state`, unless its shape is another: copying would spread a smaller one over the larger."""
    if state.shape != expected.shape:
        raise RuntimeError(f"expected a state {tuple(expected.shape)}, but it is {tuple(state.shape)}")
    return state
