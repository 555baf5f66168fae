"""S4D: a diagonal linear state-space layer as one long convolution, equal to `scan_reference.s4d_reference`.

The kernel k_l = 2 Re sum_n c_n e^{a_n l} of T taps would need T x d x n complex numbers (4 GB at 60,000 tokens). With
l = i S + j the exponential splits, e^{a l} = e^{a i S} e^{a j}: two factors of about sqrt(T) places each and one small
matrix product per channel give the same kernel.

Letters: T tokens, d channels, n conjugate pairs of states per channel.
"""

from __future__ import annotations

from math import isqrt, log, pi
from typing import Any

import torch
from scipy.fft import next_fast_len
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu, glu, linear
from torch.utils.checkpoint import checkpoint

#: numbers in one block of zero-padded channels; the convolution holds a few such blocks and their spectra
BLOCK_NUMBERS = 1 << 20
DT_MIN, DT_MAX = 1e-3, 0.1


class S4DKernel(nn.Module):
    """Parameters of the kernel, by the original's names: A = -exp(log_A_real) + i A_imag, dt = exp(log_dt), C.

    Args:
        channels: d.
        pairs: n.
    """

    def __init__(self, channels: int, pairs: int) -> None:
        super().__init__()
        self.log_dt = nn.Parameter(torch.empty(channels).uniform_(log(DT_MIN), log(DT_MAX)))
        self.C = nn.Parameter(torch.randn(channels, pairs, 2) * 0.5**0.5)  # real and imaginary part
        self.log_A_real = nn.Parameter(torch.full((channels, pairs), log(0.5)))
        self.A_imag = nn.Parameter((pi * torch.arange(pairs)).repeat(channels, 1))

    def forward(self, length: int) -> Tensor:
        """(d, length) real kernel."""
        # in float64 whatever the dtype: the phase of a late tap is thousands of turns
        A = torch.complex(-torch.exp(self.log_A_real.double()), self.A_imag.double())  # (d, n)
        C = torch.view_as_complex(self.C.double())
        # recomputed in the backward pass: it is quick, and its factors would take more memory than the tokens
        kernel: Tensor = checkpoint(
            s4d_kernel,
            self.log_dt.double().exp(),
            A,
            C,
            length,
            self.C.dtype,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        return kernel


def s4d_kernel(dt: Tensor, A: Tensor, C: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """k_l = 2 Re sum_n C_n (e^{dt A_n} - 1)/A_n e^{dt A_n l} for l < length.

    Args:
        dt: (d,).
        A: (d, n) complex.
        C: (d, n) complex.
        length: number of taps.
        dtype: of the result.

    Returns:
        (d, length).
    """
    step = isqrt(max(length - 1, 0)) + 1
    a = dt[:, None] * A  # (d, n)
    gain = C * (torch.exp(a) - 1) / A
    places = torch.arange(step, device=dt.device)
    near_real, near_imag = _powers(a[:, :, None], places)  # (d, n, step) each
    far_real, far_imag = _powers(a[:, None], (step * places)[:, None])  # (d, step, n) each
    g_real, g_imag = gain.real[:, None], gain.imag[:, None]
    # the real part of a complex product, as one real product over twice the states
    left = torch.cat([g_real * far_real - g_imag * far_imag, -g_real * far_imag - g_imag * far_real], dim=2)
    right = torch.cat([near_real, near_imag], dim=1)
    return 2 * torch.bmm(left.to(dtype), right.to(dtype)).flatten(1)[:, :length]


def _powers(a: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of e^{a l}: torch is ten times faster at real sines than at complex powers."""
    size, angle = torch.exp(a.real * places), a.imag * places
    return size * torch.cos(angle), size * torch.sin(angle)


class S4D(nn.Module):
    """y = GLU(W gelu(k * u + D u)) over (T, d) tokens; causal, and no residual.

    Args:
        channels: d.
        state: real size of each channel's state, twice the number of conjugate pairs.
    """

    def __init__(self, channels: int, state: int) -> None:
        super().__init__()
        self.D = nn.Parameter(torch.randn(channels))
        self.kernel = S4DKernel(channels, state // 2)
        self.mix = nn.Conv1d(channels, 2 * channels, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, enabled=False):  # the kernel and its sums stay wide
            u = tokens.T.contiguous().to(self.D.dtype)  # (d, T)
            y = causal_convolution(u, self.kernel(len(tokens))) + self.D[:, None] * u
        # a convolution of one tap is a matrix product, which torch does faster when told so
        return glu(linear(gelu(y).T, self.mix.weight[:, :, 0], self.mix.bias), dim=1)


def causal_convolution(u: Tensor, kernel: Tensor) -> Tensor:
    """y_t = sum_{l <= t} kernel_l u_{t-l} for every row of two (d, T) tensors, by FFT."""
    y: Tensor = _CausalConvolution.apply(u, kernel)  # type: ignore[no-untyped-call]
    return y


class _CausalConvolution(torch.autograd.Function):
    """Keeps the two inputs only; spectra exist for a block of channels at a time, in both directions."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(u, kernel)
        y = torch.empty_like(u)
        size, length = _fft_size(u), u.shape[1]
        for c in _channel_blocks(u):
            spectrum = torch.fft.rfft(u[c], size) * torch.fft.rfft(kernel[c], size)
            y[c] = torch.fft.irfft(spectrum, size)[:, :length]
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor, Tensor]:
        u, kernel = ctx.saved_tensors
        gu, gkernel = torch.empty_like(u), torch.empty_like(kernel)
        size, length = _fft_size(u), u.shape[1]
        for c in _channel_blocks(u):
            g = torch.fft.rfft(gy[c], size)  # correlation is the product with the conjugate
            gu[c] = torch.fft.irfft(g * torch.fft.rfft(kernel[c], size).conj(), size)[:, :length]
            gkernel[c] = torch.fft.irfft(g * torch.fft.rfft(u[c], size).conj(), size)[:, :length]
        return gu, gkernel


def _fft_size(u: Tensor) -> int:
    """At least 2T - 1, so that nothing wraps round, and a product of small primes."""
    return int(next_fast_len(max(1, 2 * u.shape[1] - 1), real=True))


def _channel_blocks(u: Tensor) -> list[slice]:
    size = max(1, BLOCK_NUMBERS // _fft_size(u))
    return [slice(start, start + size) for start in range(0, len(u), size)]
