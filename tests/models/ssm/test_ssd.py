"""The fast path of the Mamba-2 block equals the recurrence; the block has the public names and initialisation."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from marble.errors import InputError, UnavailableError
from marble.models.ssm import ssd, ssd_mamba, ssd_stream
from marble.models.ssm.ssd import Mamba2, backends, block_shape, choose_backend
from marble.models.ssm.ssd_native import NativeSegmentGradient
from marble.models.ssm.ssd_reference import recurrence
from marble.native.library import BACKEND_VARIABLE, missing
from tests.models.ssm.term_sizes import ROUNDING, mamba2_terms, worst_of_the_terms

NAMES = {
    "in_proj.weight",
    "conv1d.weight",
    "conv1d.bias",
    "dt_bias",
    "A_log",
    "D",
    "norm.weight",
    "out_proj.weight",
}


FAST = [
    "torch",
    "batched",
    pytest.param("native", marks=pytest.mark.skipif(missing() is not None, reason=f"native: {missing()}")),
]


def block_with_decay(low: float, high: float, ngroups: int, seed: int, d_state: int = 8, headdim: int = 4) -> Mamba2:
    """A small shaken block whose heads have dt*A spread from -low to -high."""
    torch.manual_seed(seed)
    block = Mamba2(8, d_state=d_state, headdim=headdim, ngroups=ngroups).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        heads = block.shape.heads
        decay = torch.exp(torch.empty(heads, dtype=torch.float64).uniform_(math.log(low), math.log(high)))
        dt = 10 ** torch.empty(heads, dtype=torch.float64).uniform_(-3, 1)
        block.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))
        block.A_log.copy_(torch.log(decay / dt))
        block.in_proj.weight[-heads:] *= 0.1  # so that dt stays near what was asked
    return block


@pytest.fixture(autouse=True, scope="module")
def short_segments() -> Iterator[None]:
    """So that a few hundred tokens are several segments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssd_stream, "SEGMENT", 256)
        patch.setattr(ssd_stream, "BATCHED_SEGMENT", 256)
        yield


def wave(like: Tensor) -> Tensor:
    return torch.linspace(-3, 9, like.numel(), dtype=like.dtype).view_as(like).cos()


def outputs_and_gradients(block: Mamba2, tokens: Tensor, backend: str) -> dict[str, Tensor]:
    block.zero_grad(set_to_none=True)
    block.backend = backend
    tokens = tokens.clone().requires_grad_()
    out, state = block.run(tokens)
    # both results take part, each with its own cotangent
    torch.autograd.backward((out * wave(out)).sum() + (state * wave(state)).sum())
    found = {"output": out.detach(), "state": state.detach(), "tokens": tokens.grad}
    found |= {name: parameter.grad for name, parameter in block.named_parameters()}
    assert all(tensor is not None for tensor in found.values())
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def worst_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> tuple[float, str]:
    def error(name: str) -> float:
        assert torch.isfinite(a[name]).all(), f"{name} is not finite"
        scale = float(b[name].abs().max())
        difference = float((a[name] - b[name]).abs().max())
        return difference / scale if scale > 0 else difference

    return max((error(name), name) for name in b)


