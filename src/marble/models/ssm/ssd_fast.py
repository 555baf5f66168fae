"""The selective state space in matrix products: one segment of tokens at a time, in reused buffers.

A segment is cut into chunks of Q tokens. With a_i the running sum of dt*A inside a chunk and b_j = a_j - ln(dt_j),
the recurrence of `ssd_reference` is, for the heads of one group,

    M_ij = (C_i . B_j) exp(a_i - b_j) for i >= j, plus D on the diagonal
    y    = M x + exp(a) (C S)                              what the chunk sees of itself, and of the past
    S'   = exp(a_Q) S + B^T (x exp(a_Q - b))               the state it hands on

a - b is a small difference of sums that may be large. Each sum is therefore carried as a pair, the part on a coarse
grid (which adds up without rounding) and the rest, and subtracted pair by pair, so no digit is lost in float32 or in
float64. `ssd_backward` holds the gradients.

Letters as in `ssd_reference`; S is held as (N, H*P) per group, so that reading and writing it are plain products.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marble.models.ssm.ssd_reference import SsdShape, SsdWeights, softplus
from marble.native.layout import CHUNK


class Scratch:
    """Buffers by name, allocated at their largest use and handed out again: fresh pages cost more than arithmetic."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """A contiguous tensor of `shape` holding whatever was last in the buffer `name`."""
        size = 1
        for n in shape:
            size *= n
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name] = self._like.new_empty(size)
        return buffer[:size].view(shape)


@dataclass(frozen=True)
class Decay:
    """The decays of one chunk of q tokens, or with an axis in front those of several."""

    read: Tensor  # (q, H) exp(a_i)
    write: Tensor  # (q, H) exp(a_Q - b_j)
    total: Tensor  # (H,) exp(a_Q)
    a: Tensor  # (H, q) rounded
    a_rest: Tensor  # (H, q) what the rounding left
    b: Tensor  # (H, q)
    b_rest: Tensor  # (H, q)


#: of a segment: y (L, H*P) before the gate, and the state that every chunk started from
Scanned = tuple[Tensor, Tensor]


class SegmentScan:
    """Runs the segments of one sequence in order; `state` passes from each to the next."""

    def __init__(self, weights: SsdWeights, shape: SsdShape, chunk: int = CHUNK) -> None:
        self.shape, self.chunk = shape, chunk
        like = weights.conv_weight
        self.taps = weights.conv_weight[:, 0, :].t().contiguous()  # (K, channels)
        self.conv_bias, self.dt_bias, self.D = weights.conv_bias, weights.dt_bias, weights.D
        self.A = -torch.exp(weights.A_log)  # (H,)
        self.scratch = Scratch(like)
        self.heads = shape.heads // shape.groups  # that share B and C
        self.width = self.heads * shape.headdim
        self.state = like.new_zeros(shape.groups, shape.state, self.width)
        # Sums of decays need more digits than float32 has; a device without float64 (MPS) does with what it has.
        self.sum_dtype = like.dtype if like.device.type == "mps" else torch.float64
        self.grid = 2.0**28 if self.sum_dtype == torch.float64 else 2.0**10  # 64 steps of it add up exactly
        self.future = like.new_full((chunk, chunk), float("-inf")).triu_(1)  # added before exp: nothing from later

    def scanned_bytes(self, L: int) -> int:
        """What `forward_for_later` would keep of L tokens; 0 if this scan cannot."""
        return 0

    def forward_for_later(self, rows: Tensor) -> tuple[Tensor, Scanned]:
        """`forward`, and in tensors of their own what spares the backward pass another scan."""
        raise NotImplementedError

    # ---- forward -----------------------------------------------------------------------------------------------

    def forward(self, rows: Tensor, *, keep: bool = False, overwrite: bool = False) -> Tensor:
        """Gated tokens y * silu(z) (L, H*P) of projected rows (K-1 earlier rows + L); moves the state on.

        The result lives in a reused buffer or, with `overwrite`, in place of the gates in `rows`. With `keep`, what
        `backward` needs stays in the buffers too.
        """
        shape, scratch = self.shape, self.scratch
        L = len(rows) - shape.conv + 1
        self.dt = softplus(rows[shape.conv - 1 :, -shape.heads :] + self.dt_bias)  # (L, H)
        self.decays = self._decays(self.dt)
        u, act = scratch("u", L, shape.convolved), scratch("act", L, shape.convolved)
        y, gate = scratch("y", L, shape.inner), self._gate(rows)
        gated = gate if overwrite else scratch("gated", L, shape.inner)
        for slot, ((at, q), decay) in enumerate(zip(self._chunks(L), self.decays)):
            # From convolution to gate chunk by chunk: what one pass writes, the next finds in the cache.
            part = slice(at, at + q)
            convolve(self._raw(rows[at : at + q + shape.conv - 1]), self.taps, self.conv_bias, u[part])
            torch.ops.aten.silu.out(u[part], out=act[part])
            for g in range(shape.groups):
                self._forward_chunk(act[part], y[part], decay, g, f"{g}.{slot}" if keep else "")
            torch.ops.aten.silu.out(gate[part], out=gated[part]).mul_(y[part])
        return gated

    def _chunks(self, L: int) -> list[tuple[int, int]]:
        return [(at, min(self.chunk, L - at)) for at in range(0, L, self.chunk)]

    def _gate(self, rows: Tensor) -> Tensor:
        return rows[self.shape.conv - 1 :, : self.shape.inner]

    def _raw(self, rows: Tensor) -> Tensor:
        return rows[:, self.shape.inner : self.shape.inner + self.shape.convolved]

    def _decays(self, dt: Tensor) -> list[Decay]:
        """The decays of a segment's chunks: all full ones at once, then the last if it is shorter."""
        full = len(dt) // self.chunk * self.chunk
        parts = [dt[:full].view(-1, self.chunk, self.shape.heads), dt[full:].unsqueeze(0)]
        equal = [self._decays_of_equal_chunks(part) for part in parts if part.numel()]
        return [
            Decay(*tensors) for d in equal for tensors in zip(d.read, d.write, d.total, d.a, d.a_rest, d.b, d.b_rest)
        ]

    def _decays_of_equal_chunks(self, dt: Tensor) -> Decay:
        """The decays of n chunks, for steps (n, q, H)."""
        wide = dt.to(self.sum_dtype)
        step = wide * self.A.to(self.sum_dtype)
        on_grid = torch.round(step * self.grid) / self.grid
        coarse, rest = on_grid.cumsum(1), (step - on_grid).cumsum(1)  # a = coarse + rest
        # A step size that underflowed to zero writes next to nothing, instead of ln(0).
        rest_b = rest - torch.log(wide.clamp_min(torch.finfo(dt.dtype).tiny))
        read = torch.exp(coarse + rest).to(dt.dtype)
        write = torch.exp((coarse[:, -1:] - coarse) + (rest[:, -1:] - rest_b)).to(dt.dtype)
        a, a_rest = _rounded(coarse, rest, dt.dtype)
        b, b_rest = _rounded(coarse, rest_b, dt.dtype)
        return Decay(read, write, read[:, -1], a, a_rest, b, b_rest)

    def _by_head(self, rows: Tensor, g: int) -> Tensor:
        """(q, heads of group g, P) view of rows (q, H*P or more)."""
        return rows[:, g * self.width : (g + 1) * self.width].view(len(rows), self.heads, self.shape.headdim)

    def _views(self, act: Tensor, g: int) -> tuple[Tensor, Tensor, Tensor]:
        """One group's x (q, heads, P), B (q, N) and C (q, N)."""
        shape = self.shape
        x = self._by_head(act, g)
        at = shape.inner + g * shape.state
        to_C = shape.groups * shape.state
        return x, act[:, at : at + shape.state], act[:, at + to_C : at + to_C + shape.state]

    def _forward_chunk(self, act: Tensor, y: Tensor, decay: Decay, g: int, keep_as: str) -> None:
        shape, scratch = self.shape, self.scratch
        q, mine = len(act), slice(g * self.heads, (g + 1) * self.heads)
        x, B, C = self._views(act, g)
        S = self.state[g]
        if keep_as:
            scratch(f"S{keep_as}", *S.shape).copy_(S)
        M = self._matrix(self._mask(decay, mine, q, keep_as), torch.mm(C, B.t()), mine)
        own = torch.bmm(M, x.transpose(0, 1), out=scratch("own", self.heads, q, shape.headdim))
        past = torch.mm(C, S, out=scratch(f"past{keep_as}", q, self.width))
        torch.addcmul(own.transpose(0, 1), past.view_as(x), decay.read[:, mine, None], out=self._by_head(y, g))
        written = torch.mul(x, decay.write[:, mine, None], out=scratch("written", *x.shape))
        S.view(-1, self.heads, shape.headdim).mul_(decay.total[mine, None])
        S.addmm_(B.t(), written.view(q, -1))

    def _mask(self, decay: Decay, mine: slice, q: int, keep_as: str) -> Tensor:
        """exp(a_i - b_j) (heads, q, q), zero for j > i."""
        mask = self.scratch(f"mask{keep_as}", self.heads, q, q)
        torch.sub(decay.a[mine, :, None], decay.b[mine, None, :], out=mask)
        mask.add_(decay.a_rest[mine, :, None]).sub_(decay.b_rest[mine, None, :])
        return mask.add_(self.future[:q, :q]).exp_()

    def _matrix(self, mask: Tensor, CB: Tensor, mine: slice) -> Tensor:
        M = torch.mul(mask, CB, out=self.scratch("M", *mask.shape))
        M.diagonal(dim1=1, dim2=2).add_(self.D[mine, None])
        return M


def convolve(raw: Tensor, taps: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    """Depthwise causal convolution of K-1+q rows (., c) as K shifted multiply-adds into `out` (q, c)."""
    torch.addcmul(bias, raw[: len(out)], taps[0], out=out)
    for k in range(1, len(taps)):
        out.addcmul_(raw[k : k + len(out)], taps[k])
    return out


def _rounded(coarse: Tensor, rest: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The sum coarse + rest (n, q, H), as (n, H, q): rounded to `dtype`, and what that left over."""
    coarse, rest = coarse.transpose(1, 2), rest.transpose(1, 2)
    rounded = (coarse + rest).to(dtype)
    return rounded, ((coarse - rounded) + rest).to(dtype)
