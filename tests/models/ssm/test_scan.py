"""The fast state-space scans equal their recurrences, outputs and all gradients, and keep little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from marble.models.ssm import s4d, scan, scan2d, scan_blocked
from marble.models.ssm.s4d import S4DKernel, causal_convolution, s4d_kernel
from marble.models.ssm.scan import selective_scan
from marble.models.ssm.scan2d import selective_scan_2d
from marble.models.ssm.scan_reference import s4d_reference, selective_scan_2d_reference, selective_scan_reference
from marble.native.library import BACKEND_VARIABLE, missing
from tests.models.golden_case import relative_error
from tests.models.ssm.term_sizes import ROUNDING, selective_scan_terms, worst_of_the_terms

TOLERANCE = 1e-12
S4D_ROUNDING = 1e-14  # of the terms of a sum that is next to nothing
NAMES = ("x", "dt", "A", "B", "C", "D")


def scan_inputs(shape: tuple[int, ...], d: int, n: int, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x, dt, A, B, C, D with dt A spread evenly, in its logarithm, from -1e-6 to -80."""
    rng = torch.Generator().manual_seed(seed)
    log_range = torch.log(torch.tensor([1e-6, 80.0], dtype=torch.float64))
    log_product = torch.empty(d, dtype=torch.float64).uniform_(*log_range.tolist(), generator=rng)
    share = torch.rand(d, dtype=torch.float64, generator=rng)
    jitter = 1 - 0.5 * torch.rand(*shape, d, dtype=torch.float64, generator=rng)
    spread = 1 - 0.5 * torch.rand(d, n, dtype=torch.float64, generator=rng)
    dt = torch.exp(share * log_product) * jitter
    A = -torch.exp((1 - share) * log_product)[:, None] * spread
    x, B, C, D = (
        torch.randn(*size, dtype=torch.float64, generator=rng) for size in ((*shape, d), (*shape, n), (*shape, n), (d,))
    )
    return [v.to(dtype).requires_grad_() for v in (x, dt, A, B, C, D)]


@pytest.fixture(autouse=True)
def in_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch way, but for the tests of the kernel."""
    if "kernel" not in request.node.name:
        monkeypatch.setenv(BACKEND_VARIABLE, "torch")


needs_kernel = pytest.mark.skipif(missing() is not None, reason=f"native: {missing()}")


@needs_kernel
@settings(max_examples=25, deadline=None)
@given(tokens=st.integers(1, 300), d=st.sampled_from([4, 12, 40, 72]), n=st.integers(1, 17), seed=st.integers(0, 2**16))
def test_kernel_equals_the_recurrence(tokens: int, d: int, n: int, seed: int) -> None:
    inputs = scan_inputs((tokens,), d, n, seed)
    assert scan.uses_kernel(inputs[0])
    assert_scans_agree(outputs_and_gradients(selective_scan, inputs), selective_scan_reference, inputs)


@needs_kernel
@settings(max_examples=20, deadline=None)
@given(
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    d=st.sampled_from([4, 12, 40]),
    n=st.integers(1, 5),
    seed=st.integers(0, 2**16),
)
def test_2d_kernel_equals_the_recurrence(height: int, width: int, d: int, n: int, seed: int) -> None:
    inputs = scan_inputs((height, width), d, n, seed)
    assert_scans_agree(outputs_and_gradients(selective_scan_2d, inputs), selective_scan_2d_reference, inputs)


@needs_kernel
@pytest.mark.parametrize(
    ("shape", "run", "loop"),
    [
        ((300,), selective_scan, selective_scan_reference),
        ((9, 14), selective_scan_2d, selective_scan_2d_reference),
    ],
)
def test_kernels_in_float32_are_as_accurate_as_their_numbers(
    shape: tuple[int, ...], run: Callable[..., Tensor], loop: Callable[..., Tensor]
) -> None:
    inputs = scan_inputs(shape, 8, 4, seed=3, dtype=torch.float32)
    exact = outputs_and_gradients(loop, [v.detach().double().requires_grad_() for v in inputs])
    assert_equal(outputs_and_gradients(run, inputs), exact, tolerance=2e-6)


@needs_kernel
def test_kernels_give_the_same_bits_on_any_number_of_threads() -> None:
    threads = torch.get_num_threads()
    for shape, run in (((130,), selective_scan), ((7, 9), selective_scan_2d)):
        inputs = scan_inputs(shape, 72, 3, seed=1)
        found = []
        try:
            for count in (1, 2, 5):
                torch.set_num_threads(count)
                found.append(outputs_and_gradients(run, inputs))
        finally:
            torch.set_num_threads(threads)
        for other in found[1:]:
            assert all(torch.equal(found[0][name], other[name]) for name in ("y", "x", "dt", "B", "C"))


def test_channels_the_kernel_does_not_take_are_scanned_in_torch() -> None:
    assert not scan.uses_kernel(torch.zeros(5, 6, dtype=torch.float64))
    assert not scan.uses_kernel(torch.zeros(5, 8, dtype=torch.float16))


def outputs_and_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    y = function(*inputs)
    gradients = torch.autograd.grad((y * cotangent(y)).sum(), inputs)
    return {"y": y.detach()} | dict(zip(NAMES, gradients, strict=False))


def cotangent(y: Tensor) -> Tensor:
    return torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view_as(y)


def assert_scans_agree(fast: dict[str, Tensor], loop: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    """The output to 1e-12 of the largest; every element of every gradient to rounding of its terms."""
    slow = outputs_and_gradients(loop, inputs)
    assert_equal({"y": fast["y"]}, {"y": slow["y"]})
    terms = selective_scan_terms(loop, inputs, cotangent(slow["y"]))
    error, name = worst_of_the_terms(fast, slow, terms)
    assert error < ROUNDING, f"{name}: {error:.1e} of its terms"


def assert_equal(fast: dict[str, Tensor], slow: dict[str, Tensor], tolerance: float = TOLERANCE) -> None:
    for name, expected in slow.items():
        error = relative_error(fast[name], expected)
        assert error < tolerance, f"{name}: {error:.1e}"


both_ways = pytest.mark.parametrize("way", ["torch", "batched"])


@contextmanager
def torch_scan(way: str, segment_numbers: int) -> Iterator[None]:
    """The inner loop of CPUs or of accelerators, in segments of so many numbers."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(BACKEND_VARIABLE, way)
        patched.setattr(scan, "SEGMENT_NUMBERS", segment_numbers)
        patched.setattr(scan, "BLOCKED_NUMBERS", segment_numbers)
        yield