def assert_paths_agree(block: Mamba2, T: int, seed: int, path: str) -> None:
    """Outputs to 1e-12 of the largest; every element of every gradient to rounding of the terms it is the sum of."""
    tokens = torch.randn(T, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    fast = outputs_and_gradients(block, tokens, path)
    slow = outputs_and_gradients(block, tokens, "reference")
    error, name = worst_difference(fast, {name: slow[name] for name in ("output", "state")})
    assert error < 1e-12, f"{name}: {error:.2e}"
    terms = mamba2_terms(block, tokens, wave(slow["output"]), wave(slow["state"]))
    assert set(terms) == set(slow) - {"output", "state"}
    error, name = worst_of_the_terms(fast, slow, terms)
    assert error < ROUNDING, f"{name}: {error:.2e} of its terms"


@pytest.mark.parametrize("path", FAST)
@settings(max_examples=12, deadline=None)
@given(T=st.integers(1, 600), ngroups=st.sampled_from([1, 2]), seed=st.integers(0, 2**20))
@example(T=529, ngroups=1, seed=4370)  # the terms of A_log's gradient cancel
def test_fast_path_is_the_recurrence(path: str, T: int, ngroups: int, seed: int) -> None:
    assert_paths_agree(block_with_decay(1e-6, 80, ngroups, seed), T, seed, path)


@pytest.mark.slow
@pytest.mark.parametrize("path", FAST)
@settings(max_examples=400, deadline=None, derandomize=False)
@given(T=st.integers(1, 1500), ngroups=st.sampled_from([1, 2]), seed=st.integers(0, 2**20))
def test_fast_path_is_the_recurrence_wherever_it_is_looked_at(path: str, T: int, ngroups: int, seed: int) -> None:
    assert_paths_agree(block_with_decay(1e-6, 80, ngroups, seed), T, seed, path)


@pytest.mark.parametrize("ngroups", [1, 2])
def test_the_terms_of_a_gradient_bound_it_and_are_it_where_nothing_cancels(ngroups: int) -> None:
    block = block_with_decay(0.1, 1, ngroups, seed=7)
    tokens = torch.randn(90, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    slow = outputs_and_gradients(block, tokens, "reference")
    terms = mamba2_terms(block, tokens, wave(slow["output"]), wave(slow["state"]))
    for name, size in terms.items():
        assert bool((size >= slow[name].abs() * (1 - 1e-12)).all()), name
        assert float(size.max()) < 1000 * float(slow[name].abs().max()), name
    one = outputs_and_gradients(block, tokens[:1], "reference")  # of one token, a weight's gradient is one product
    terms = mamba2_terms(block, tokens[:1], wave(one["output"]), wave(one["state"]))
    torch.testing.assert_close(terms["out_proj.weight"], one["out_proj.weight"].abs(), rtol=1e-12, atol=1e-15)


def test_a_wrong_digit_in_a_gradient_is_seen() -> None:
    block = block_with_decay(0.1, 1, 1, seed=7)
    tokens = torch.randn(90, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    slow = outputs_and_gradients(block, tokens, "reference")
    terms = mamba2_terms(block, tokens, wave(slow["output"]), wave(slow["state"]))
    for name in terms:
        wrong = dict(slow) | {name: slow[name] * (1 + 1e-11)}
        assert worst_of_the_terms(wrong, slow, terms)[0] > ROUNDING, name


def test_sizes_the_kernel_does_not_take_run_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    block = block_with_decay(1e-6, 80, 1, seed=2, d_state=6)
    assert block.path() == "torch"
    assert_paths_agree(block, 150, 2, "torch")
    with pytest.raises(UnavailableError, match="native"):
        outputs_and_gradients(block, torch.zeros(3, 8, dtype=torch.float64), "native")


@pytest.mark.skipif(missing() is not None, reason=f"native: {missing()}")
def test_the_kernel_gives_the_same_bits_on_any_number_of_threads() -> None:
    torch.manual_seed(0)
    block = Mamba2(48, d_state=16, headdim=8)  # 12 heads, 3 blocks of them
    rows = torch.randn(203, block.shape.projected)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            scan = NativeSegmentGradient(block.scan_weights(), block.shape, None)
            with torch.no_grad():
                gated = scan.recompute(rows, torch.zeros_like(scan.state)).clone()
                found.append((gated, scan.backward(rows, gated.cos()).clone(), *scan.weight_gradients()))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other))


@pytest.mark.parametrize("path", FAST)
@pytest.mark.parametrize("ngroups", [1, 2])
@pytest.mark.parametrize("decay", [1e-6, 1.0, 80.0])
@pytest.mark.parametrize("T", [1, 2, 3, 64, 65, 513])
def test_fast_path_at_one_decay_for_all_heads(T: int, decay: float, ngroups: int, path: str) -> None:
    assert_paths_agree(block_with_decay(decay, decay * 1.001, ngroups, seed=T), T, T, path)


@pytest.mark.parametrize("path", FAST)
def test_rows_projected_again_give_the_same_gradients(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block = block_with_decay(1e-3, 10, 1, seed=3)
    tokens = torch.randn(1100, 8, dtype=torch.float64)
    kept = outputs_and_gradients(block, tokens, path)
    monkeypatch.setattr(ssd_stream, "KEEP_BYTES", 0)
    again = outputs_and_gradients(block, tokens, path)
    error, name = worst_difference(again, kept)
    assert error < 1e-13, f"{name}: {error:.2e}"


@pytest.mark.parametrize("path", FAST)
@pytest.mark.parametrize("dt_bias", [-900.0, -100.0, 50.0])
def test_extreme_steps_stay_finite_and_right(dt_bias: float, path: str) -> None:
    """dt underflows to zero at -900; at 50 a step forgets everything."""
    block = block_with_decay(0.1, 10, 1, seed=1)
    with torch.no_grad():
        block.dt_bias.fill_(dt_bias)
    tokens = torch.randn(130, 8, dtype=torch.float64)
    fast = outputs_and_gradients(block, tokens, path)
    slow = outputs_and_gradients(block, tokens, "reference")
    for name in ("output", "tokens", "out_proj.weight", "conv1d.weight", "D"):
        scale = slow[name].abs().max()
        assert (fast[name] - slow[name]).abs().max() <= 1e-12 * scale, name
    assert all(torch.isfinite(tensor).all() for tensor in fast.values())


@pytest.mark.parametrize("path", FAST)
def test_float32_is_accurate_where_decays_add_up(path: str) -> None:
    """Sums of dt*A reach thousands inside a chunk, which float32 alone could not subtract."""
    block = block_with_decay(1.0, 80, 1, seed=5, headdim=8)
    tokens = torch.randn(300, 8, dtype=torch.float64)
    exact = outputs_and_gradients(block, tokens, "reference")
    single = outputs_and_gradients(block.float(), tokens.float(), path)
    for name in ("output", "tokens", "in_proj.weight", "out_proj.weight", "D"):
        assert (single[name] - exact[name]).abs().max() < 5e-6 * exact[name].abs().max(), name


def test_half_precision_tokens_are_converted_on_the_way() -> None:
    torch.manual_seed(0)
    block = Mamba2(8, d_state=6, headdim=4)
    tokens = torch.randn(700, 8).half()
    assert torch.equal(block(tokens), block(tokens.float()))


def test_repeats_bit_for_bit_and_two_backward_passes_agree() -> None:
    torch.manual_seed(0)
    block = Mamba2(16, d_state=8, headdim=8)
    tokens = torch.randn(600, 16)
    out = block(tokens)
    assert torch.equal(out, block(tokens))
    with torch.no_grad():
        assert torch.equal(out, block(tokens))
    first = torch.autograd.grad(out.square().sum(), block.in_proj.weight, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(out.square().sum(), block.in_proj.weight)[0])


def test_no_token_sees_a_later_one() -> None:
    torch.manual_seed(0)
    block = Mamba2(8, d_state=6, headdim=4).double()
    tokens = torch.randn(200, 8, dtype=torch.float64)
    changed = tokens.clone()
    changed[150:] += 1
    with torch.no_grad():
        before, after = block(tokens), block(changed)
    torch.testing.assert_close(before[:150], after[:150], rtol=0, atol=1e-14)
    assert (before[150:] - after[150:]).abs().max() > 1e-3


def test_names_sizes_and_initialisation() -> None:
    torch.manual_seed(0)
    block = Mamba2(1024)
    assert set(block.state_dict()) == NAMES
    assert sum(p.numel() for p in block.parameters()) == 6_600_032 == block.shape.parameters(1024)
    assert block.in_proj.weight.shape == (4384, 1024)
    assert block.conv1d.weight.shape == (2304, 1, 4)
    wide = Mamba2(1024, headdim=1, d_state=1)  # 2048 heads, to see the distributions
    A = wide.A_log.exp()
    assert 1 <= A.min() < 1.2
    assert 15.8 < A.max() <= 16.001
    assert abs(A.mean() - 8.5) < 0.4
    dt = torch.nn.functional.softplus(wide.dt_bias)
    assert dt.min() >= 0.999e-3
    assert dt.max() <= 0.1001
    assert abs(dt.log().mean() - math.log(1e-2)) < 0.15
    assert torch.equal(wide.D, torch.ones(2048))
    assert torch.equal(wide.norm.weight, torch.ones(2048))


def test_backend_argument_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, like = block_shape(64), torch.zeros(1)
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    assert choose_backend("auto", shape, like) == ("torch" if missing() else "native")
    assert choose_backend("auto", shape, like.half()) == "torch"
    monkeypatch.setenv(BACKEND_VARIABLE, "reference")
    assert choose_backend("auto", shape, like) == "reference"
    assert choose_backend("torch", shape, like) == "torch"


def test_unknown_or_missing_backends_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"'tuch'.*auto, reference, torch, native, batched, mamba_ssm"):
        Mamba2(8, headdim=4, backend="tuch")
    monkeypatch.setenv(BACKEND_VARIABLE, "cuda")
    with pytest.raises(InputError, match=r"MARBLE_SSD_BACKEND.*'cuda'.*reference, torch, native, batched, mamba_ssm"):
        Mamba2(8, headdim=4)(torch.zeros(1, 8))
    with pytest.raises(UnavailableError, match="mamba_ssm"):
        Mamba2(8, headdim=4, backend="mamba_ssm")(torch.zeros(1, 8))


def test_backends_say_what_works_here() -> None:
    found = {backend.name: backend for backend in backends()}
    assert list(found) == list(ssd.BACKENDS)
    assert found["torch"].works
    assert found["native"].works == (missing() is None)
    assert found["mamba_ssm"].works or "needs" in found["mamba_ssm"].note


@pytest.mark.parametrize("shape", [(0, 8), (3, 7), (1, 3, 8)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"\(T, 8\)"):
        Mamba2(8, headdim=4)(torch.zeros(shape))


def test_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="multiple of headdim"):
        Mamba2(8, headdim=5)


# ---- mamba_ssm's kernels, whose place the recurrence takes where there is no GPU ----


@pytest.fixture
def pretended_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ssd_mamba, "kernel_scan", recurrence)
    monkeypatch.setattr(ssd_mamba, "why_not", lambda *_: None)
    ssd_mamba.self_test.cache_clear()
    yield
    ssd_mamba.self_test.cache_clear()


