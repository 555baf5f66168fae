"""MambaMIL, SRMambaMIL, 2DMambaMIL and S4-MIL beyond the contract and the golden cases."""

from __future__ import annotations

from math import ceil
from typing import Any, Literal
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import layer_norm, pad, silu, softplus

from marble.bags.bag import Bag, Level
from marble.errors import BagError, InputError
from marble.models import build
from marble.models.originals.weights import load_reference
from marble.models.ssm import mamba1
from marble.models.ssm.mamba1 import DT_MAX, DT_MIN, Mamba1Mixer, causal_conv, deinterleave, gated, interleave
from marble.models.zoo.mamba2d import Mamba2DMIL
from marble.models.zoo.mambamil import MambaMIL, SRMambaMIL
from marble.models.zoo.s4mil import S4MIL

DIM = 12
SMALL: dict[str, dict[str, Any]] = {
    "mambamil": {"hidden": 16, "attention_hidden": 4},
    "srmambamil": {"hidden": 16, "attention_hidden": 4},
    "2dmambamil": {"hidden": 16, "attention_hidden": 4},
    "s4mil": {"hidden": 16},
}


def bag_of(cells: list[tuple[int, int]], seed: int = 0) -> Bag:
    features = torch.randn(len(cells), DIM, generator=torch.Generator().manual_seed(seed))
    return Bag("slide-1", [Level(features, torch.tensor(cells))])


def square(side: int, row: int = 0, col: int = 0) -> list[tuple[int, int]]:
    return [(row + i, col + j) for i in range(side) for j in range(side)]


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("mambamil", {}, 3_984_131),
        ("mambamil", {"bidirectional": True}, 4_227_843),
        ("srmambamil", {}, 4_227_843),
        ("2dmambamil", {}, 265_091),
        ("s4mil", {}, 1_085_954),
    ],
)
def test_parameter_counts_of_the_papers(name: str, options: dict[str, Any], parameters: int) -> None:
    assert build(name, 1024, 2, **options).parameter_count() == parameters


# ---- Mamba-1 mixer -----------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 60), rate=st.integers(1, 12))
def test_interleaving_follows_its_definition_and_is_undone(tokens: int, rate: int) -> None:
    x = torch.arange(1.0, tokens + 1)[:, None]
    places = ceil(tokens / rate)
    expected = torch.zeros(places * rate, 1)
    for token in range(tokens):
        k, w = divmod(token, rate)
        expected[w * places + k] = x[token]
    assert torch.equal(interleave(x, rate), expected)
    assert torch.equal(deinterleave(interleave(x, rate), rate)[:tokens], x)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 50])
