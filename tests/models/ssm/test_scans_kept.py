"""Segments whose scan was kept for the way back give the gradients of segments that are scanned again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from marble.models.ssm import ssd_stream
from marble.models.ssm.ssd import Mamba2
from marble.models.ssm.ssd_native import NativeSegmentGradient, NativeSegmentScan
from marble.native.library import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"native: {missing()}")

SEGMENT, T = 128, 300  # three segments, the last one ragged


@pytest.fixture
def block() -> Mamba2:
    torch.manual_seed(0)
    return Mamba2(8, d_state=8, headdim=4, ngroups=2).double()


def gradients(block: Mamba2, backend: str) -> dict[str, Tensor]:
    block.zero_grad(set_to_none=True)
    block.backend = backend
    tokens = torch.randn(T, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    torch.autograd.backward(block(tokens).sin().sum())
    found = {name: weight.grad for name, weight in block.named_parameters()} | {"tokens": tokens.grad}
    return {name: gradient for name, gradient in found.items() if gradient is not None}


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_gradients_are_right_however_many_scans_are_kept(
    block: Mamba2, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssd_stream, "SEGMENT", SEGMENT)
    one = NativeSegmentScan(block.scan_weights(), block.shape).scanned_bytes(SEGMENT)
    monkeypatch.setattr(ssd_stream, "KEEP_SCANNED_BYTES", kept * one)
    calls: Counter[str] = Counter()
    for name in ("restore", "recompute"):
        way = getattr(NativeSegmentGradient, name)

        def counted(*given: Any, name: str = name, way: Any = way) -> Tensor:
            calls[name] += 1
            result: Tensor = way(*given)
            return result

        monkeypatch.setattr(NativeSegmentGradient, name, counted)
    found = gradients(block, "native")
    assert calls == Counter(restore=kept, recompute=3 - kept)
    right = gradients(block, "reference")
    assert set(found) == set(right)
    for name, expected in right.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-11 * float(expected.abs().max()))


def test_a_kept_scan_of_another_size_is_refused(block: Mamba2) -> None:
    rows = torch.randn(3 + 70, block.shape.projected, dtype=torch.float64)
    scan = NativeSegmentGradient(block.scan_weights(), block.shape, None)
    with torch.no_grad():
        gated, (y, starts) = scan.forward_for_later(rows)
        d_gated = gated.clone()
        for wrong, named in (((y[:1], starts), "expected y"), ((y, starts[:1]), "expected starts")):
            scan.restore(rows, wrong)
            with pytest.raises(RuntimeError, match=named):
                scan.backward(rows, d_gated)
        scan.forward(rows)
        with pytest.raises(RuntimeError, match="recomputed or restored"):
            scan.backward(rows, d_gated)
