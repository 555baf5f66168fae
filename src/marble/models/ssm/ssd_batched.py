"""The segments of `ssd_fast` and `ssd_backward` with all chunks of a segment at once, for accelerators.

There a launch costs more than the arithmetic of a small product, so that what `ssd_fast` does chunk by chunk in the
cache is done here in a few products over an axis of n chunks. The states that chunks hand on are one more product: with
t_c the sum of dt*A up to chunk c's start,

    E_cc' = exp(t_c - t_c'+1) for c > c'; row n is the segment's end
    S     = E (B^T (x exp(a_Q - b))) + exp(t) S_0                   the state before each chunk
    dS'   = E^T [C^T (exp(a) dy); dS_end]                           the gradient of the state after each chunk

Letters as in `ssd_fast`; h = H / G heads share the B and C of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, silu

from marble.models.ssm.ssd_backward import SegmentGradient
from marble.models.ssm.ssd_fast import Decay, SegmentScan, convolve
from marble.models.ssm.ssd_reference import softplus


@dataclass
class _Kept:
    """What the way back needs of a segment."""

    x: Tensor  # (n, H, Q, P)
    B: Tensor  # (n, G, Q, N)
    C: Tensor  # (n, G, Q, N)
    mask: Tensor  # (n, H, Q, Q) exp(a_i - b_j) for i >= j
    CB: Tensor  # (n, G, Q, Q)
    read: Tensor  # (n, H, Q, 1) exp(a_i)
    write: Tensor  # (n, H, Q, 1) exp(a_Q - b_j)
    total: Tensor  # (n, H) exp(a_Q)
    E: Tensor  # (H, n + 1, n)
    start: Tensor  # (H, n + 1) exp(t)
    S: Tensor  # (n, H, N, P) before each chunk
    past: Tensor  # (n, H, Q, P) C S


class BatchedScan(SegmentScan):
    """Forward over the segments of one sequence."""

    def forward(self, rows: Tensor, *, keep: bool = False, overwrite: bool = False) -> Tensor:
        shape, scratch = self.shape, self.scratch
        L = len(rows) - shape.conv + 1
        self.dt = softplus(rows[shape.conv - 1 :, -shape.heads :] + self.dt_bias)  # (L, H)
        u, gate = scratch("u", L, shape.convolved), self._gate(rows)
        y = scratch("y", L, shape.inner)
        kept = self._scan(silu(convolve(self._raw(rows), self.taps, self.conv_bias, u)), y)
        self.kept = kept if keep else None
        gated = gate if overwrite else scratch("gated", L, shape.inner)
        return torch.mul(silu(gate), y, out=gated)

    def _scan(self, act: Tensor, y: Tensor) -> _Kept:
        """Fill y (L, H*P) from x, B and C (L, channels), and move the state on."""
        shape, Q = self.shape, self.chunk
        L, H, P, G, N = len(act), shape.heads, shape.headdim, shape.groups, shape.state
        n = -(-L // Q)
        # A step of zero decays nothing, and a token of zeros writes nothing.
        act, dt = (pad(tensor, (0, 0, 0, n * Q - L)) for tensor in (act, self.dt))
        x = self._heads(act[:, : shape.inner])  # (n, H, Q, P)
        B, C = act[:, shape.inner :].view(n, Q, 2, G, N).permute(2, 0, 3, 1, 4)
        decay = self._decays_of_equal_chunks(dt.view(n, Q, H))
        mask = self._masks(decay)  # (n, H, Q, Q)
        read, write = (d.transpose(1, 2).unsqueeze(3) for d in (decay.read, decay.write))  # (n, H, Q, 1)
        E, start = self._between_chunks(dt.view(n, Q, H))

        new = self._ungrouped(B.mT @ self._grouped(x * write))  # (n, H, N, P)
        first = self._ungrouped(self.state[None])[0]  # (H, N, P)
        S = torch.baddbmm(start[..., None] * first.reshape(H, 1, -1), E, new.transpose(0, 1).reshape(H, n, -1))
        self.state = self._grouped(S[:, n].view(1, H, N, P))[0]
        S = S[:, :n].transpose(0, 1).reshape(n, H, N, P)

        CB = C @ B.mT  # (n, G, Q, Q)
        past = self._ungrouped(C @ self._grouped(S))  # (n, H, Q, P)
        out = torch.addcmul(self._matrices(mask, CB) @ x, past, read)
        y.copy_(self._rows(out, L))
        return _Kept(x, B, C, mask, CB, read, write, decay.total, E, start, S, past)

    def _masks(self, decay: Decay) -> Tensor:
        """exp(a_i - b_j) (n, H, Q, Q), zero for j > i."""
        mask = decay.a[..., :, None] - decay.b[..., None, :]
        mask.add_(decay.a_rest[..., :, None]).sub_(decay.b_rest[..., None, :])
        return mask.add_(self.future).exp_()

    def _matrices(self, mask: Tensor, CB: Tensor) -> Tensor:
        M = (self._by_group(mask) * CB[:, :, None]).view_as(mask)
        M.diagonal(dim1=2, dim2=3).add_(self.D[:, None])
        return M

    def _between_chunks(self, dt: Tensor) -> tuple[Tensor, Tensor]:
        """E (H, n + 1, n) and exp(t) (H, n + 1) of steps (n, Q, H)."""
        n = len(dt)
        total = (dt.to(self.sum_dtype) * self.A.to(self.sum_dtype)).sum(1)  # (n, H)
        t = pad(total, (0, 0, 1, 0)).cumsum(0).t()  # (H, n + 1)
        gap = t[:, :, None] - t[:, None, 1:]
        later = torch.ones(n + 1, n, dtype=torch.bool, device=dt.device).tril_(-1)  # c > c'
        E = torch.exp(gap.masked_fill_(~later, -torch.inf)).to(dt.dtype)
        return E, torch.exp(t).to(dt.dtype)

    # ---- axes ----------------------------------------------------------------------------------------------------

    def _heads(self, rows: Tensor) -> Tensor:
        """(n*Q, H*P) -> (n, H, Q, P)."""
        return rows.view(-1, self.chunk, self.shape.heads, self.shape.headdim).transpose(1, 2)

    def _rows(self, chunks: Tensor, L: int) -> Tensor:
        """(n, A, Q, b) -> (L, A*b)."""
        n, A, Q, b = chunks.shape
        return chunks.transpose(1, 2).reshape(n * Q, A * b)[:L]

    def _by_group(self, heads: Tensor) -> Tensor:
        """(n, H, a, b) -> (n, G, h, a, b)."""
        n, _, *rest = heads.shape
        return heads.reshape(n, self.shape.groups, self.heads, *rest)

    def _grouped(self, heads: Tensor) -> Tensor:
        """(n, H, a, b) -> (n, G, a, h*b): what a group's heads do with what they share is one product."""
        return self._by_group(heads).transpose(2, 3).flatten(3)

    def _ungrouped(self, groups: Tensor) -> Tensor:
        """(n, G, a, h*P) -> (n, H, a, P)."""
        by_head = groups.reshape(*groups.shape[:3], self.heads, self.shape.headdim)  # (n, G, a, h, P)
        return by_head.transpose(2, 3).flatten(1, 2)


