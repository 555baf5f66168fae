"""The kernels of wide vectors give what the others give, and take only the widths they can."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from marble.models.ssm.scan_native import NativeSelectiveScan
from marble.models.ssm.ssd import Mamba2
from marble.native import library

native_scan: Callable[..., Tensor] = NativeSelectiveScan.apply

pytestmark = pytest.mark.skipif(
    library.missing() is not None or not library.has_wide(), reason="needs the kernels and a processor with AVX-512"
)


def narrow_and_wide(run: Callable[[], list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """What `run` gives with either library, and that it really used both."""
    used: list[str] = []
    really = library._library

    def noted(path: object) -> object:
        used.append(str(path))
        return really(path)  # type: ignore[arg-type]

    monkeypatch.setattr(library, "_library", noted)
    wide = run()
    assert any(path.endswith(library.WIDE_NAME) for path in used)
    used.clear()
    monkeypatch.setattr(library, "has_wide", lambda: False)
    narrow = run()
    assert not any(path.endswith(library.WIDE_NAME) for path in used)
    return list(zip(wide, narrow, strict=True))


def assert_alike(pairs: list[tuple[Tensor, Tensor]]) -> None:
    for wide, narrow in pairs:
        assert float((wide - narrow).abs().max()) <= 1e-13 * float(narrow.abs().max())


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 300])
@pytest.mark.parametrize(("state", "headdim", "groups"), [(8, 8, 2), (64, 16, 1), (24, 32, 1)])
def test_mamba2_of_wide_vectors_is_that_of_narrow_ones(
    tokens: int, state: int, headdim: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(tokens)
    block = Mamba2(32, d_state=state, headdim=headdim, ngroups=groups, backend="native").double()
    x = torch.randn(tokens, 32, dtype=torch.float64, requires_grad=True)

    def run() -> list[Tensor]:
        out, last = block.run(x)
        gradients = torch.autograd.grad((out * out.detach().cos()).sum() + last.sum(), [x, *block.parameters()])
        return [out.detach(), last.detach(), *gradients]

    assert_alike(narrow_and_wide(run, monkeypatch))


@pytest.mark.parametrize("cells", [(1,), (130,), (7, 9)])
def test_selective_scans_of_wide_vectors_are_those_of_narrow_ones(
    cells: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
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

    assert_alike(narrow_and_wide(run, monkeypatch))


def test_a_width_of_half_a_wide_vector_goes_to_the_narrow_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    really = library._library
    monkeypatch.setattr(library, "_library", lambda path: used.append(path.name) or really(path))
    x = torch.rand(5, 12, dtype=torch.float64)
    native_scan(x, x, -torch.rand(12, 3, dtype=x.dtype), *torch.rand(2, 5, 3, dtype=x.dtype))
    assert set(used) == {library.LIBRARY.name}
