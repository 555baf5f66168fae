"""The kernels of wide vectors give what the others give, and take only the widths they can."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from marble.models.ssm.scan_native import NativeSelectiveScan
from marble.models.ssm.ssd import Mamba2
from marble.native import build, library

native_scan: Callable[..., Tensor] = NativeSelectiveScan.apply

pytestmark = pytest.mark.skipif(
    library.missing() is not None or not library.has_wide(), reason="needs the kernels and a processor with AVX-512"
)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the libraries, each time one is asked for."""
    names: list[str] = []
    really = library._library

    def noted(path: Path) -> ctypes.CDLL:
        names.append(path.name)
        return really(path)

    monkeypatch.setattr(library, "_library", noted)
    return names


def narrow_and_wide(
    run: Callable[[], list[Tensor]], used: list[str], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Tensor, Tensor]]:
    """What `run` gives with either library, and that it really used both."""
    wide = run()
    assert build.WIDE_NAME in used
    used.clear()
    monkeypatch.setattr(library, "has_wide", lambda: False)
    narrow = run()
    assert set(used) == {build.LIBRARY.name}
    return list(zip(wide, narrow, strict=True))


def assert_alike(pairs: list[tuple[Tensor, Tensor]]) -> None:
    for wide, narrow in pairs:
        assert float((wide - narrow).abs().max()) <= 1e-13 * float(narrow.abs().max())


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 300])
@pytest.mark.parametrize(("state", "headdim", "groups"), [(8, 8, 2), (64, 16, 1), (24, 32, 1)])
def test_mamba2_of_wide_vectors_is_that_of_narrow_ones(
    tokens: int, state: int, headdim: int, groups: int, used: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(tokens)
    block = Mamba2(32, d_state=state, headdim=headdim, ngroups=groups, backend="native").double()
    x = torch.randn(tokens, 32, dtype=torch.float64, requires_grad=True)

    def run() -> list[Tensor]:
        out, last = block.run(x)
        gradients = torch.autograd.grad((out * out.detach().cos()).sum() + last.sum(), [x, *block.parameters()])
        return [out.detach(), last.detach(), *gradients]

    assert_alike(narrow_and_wide(run, used, monkeypatch))


@pytest.mark.parametrize("cells", [(1,), (130,), (7, 9)])
def test_selective_scans_of_wide_vectors_are_those_of_narrow_ones(
    cells: tuple[int, ...], used: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    sizes = ((*cells, 24), (*cells, 24), (24, 3), (*cells, 3), (*cells, 3))
    inputs = [torch.rand(size, dtype=torch.float64) for size in sizes]
    inputs[2] = -inputs[2]  # A
    for tensor in inputs:
        tensor.requires_grad_()

    def run() -> list[Tensor]:
        y = native_scan(*inputs)
        return [y.detach(), *torch.autograd.grad((y * y.detach().sin()).sum(), inputs)]

    assert_alike(narrow_and_wide(run, used, monkeypatch))


def test_a_width_of_half_a_wide_vector_goes_to_the_narrow_kernels(used: list[str]) -> None:
    x = torch.rand(5, 12, dtype=torch.float64)
    native_scan(x, x, -torch.rand(12, 3, dtype=x.dtype), *torch.rand(2, 5, 3, dtype=x.dtype))
    assert set(used) == {build.LIBRARY.name}