@pytest.mark.usefixtures("pretended_kernels")
@pytest.mark.parametrize("ngroups", [1, 2])
@pytest.mark.parametrize("T", [1, 5, 64, 70, 300])
def test_around_the_kernels_of_mamba_ssm_everything_is_ours_and_right(T: int, ngroups: int) -> None:
    assert_paths_agree(block_with_decay(1e-3, 10, ngroups, seed=T), T, T, "mamba_ssm")


@pytest.mark.usefixtures("pretended_kernels")
def test_segments_beyond_32_bits_are_refused_by_mamba_ssm(monkeypatch: pytest.MonkeyPatch) -> None:
    block = block_with_decay(1e-3, 10, 1, seed=0)
    monkeypatch.setattr(ssd_mamba, "MOST_ELEMENTS", 20 * block.shape.projected)
    block.backend = "mamba_ssm"
    block(torch.zeros(17, 8, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="at most 20 tokens at once"):
        block(torch.zeros(18, 8, dtype=torch.float64))


@pytest.mark.usefixtures("pretended_kernels")
def test_kernels_are_trusted_only_after_they_were_right_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ssd_mamba.self_test("cpu") is None

    def a_little_wrong(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        y, last = recurrence(*inputs)
        return y * 1.01, last

    for wrong, said in ((a_little_wrong, "off by"), (lambda *inputs: 1 // 0, "ZeroDivisionError")):
        ssd_mamba.self_test.cache_clear()
        monkeypatch.setattr(ssd_mamba, "kernel_scan", wrong)
        assert said in (ssd_mamba.self_test("cpu") or "")
    monkeypatch.setattr(ssd_mamba, "kernel_scan", recurrence)
    assert ssd_mamba.self_test("cpu") is not None  # tried once


def test_accelerators_get_the_batched_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    assert choose_backend("auto", block_shape(64), torch.zeros(1, device="meta")) == "batched"
    monkeypatch.setattr(ssd_mamba, "why_not", lambda *_: None)
    assert choose_backend("auto", block_shape(64), torch.zeros(1, device="meta")) == "mamba_ssm"


def test_kernels_that_would_lose_digits_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ssd_mamba, "find_spec", lambda name: name)
    monkeypatch.setattr(ssd_mamba, "self_test", lambda device: None)
    assert ssd_mamba.why_not(torch.device("cuda")) is None
    assert ssd_mamba.why_not(torch.device("cuda"), torch.float64) == "takes float32, not torch.float64"