def test_causal_convolution(tokens: int) -> None:
    torch.manual_seed(0)
    conv = nn.Conv1d(6, 6, 4, groups=6).double()
    x = torch.randn(tokens, 6, dtype=torch.float64, requires_grad=True)
    ours, theirs = causal_conv(x, conv), conv(pad(x.T, (3, 0))).T
    torch.testing.assert_close(ours, theirs)
    weights, inputs = torch.randn_like(ours), [x, *conv.parameters()]
    gradients = [torch.autograd.grad((y * weights).sum(), inputs) for y in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("narrow", [torch.float64, torch.bfloat16])
def test_the_gate_is_that_of_its_equation(narrow: torch.dtype) -> None:
    torch.manual_seed(0)
    y = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    z = torch.randn(5, 6, dtype=torch.float64).to(narrow).requires_grad_()
    ours, as_written = gated(y, z), y * silu(z.double())
    assert ours.dtype == y.dtype
    torch.testing.assert_close(ours, as_written)
    gradients = [torch.autograd.grad((out * y.detach().cos()).sum(), [y, z]) for out in (ours, as_written)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("second", [None, "flip", 3])
def test_a_long_bag_is_recomputed_to_the_same_gradients(second: Literal["flip"] | int | None) -> None:
    torch.manual_seed(0)
    mixer = Mamba1Mixer(16, second=second)
    h = torch.randn(30, 16, requires_grad=True)
    inputs = [h, *mixer.parameters()]
    kept = torch.autograd.grad(mixer(h).square().sum(), inputs)
    with patch.object(mamba1, "RECOMPUTE_FROM", 30):
        recomputed = torch.autograd.grad(mixer(h).square().sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(kept, recomputed, strict=True))


@pytest.mark.parametrize("second", [None, "flip", 3])
def test_only_a_second_branch_looks_ahead(second: Literal["flip"] | int | None) -> None:
    torch.manual_seed(0)
    mixer = Mamba1Mixer(16, second=second).double()
    h = torch.randn(20, 16, dtype=torch.float64)
    later = h.clone()
    later[10:] += 1
    moved = (mixer(later) - mixer(h)).abs().amax(1) > 1e-12
    assert moved[10:].all()
    assert bool(moved[:10].any()) == (second is not None)


def name_in_second_branch(key: str) -> str:
    layer, dot, tensor = key.partition(".")
    if layer in ("in_proj", "out_proj"):  # shared
        return key
    return {"A_log": "A_b_log"}.get(layer, f"{layer}_b") + dot + tensor


def test_reordering_at_rate_one_is_two_plain_branches() -> None:
    torch.manual_seed(0)
    mixer, plain, twin = (Mamba1Mixer(16, second=second).double() for second in (1, None, None))
    weights = mixer.state_dict()
    plain.load_state_dict({key: weights[key] for key in plain.state_dict()})
    twin.load_state_dict({key: weights[name_in_second_branch(key)] for key in twin.state_dict()})
    h = torch.randn(9, 16, dtype=torch.float64)
    torch.testing.assert_close(mixer(h), plain(h) + twin(h))


def test_initial_steps() -> None:
    torch.manual_seed(0)
    for mixer in (Mamba1Mixer(32, second="flip"), MambaMIL(DIM, 2, hidden=32, init="proper").layers[0][1]):  # type: ignore[index]
        assert isinstance(mixer, Mamba1Mixer)
        steps = softplus(mixer.dt_proj.bias.detach())
        assert (steps > 0.99 * DT_MIN).all()
        assert (steps < 1.01 * DT_MAX).all()
        torch.testing.assert_close(mixer.A_log.detach()[3].exp(), torch.arange(1.0, 17))


@pytest.mark.parametrize("name", ["mambamil", "srmambamil", "2dmambamil"])
def test_the_authors_initialisation_zeroes_every_bias_of_a_linear_layer(name: str) -> None:
    model = build(name, DIM, 2, **SMALL[name])
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    mixers = [layer for layer in model.modules() if isinstance(layer, Mamba1Mixer)]
    assert mixers
    assert all(mixer.dt_proj in linear for mixer in mixers)
    assert not any(layer.bias.any() for layer in linear if layer.bias is not None)


# ---- loading originals -------------------------------------------------------------------------------------------


def original_names(model: nn.Module, names: dict[str, str]) -> dict[str, Tensor]:
    """The state dict as the original repository would have saved it."""
    back = {ours: theirs for theirs, ours in sorted(names.items(), key=lambda pair: -len(pair[1]))}
    found = {}
    for key, tensor in model.state_dict().items():
        prefix = next((p for p in back if key.startswith(p)), None)
        found[key if prefix is None else back[prefix] + key.removeprefix(prefix)] = tensor
    return found


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("name", list(SMALL))
def test_checkpoints_with_original_names_load(name: str, outputs: int) -> None:
    model = build(name, DIM, outputs, **SMALL[name]).eval()
    tensors = original_names(model, dict(model.reference_names))
    assert tensors.keys() != model.state_dict().keys()
    loaded = load_reference(name, tensors, **SMALL[name]).eval()
    bag = bag_of(square(4))
    assert torch.equal(loaded(bag).logits, model(bag).logits)


def test_a_checkpoint_of_another_model_is_refused() -> None:
    model = build("s4mil", DIM, 2, **SMALL["s4mil"])
    tensors = original_names(model, dict(model.reference_names))
    with pytest.raises(InputError, match=r"not a checkpoint of 'mambamil'.*_fc1"):
        load_reference("mambamil", tensors)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InputError, match="init"):
        MambaMIL(DIM, 2, init="xavier")
    with pytest.raises(InputError, match="act"):
        MambaMIL(DIM, 2, act="tanh")
    with pytest.raises(InputError, match="rate"):
        SRMambaMIL(DIM, 2, rate=0)
    with pytest.raises(InputError, match="empty"):
        Mamba2DMIL(DIM, 2, empty="mean")
    with pytest.raises(InputError, match="grid"):
        Mamba2DMIL(DIM, 2, grid=(0, 4))
    with pytest.raises(InputError, match="grid"):
        Mamba2DMIL(DIM, 2, grid="dataset")
    with pytest.raises(InputError, match="state"):
        S4MIL(DIM, 2, state=15)


# ---- 2DMambaMIL --------------------------------------------------------------------------------------------------


def test_a_slide_may_lie_anywhere_on_its_lattice() -> None:
    model = Mamba2DMIL(DIM, 2, **SMALL["2dmambamil"]).eval()
    here, there = model(bag_of(square(5))), model(bag_of(square(5, row=-3, col=40)))
    assert torch.equal(here.logits, there.logits)


def test_a_grid_that_just_holds_the_slide_is_the_slides_own() -> None:
    torch.manual_seed(0)
    model = Mamba2DMIL(DIM, 2, **SMALL["2dmambamil"]).eval()
    bag = bag_of([(0, 0), (0, 3), (2, 1), (4, 2)])
    own = model(bag).logits
    model.grid = (5, 4)
    assert torch.equal(model(bag).logits, own)
    model.grid = (6, 4)
    assert not torch.allclose(model(bag).logits, own)  # empty cells take part


def test_empty_cells_count_in_the_pooling_but_not_in_the_attention() -> None:
    torch.manual_seed(0)
    model = Mamba2DMIL(DIM, 2, **SMALL["2dmambamil"]).eval().double()
    bag = bag_of([(0, 0), (1, 2), (2, 1)])
    out = model(bag)
    place, grid = model.place(bag)
    assert (place.tolist(), grid) == ([0, 5, 7], (3, 3))
    cells = model.encode(model.tokens(bag), place, grid)
    weights = model.attention(cells)[0].softmax(0)
    torch.testing.assert_close(out.embedding, (weights[:, None] * cells).sum(0))
    torch.testing.assert_close(out.attention, weights[place] / weights[place].sum())
    assert float(weights[place].detach().sum()) < 0.9


@pytest.mark.parametrize("empty", ["trainable", "zero"])
def test_what_empty_cells_hold(empty: str) -> None:
    model = Mamba2DMIL(DIM, 2, layers=0, empty=empty, **SMALL["2dmambamil"])
    cells = model.encode(torch.randn(1, DIM), torch.tensor([0]), (1, 2))
    held = torch.zeros(16) if model.empty_cell is None else model.empty_cell
    torch.testing.assert_close(cells[1], layer_norm(held, (16,)))
    assert (model.empty_cell is not None) == (empty == "trainable")


def test_tiles_outside_the_grid_are_refused() -> None:
    model = Mamba2DMIL(DIM, 2, grid=(4, 4), **SMALL["2dmambamil"])
    with pytest.raises(BagError, match=r"slide-1.*\(0, 0\) to \(4, 4\).*4 x 4"):
        model(bag_of(square(5)))
    with pytest.raises(BagError, match=r"slide-1.*\(-1, 0\)"):
        model(bag_of([(-1, 0), (0, 0)]))


def test_pixels_taken_for_cells_are_refused() -> None:
    with pytest.raises(BagError, match=r"100001 x 100001 cells"):
        Mamba2DMIL(DIM, 2)(bag_of([(0, 0), (100_000, 100_000)]))


# ---- S4-MIL ------------------------------------------------------------------------------------------------------


def test_attention_of_s4mil_is_the_share_of_channels_a_token_won() -> None:
    torch.manual_seed(0)
    model = S4MIL(DIM, 2, hidden=16).eval()
    bag = bag_of(square(3))
    out = model(bag)
    tokens = model.encode(model.tokens(bag))
    for t in range(9):
        won = sum(bool(tokens[t, c] == tokens[:, c].max()) for c in range(16))
        assert float(out.attention[t]) == pytest.approx(won / 16)


def test_s4mil_is_causal() -> None:
    torch.manual_seed(0)
    model = S4MIL(DIM, 2, hidden=16).double()
    x = torch.randn(20, DIM, dtype=torch.float64)
    later = x.clone()
    later[10:] += 1
    moved = (model.encode(later) - model.encode(x)).abs().amax(1) > 1e-9
    assert moved.tolist() == [False] * 10 + [True] * 10


def test_the_kernel_of_a_long_bag_needs_little_memory() -> None:
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    channels, taps = 8, 60_000
    model = S4MIL(DIM, 2, hidden=channels)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model.s4d.kernel(taps)
    all_at_once = channels * 16 * taps * 8  # bytes of one complex64 matrix of all exponentials
    assert kept < all_at_once / 20