class BatchedGradient(BatchedScan, SegmentGradient):
    """Backward over the segments of one sequence, from the last to the first."""

    def _backward_scan(self, dy: Tensor, d_dt_rows: Tensor) -> None:
        shape, Q, k = self.shape, self.chunk, self.kept
        assert k is not None
        L, n = len(dy), len(k.x)
        H, N, P = shape.heads, shape.state, shape.headdim
        dy = self._heads(pad(dy, (0, 0, 0, n * Q - L)))  # (n, H, Q, P)

        M = self._matrices(k.mask, k.CB)
        own = M.mT @ dy
        dM = dy @ k.x.mT
        self.d_D += dM.diagonal(dim1=2, dim2=3).sum((0, 2))
        dM.mul_(k.mask)
        dCB = self._by_group(dM).sum(2)  # (n, G, Q, Q)
        pairs = self._by_group(dM).mul_(k.CB[:, :, None]).view_as(dM)  # what token i takes from token j
        given = pairs.sum(2)  # (n, H, Q)
        across = torch.cumsum(pairs, 3, out=M).tril_(-1).sum(2)  # (n, H, Q) pairs that lie around k and k + 1

        read = dy * k.read  # exp(a) dy
        added = self._ungrouped(k.C.mT @ self._grouped(read))  # (n, H, N, P)
        added = torch.cat([added, self._ungrouped(self.d_state[None])]).transpose(0, 1).reshape(H, n + 1, -1)
        dS = (k.E.mT @ added).view(H, n, N, P).transpose(0, 1)  # after each chunk
        self.d_state = self._grouped((k.start[:, None] @ added).view(1, H, N, P))[0]

        dS_by_group = self._grouped(dS)
        to_next = self._ungrouped(k.B @ dS_by_group)  # (n, H, Q, P)
        written = k.x * k.write
        dx = torch.addcmul(own, to_next, k.write)
        dB = dCB.mT @ k.C + self._grouped(written) @ dS_by_group.mT
        dC = dCB @ k.B + self._grouped(read) @ self._grouped(k.S).mT
        torch.cat([self._rows(part, L) for part in (dx, dB, dC)], 1, out=self.scratch("d_act", L, shape.convolved))

        wide = self.sum_dtype
        from_past, handed_on = (k.past * read).sum(3), (to_next * written).sum(3)  # (n, H, Q)
        through = (k.S * dS).sum((2, 3)) * k.total  # (n, H)
        d_step = from_past.to(wide).flip(2).cumsum(2).flip(2) + through[..., None]
        d_step[..., 1:] += handed_on[..., :-1].to(wide).cumsum(2) + across[..., :-1]
        d_step, d_log_dt = (self._rows(part[..., None], L) for part in (d_step, given + handed_on))
        self._backward_step(d_step, d_log_dt, d_dt_rows)
        self.kept = None
