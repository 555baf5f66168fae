"""Nystrom attention and TransMIL against their definitions written out in full."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from marble.models.parts.nystrom import NystromAttention
from marble.models.zoo.transmil import GridPositions, TransMIL
from tests.models.contract import make_bag


def naive_nystrom(layer: NystromAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, with every matrix written out: result (n, dim) and A1 Z A3 (h, p, p)."""
    n, m = len(x), layer.landmarks
    group = -(-n // m)
    x = torch.cat([x.new_zeros(group * m - n, x.shape[1]), x])
    q, k, v = (
        t.reshape(len(x), layer.heads, layer.width).transpose(0, 1) for t in (x @ layer.qkv.weight.T).chunk(3, dim=1)
    )
    q = q * layer.width**-0.5
    q_mean, k_mean = (t.unflatten(1, (m, group)).mean(dim=2) for t in (q, k))
    a1, a2, a3 = (torch.softmax(a @ b.transpose(1, 2), dim=-1) for a, b in ((q, k_mean), (q_mean, k_mean), (q_mean, k)))
    z = a2.transpose(1, 2) / (a2.sum(dim=2).max() * a2.sum(dim=1).max())
    eye = torch.eye(m, dtype=x.dtype)
    for _ in range(layer.iterations):
        y = a2 @ z
        z = 0.25 * z @ (13 * eye - y @ (15 * eye - y @ (7 * eye - y)))
    attention = a1 @ z @ a3
    out = (attention @ v + layer.conv(v[None])[0]).transpose(0, 1).flatten(1)
    out = out @ layer.out.weight.T + layer.out.bias
    return (out[:n] if layer.first_rows else out[-n:]), attention


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 70), m=st.sampled_from([1, 4, 16, 32]), first_rows=st.booleans(), seed=st.integers(0, 99))
def test_nystrom_equals_its_definition(n: int, m: int, first_rows: bool, seed: int) -> None:
    torch.manual_seed(seed)
    layer = NystromAttention(8, heads=2, landmarks=m, first_rows=first_rows).double()
    x = torch.randn(n, 8, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(n, 8, dtype=torch.float64)
    naive, weights = naive_nystrom(layer, x)
    landmarked = layer.project(x)
    assert n <= landmarked.q.shape[1] < n + 2 * -(-n // m)  # a small bag does not pay for its padding
    out = layer.mix(landmarked)
    torch.testing.assert_close(out, naive, rtol=1e-9, atol=1e-11)
    inputs = [x, *layer.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad((out * cotangent).sum(), inputs, retain_graph=True),
        torch.autograd.grad((naive * cotangent).sum(), inputs, retain_graph=True),
        rtol=1e-8,
        atol=1e-10,
    )
    rows = weights[:, :n] if first_rows else weights[:, -n:]
    torch.testing.assert_close(layer.attention_of(landmarked, torch.arange(n)), rows[..., -n:], rtol=1e-9, atol=1e-11)


def test_nystrom_is_exact_attention_when_every_token_is_a_landmark() -> None:
    torch.manual_seed(0)
    layer = NystromAttention(8, heads=2, landmarks=12, iterations=30).double()
    x = torch.randn(12, 8, dtype=torch.float64)
    landmarked = layer.project(x)
    exact = torch.softmax(landmarked.q @ landmarked.k.transpose(1, 2), dim=-1)
    torch.testing.assert_close(layer.attention_of(landmarked, torch.arange(12)), exact, rtol=1e-6, atol=1e-8)


def test_positions_are_three_convolutions_and_the_identity() -> None:
    torch.manual_seed(0)
    positions = GridPositions(6).double()
    x = torch.randn(26, 6, dtype=torch.float64)
    grid = x[1:].T.reshape(1, 6, 5, 5)
    summed = grid + positions.conv7(grid) + positions.conv5(grid) + positions.conv3(grid)
    torch.testing.assert_close(positions(x, 5), torch.cat([x[:1], summed[0].flatten(1).T]))


def test_transmil_attention_folds_copies_back() -> None:
    torch.manual_seed(0)
    model = TransMIL(5, 2, hidden=32).double().eval()
    bag = make_bag(5, 1, dim=5).to(dtype=torch.float64)  # 3 x 3 grid: the first four tokens occur twice
    seen = []
    model.layer2.register_forward_hook(lambda _m, _i, out: seen.append(out[1]))
    out = model(bag)
    raw = model.layer2.attention.attention_of(seen[0], torch.tensor([0])).mean(dim=0)[0, 1:].abs()
    folded = raw[:5].clone()
    folded[:4] += raw[5:]
    order = torch.argsort(bag.finest.cells[:, 0] * 1000 + bag.finest.cells[:, 1])
    torch.testing.assert_close(out.attention[order], (folded / folded.sum()).detach())


@pytest.mark.parametrize(("tokens", "padded"), [(9, False), (16, True)])  # 10 and 17 rows, 10 landmarks
def test_transmil_bug_matters_where_there_is_padding(tokens: int, padded: bool) -> None:
    right, wrong = (TransMIL(5, 2, hidden=20, nystrom_bug=bug).double().eval() for bug in (False, True))
    wrong.load_state_dict(right.state_dict())
    bag = make_bag(tokens, 1, dim=5).to(dtype=torch.float64)
    assert torch.equal(right(bag).logits, wrong(bag).logits) is not padded