@both_ways
@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(1, 600),
    d=st.integers(1, 5),
    n=st.integers(1, 4),
    segment=st.sampled_from([64, 250]),  # several segments, the last one ragged
    seed=st.integers(0, 2**16),
)
def test_scan_equals_the_recurrence(way: str, tokens: int, d: int, n: int, segment: int, seed: int) -> None:
    inputs = scan_inputs((tokens,), d, n, seed)
    with torch_scan(way, segment * d * n):
        fast = outputs_and_gradients(selective_scan, inputs)
    assert_scans_agree(fast, selective_scan_reference, inputs)


@both_ways
@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 31, 32, 33, 64, 65])
def test_scan_at_the_edges_of_its_segments(way: str, tokens: int) -> None:
    inputs = scan_inputs((tokens,), 3, 2, seed=tokens)
    with torch_scan(way, 32 * 3 * 2):
        fast = outputs_and_gradients(selective_scan, inputs)
    assert_scans_agree(fast, selective_scan_reference, inputs)


@pytest.mark.parametrize("block", [2, 3, 4, 8])
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 16, 17, 63, 64, 65, 257])
def test_blocks_of_any_size_are_the_recurrence_both_ways(
    block: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_blocked, "BLOCK", block)
    rng = torch.Generator().manual_seed(tokens)
    decay = torch.rand(tokens, 3, dtype=torch.float64, generator=rng).pow(4)
    added = torch.randn(tokens, 3, dtype=torch.float64, generator=rng)
    there, back = added.clone(), added.clone()
    scan_blocked.scan_forwards(decay, there)
    scan_blocked.scan_backwards(decay, back)
    for t in range(1, tokens):
        torch.testing.assert_close(there[t], added[t] + decay[t] * there[t - 1], rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(back[t - 1], added[t - 1] + decay[t - 1] * back[t], rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(there[0], added[0], rtol=0, atol=0)
    torch.testing.assert_close(back[-1], added[-1], rtol=0, atol=0)


def test_the_scan_of_accelerators_launches_little() -> None:
    launched = 0

    class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal launched
            launched += func._schema.name.split("::")[1] in ("addcmul", "addcmul_", "prod")
            return func(*args, **(kwargs or {}))

    rows = torch.zeros(8192, 1)
    with Count():  # type: ignore[no-untyped-call]
        scan_blocked.scan_forwards(rows, rows.clone())
    assert launched <= 60


@both_ways
def test_scan_in_float32_is_as_accurate_as_its_numbers(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, way)
    inputs = scan_inputs((300,), 6, 4, seed=3, dtype=torch.float32)
    exact = outputs_and_gradients(selective_scan_reference, [v.detach().double().requires_grad_() for v in inputs])
    assert_equal(outputs_and_gradients(selective_scan, inputs), exact, tolerance=2e-6)


@both_ways
def test_a_state_forgotten_at_once_leaves_no_nan(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, way)
    x, dt, A, B, C, D = scan_inputs((40,), 3, 2, seed=0)
    A = (A * 0 - 1e6).detach().requires_grad_()  # exp(dt A) is exactly zero
    found = outputs_and_gradients(selective_scan, (x, dt, A, B, C, D))
    for name, value in found.items():
        assert torch.isfinite(value).all(), name
    torch.testing.assert_close(found["y"], (dt * x * (B * C).sum(1, keepdim=True) + D * x).detach())


def test_scan_keeps_few_numbers_for_the_backward_pass() -> None:
    tokens, d, n = 2048, 64, 16
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    inputs = scan_inputs((tokens,), d, n, seed=0)
    with (
        patch.object(scan, "SEGMENT_NUMBERS", 64 * d * n),
        torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor),
    ):
        selective_scan(*inputs)
    assert kept < 4 * tokens * d  # x twice, dt, B, C and a state every 64 tokens; all states would be 16 times x


@needs_kernel
@pytest.mark.slow
def test_kernel_is_five_times_faster_than_a_loop_over_tokens() -> None:
    inputs = scan_inputs((4096,), 1024, 16, seed=0, dtype=torch.float32)
    seconds: dict[str, list[float]] = {"fast": [], "loop": []}
    for _ in range(3):
        for name, function in (("fast", selective_scan), ("loop", selective_scan_reference)):
            start = perf_counter()
            outputs_and_gradients(function, inputs)
            seconds[name].append(perf_counter() - start)
    assert min(seconds["loop"]) > 5 * min(seconds["fast"]), seconds


@pytest.mark.slow
@both_ways
@settings(max_examples=400, deadline=None, derandomize=False)
@given(tokens=st.integers(1, 900), d=st.integers(1, 16), n=st.integers(1, 5), seed=st.integers(0, 2**16))
def test_scan_equals_the_recurrence_wherever_it_is_looked_at(way: str, tokens: int, d: int, n: int, seed: int) -> None:
    inputs = scan_inputs((tokens,), d, n, seed)
    with torch_scan(way, 64 * d * n):
        fast = outputs_and_gradients(selective_scan, inputs)
    assert_scans_agree(fast, selective_scan_reference, inputs)


@both_ways
@settings(max_examples=20, deadline=None)
@given(
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    d=st.integers(1, 4),
    n=st.integers(1, 3),
    block=st.integers(1, 400),
    seed=st.integers(0, 2**16),
)
def test_scan_2d_equals_the_recurrence(
    way: str, height: int, width: int, d: int, n: int, block: int, seed: int
) -> None:
    inputs = scan_inputs((height, width), d, n, seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(BACKEND_VARIABLE, way)
        patched.setattr(scan2d, "BLOCK_NUMBERS", block)
        patched.setattr(scan2d, "BLOCKED_NUMBERS", block)
        fast = outputs_and_gradients(selective_scan_2d, inputs)
    assert_scans_agree(fast, selective_scan_2d_reference, inputs)


def test_scan_2d_of_one_row_is_the_scan() -> None:
    x, dt, A, B, C, D = scan_inputs((1, 50), 4, 3, seed=1)
    flat = selective_scan(x[0], dt[0], A, B[0], C[0], D)
    torch.testing.assert_close(selective_scan_2d(x, dt, A, B, C, D)[0], flat, rtol=TOLERANCE, atol=TOLERANCE)


def test_scan_2d_buffers_stay_small_on_the_largest_slides() -> None:
    height, width, d, n = 387, 217, 256, 16
    blocks = scan2d._Blocks.of(height, width, d, n)
    rows, channels = blocks.rows[0].stop, blocks.channels[0].stop
    assert rows * width * n * channels <= scan2d.BLOCK_NUMBERS
    assert len(blocks.rows) * width * n * d <= height * width * n * d / 19  # the rows of states that are kept
    assert (blocks.rows[-1].stop, blocks.channels[-1].stop) == (height, d)


def s4d_inputs(tokens: int, d: int, n: int, seed: int) -> list[Tensor]:
    """u, dt, real and imaginary part of A, C, D."""
    rng = torch.Generator().manual_seed(seed)
    u, D = (torch.randn(*size, dtype=torch.float64, generator=rng) for size in ((tokens, d), (d,)))
    C = torch.randn(d, n, 2, dtype=torch.float64, generator=rng)
    dt = torch.exp(torch.empty(d, dtype=torch.float64).uniform_(-7, 0, generator=rng))
    real = -torch.exp(torch.randn(d, n, dtype=torch.float64, generator=rng))
    imaginary = torch.randn(d, n, dtype=torch.float64, generator=rng) * 20
    return [v.requires_grad_() for v in (u, dt, real, imaginary, C, D)]


def s4d_fast(u: Tensor, dt: Tensor, real: Tensor, imaginary: Tensor, C: Tensor, D: Tensor) -> Tensor:
    kernel = s4d_kernel(dt, torch.complex(real, imaginary), torch.view_as_complex(C), len(u), torch.float64)
    return causal_convolution(u.T, kernel).T + D * u


def s4d_slow(u: Tensor, dt: Tensor, real: Tensor, imaginary: Tensor, C: Tensor, D: Tensor) -> Tensor:
    return s4d_reference(u, dt, torch.complex(real, imaginary), torch.view_as_complex(C), D)


@settings(max_examples=20, deadline=None)
@given(tokens=st.integers(1, 300), d=st.integers(1, 5), n=st.integers(1, 4), seed=st.integers(0, 2**16))
def test_s4d_equals_the_recurrence(tokens: int, d: int, n: int, seed: int) -> None:
    inputs = s4d_inputs(tokens, d, n, seed)
    with patch.object(s4d, "BLOCK_NUMBERS", 4 * tokens):  # two channels at a time
        fast = outputs_and_gradients(s4d_fast, inputs)
    slow = outputs_and_gradients(s4d_slow, inputs)
    for name in ("dt", "A", "B"):  # dt, real and imaginary part of A
        if relative_error(fast[name], slow[name]) >= TOLERANCE:
            terms = size_of_the_terms(s4d_slow, inputs, NAMES.index(name))
            error = float(((fast.pop(name) - slow.pop(name)).abs().view_as(terms) / terms).max())
            assert error < S4D_ROUNDING, f"{name}: {error:.1e} of its terms"
    assert_equal(fast, slow)


@pytest.mark.parametrize("which", [1, 2, 3])
def test_the_terms_of_a_gradient_add_up_to_it(which: int) -> None:
    inputs = s4d_inputs(40, 3, 2, seed=5)
    gradient = list(outputs_and_gradients(s4d_slow, inputs).values())[1 + which]
    terms = size_of_the_terms(s4d_slow, inputs, which).view_as(gradient)
    assert bool((terms >= gradient.abs() * (1 - 1e-12)).all())
    assert float(terms.max()) < 100 * float(gradient.abs().max())


def size_of_the_terms(function: Callable[..., Tensor], inputs: Sequence[Tensor], which: int) -> Tensor:
    """Sum over tokens of |what a token adds to the gradient| of a parameter that all tokens of a channel share."""
    values = [v.detach() for v in inputs]
    parameter = values[which].view(len(values[which]), -1)  # (d, 1 or n); channels do not mix
    sizes = torch.empty_like(parameter)
    for k in range(parameter.shape[1]):
        direction = torch.zeros_like(parameter)
        direction[:, k] = 1

        def moved(value: Tensor) -> Tensor:
            return function(*values[:which], value, *values[which + 1 :])

        y, slope = torch.func.jvp(moved, (values[which],), (direction.view_as(values[which]),))[:2]  # (T, d) each
        sizes[:, k] = (slope * cotangent(y)).abs().sum(0)
    return sizes


def test_s4d_kernel_of_many_taps_equals_its_definition_in_float32_too() -> None:
    torch.manual_seed(0)
    taps = 20_000
    module = S4DKernel(channels=2, pairs=16)
    k = module(taps)
    assert k.dtype == torch.float32
    A = torch.complex(-module.log_A_real.double().exp(), module.A_imag.double())
    a = module.log_dt.double().exp()[:, None] * A
    gain = torch.view_as_complex(module.C.double()) * (torch.exp(a) - 1) / A
    definition = 2 * torch.einsum("dn,dnl->dl", gain, torch.exp(a[..., None] * torch.arange(taps))).real
    assert relative_error(k.detach(), definition.detach()) < 1e-6
