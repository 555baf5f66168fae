"""No kernel is ever pointed at a tensor of another shape, dtype or layout; no tokens at all are no special case."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from marble.models.ssm.s4d import causal_convolution, s4d_kernel
from marble.models.ssm.scan import selective_scan
from marble.models.ssm.scan2d import selective_scan_2d
from marble.models.ssm.scan_native import NativeSelectiveScan
from marble.models.ssm.scan_reference import s4d_reference, selective_scan_2d_reference, selective_scan_reference
from marble.models.ssm.ssd import Mamba2
from marble.models.ssm.ssd_native import NativeSegmentGradient, NativeSegmentScan
from marble.models.ssm.ssd_reference import SsdWeights
from marble.models.ssm.ssd_stream import fast_block
from marble.native.library import BACKEND_VARIABLE, missing

native_scan: Callable[..., Tensor] = NativeSelectiveScan.apply

needs_kernel = pytest.mark.skipif(missing() is not None, reason=f"native: {missing()}")


@pytest.fixture
def block() -> Mamba2:
    torch.manual_seed(0)
    return Mamba2(16, d_state=16, headdim=8)


def rows_of(block: Mamba2, tokens: int) -> Tensor:
    return torch.randn(block.shape.conv - 1 + tokens, block.shape.projected)


def changed(weights: SsdWeights, name: str, change: Callable[[Tensor], Tensor]) -> SsdWeights:
    return weights._replace(**{name: change(getattr(weights, name).detach())})


@needs_kernel
@pytest.mark.parametrize("name", ["conv_weight", "conv_bias", "dt_bias", "A_log", "D"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t[:-1], "expected .* to be"),
        (lambda t: torch.cat([t, t]), "expected .* to be"),
        (lambda t: t.double(), "float"),
        (lambda t: t[None], "expected .* to be"),
        (lambda t: t.to("meta"), "CPU"),
    ],
    ids=["short", "long", "float64", "axis", "device"],
)
def test_weights_that_do_not_fit_are_refused(
    block: Mamba2, name: str, change: Callable[[Tensor], Tensor], said: str
) -> None:
    with pytest.raises(RuntimeError, match=said):
        NativeSegmentScan(changed(block.scan_weights(), name, change), block.shape)


@needs_kernel
@pytest.mark.parametrize(
    "change",
    [
        lambda r: r[:, :-1],
        lambda r: r[:, :-1].contiguous(),
        lambda r: torch.cat([r, r], 1),
        lambda r: torch.cat([r, r], 1)[:, : r.shape[1]],
        lambda r: r.double(),
        lambda r: r.t().contiguous().t(),
        lambda r: r[:2],
        lambda r: r.to("meta"),
    ],
    ids=["cut", "narrow", "wide", "strided", "float64", "transposed", "halo", "device"],
)
def test_rows_that_do_not_fit_are_refused(block: Mamba2, change: Callable[[Tensor], Tensor]) -> None:
    scan = NativeSegmentScan(block.scan_weights(), block.shape)
    with torch.no_grad(), pytest.raises(RuntimeError, match="expected rows"):
        scan.forward(change(rows_of(block, 70)))


@needs_kernel
def test_gradients_and_states_that_do_not_fit_are_refused(block: Mamba2) -> None:
    rows = rows_of(block, 70)
    scan = NativeSegmentGradient(block.scan_weights(), block.shape, None)
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="expected a state"):
            scan.recompute(rows, scan.state[:, :1])
        with pytest.raises(RuntimeError, match="expected a state"):
            NativeSegmentGradient(block.scan_weights(), block.shape, torch.zeros(()))
        gated = scan.recompute(rows, torch.zeros_like(scan.state)).clone()
        for wrong in (gated[:-1], gated[:, :-8].contiguous(), gated.double(), gated.t().contiguous().t()):
            with pytest.raises(RuntimeError, match="expected d_gated"):
                scan.backward(rows, wrong)
        with pytest.raises(RuntimeError, match="just recomputed"):
            scan.backward(rows.clone(), gated)


@needs_kernel
def test_widths_the_kernel_does_not_take_are_refused() -> None:
    odd = Mamba2(16, d_state=6, headdim=8)
    with pytest.raises(RuntimeError, match="multiples of 8"):
        NativeSegmentScan(odd.scan_weights(), odd.shape)
    with pytest.raises(RuntimeError, match="multiples of 8"):
        native_scan(*scan_inputs((5,), d=6))


def scan_inputs(cells: tuple[int, ...], d: int = 8, n: int = 3) -> list[Tensor]:
    torch.manual_seed(1)
    sizes = ((*cells, d), (*cells, d), (d, n), (*cells, n), (*cells, n))
    return [torch.rand(size).requires_grad_() for size in sizes]


@needs_kernel
@pytest.mark.parametrize("cells", [(9,), (4, 5)])
@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[:-1],
        lambda t: t[..., :-1],
        lambda t: torch.cat([t, t]),
        lambda t: t.double(),
        lambda t: t[None, None],
        lambda t: t.to("meta"),
    ],
    ids=["short", "narrow", "long", "float64", "axis", "device"],
)
def test_scans_that_do_not_fit_together_are_refused(
    cells: tuple[int, ...], which: int, change: Callable[[Tensor], Tensor]
) -> None:
    inputs = scan_inputs(cells)
    inputs[which] = change(inputs[which].detach())
    with pytest.raises(RuntimeError, match=r"expected|takes"):
        native_scan(*inputs)


@pytest.mark.parametrize("path", ["torch", pytest.param("native", marks=needs_kernel)])
@pytest.mark.parametrize(
    ("run", "loop", "cells"),
    [
        (selective_scan, selective_scan_reference, (0,)),
        (selective_scan_2d, selective_scan_2d_reference, (0, 4)),
        (selective_scan_2d, selective_scan_2d_reference, (4, 0)),
        (selective_scan_2d, selective_scan_2d_reference, (0, 0)),
    ],
)
def test_no_tokens_give_no_outputs_and_no_gradient(
    path: str,
    run: Callable[..., Tensor],
    loop: Callable[..., Tensor],
    cells: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, path)
    inputs = [*scan_inputs(cells), torch.rand(8).requires_grad_()]
    y = run(*inputs)
    assert y.shape == loop(*inputs).shape == (*cells, 8)
    for gradient in torch.autograd.grad(y.sum(), inputs):
        assert not gradient.any()


@pytest.mark.parametrize("path", ["torch", "batched", pytest.param("native", marks=needs_kernel)])
def test_a_block_of_no_tokens_gives_no_outputs_and_no_gradient(block: Mamba2, path: str) -> None:
    tokens = torch.empty(0, 16, requires_grad=True)
    weights = block.scan_weights()
    out, state = fast_block(tokens, block.in_proj.weight, block.out_proj.weight, weights, block.shape, path)
    assert out.shape == (0, 16)
    assert torch.equal(state, torch.zeros(4, 8, 16))
    used = [p for name, p in block.named_parameters() if name != "norm.weight"]
    for gradient in torch.autograd.grad(out.sum() + state.sum(), used, allow_unused=True):
        assert gradient is None or not gradient.any()


def test_a_convolution_of_no_tokens_is_empty() -> None:
    dt, A, C, D = torch.rand(2), torch.rand(2, 3) - 2 + 0j, torch.rand(2, 3) + 0j, torch.rand(2)
    u = torch.empty(0, 2)
    assert causal_convolution(u.T, s4d_kernel(dt, A, C, 0, torch.float32)).shape == (2, 0)
    assert s4d_reference(u, dt, A, C, D).shape == (0, 2)
