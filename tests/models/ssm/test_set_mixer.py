"""The order-free mixer: its segments give its definition, its definition knows no order, and MARBLE none to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from marble.bags.augment import generator, reorder
from marble.bags.bag import Bag, Level
from marble.errors import InputError
from marble.models import build
from marble.models.inference import infer
from marble.models.ssm import ssd_stream
from marble.models.ssm.set_mixer import Rows, SetMixer, reference_mix
from marble.models.ssm.ssd import Mamba2
from tests.models.contract import make_bag


def shaken(seed: int = 0, dim: int = 8) -> SetMixer:
    torch.manual_seed(seed)
    mixer = SetMixer(dim, d_state=6, headdim=4).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return mixer


def wave(like: Tensor) -> Tensor:
    return torch.linspace(-3, 9, like.numel(), dtype=like.dtype).view_as(like).cos()


def by_one_token_at_a_time(mixer: SetMixer, tokens: Tensor) -> Tensor:
    """The equations with loops over tokens and heads: no einsum, no softmax, nothing shared with the code."""
    shape, rows = mixer.shape, tokens @ mixer.in_proj.weight.t()
    H, P, N = shape.heads, shape.headdim, shape.state
    widths = [H * P, H * P, N, N, H]
    z, x, B, C, a = torch.split(rows, widths, dim=1)
    x, B, C = x * torch.sigmoid(x), B * torch.sigmoid(B), C * torch.sigmoid(C)
    S = torch.zeros(H, P, N, dtype=tokens.dtype)
    total = torch.exp(a).sum(0)
    for t in range(len(tokens)):
        for h in range(H):
            S[h] += torch.exp(a[t, h]) / total[h] * torch.outer(x[t, h * P : (h + 1) * P], B[t])
    out = []
    for t in range(len(tokens)):
        y = torch.cat([S[h] @ C[t] + mixer.D[h] * x[t, h * P : (h + 1) * P] for h in range(H)])
        gated = y * z[t] * torch.sigmoid(z[t])
        normal = gated / torch.sqrt(gated.square().mean() + shape.eps) * mixer.norm.weight
        out.append(mixer.out_proj.weight @ normal)
    return torch.stack(out)


@pytest.mark.parametrize("T", [1, 2, 23])
def test_definition_is_the_equations(T: int) -> None:
    mixer = shaken()
    tokens = torch.randn(T, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(T))
    with torch.no_grad():
        torch.testing.assert_close(mixer(tokens), by_one_token_at_a_time(mixer, tokens), rtol=1e-11, atol=1e-12)


def gradients(mixer: SetMixer, loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [*inputs, *mixer.parameters()]))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("T", [1, 63, 64, 65, 200])
def test_segments_give_the_definition_and_its_gradients(monkeypatch: pytest.MonkeyPatch, T: int, kept: bool) -> None:
    monkeypatch.setattr(ssd_stream, "SEGMENT", 64)
    monkeypatch.setattr(ssd_stream, "KEEP_BYTES", 1 << 30 if kept else 0)
    mixer, rng = shaken(T), torch.Generator().manual_seed(T)
    tokens = torch.randn(T, 8, dtype=torch.float64, generator=rng, requires_grad=True)
    shared = torch.randn(3, len(mixer.in_proj.weight), dtype=torch.float64, generator=rng, requires_grad=True)
    index = torch.randint(0, 3, (T,), generator=rng)
    w = torch.randn(8, dtype=torch.float64, generator=rng, requires_grad=True)
    extra = torch.randn(T, dtype=torch.float64, generator=rng, requires_grad=True)

    rows = mixer.in_proj(tokens) + shared[index]
    y = mixer.out_proj(reference_mix(rows, mixer.D, mixer.norm.weight, mixer.shape)[0])
    scores = y @ w + extra
    z = torch.softmax(scores, 0) @ y
    slow = gradients(mixer, (y * wave(y)).sum() + (z * wave(z)).sum() + (scores * wave(scores)).sum(),
                     tokens, shared, w, extra)  # fmt: skip

    def streamed() -> tuple[Tensor, Tensor, Tensor]:
        source = Rows(tokens, mixer.in_proj.weight, mixer.shape, shared, index)
        return mixer.mix(source), *mixer.pool(source, w, extra)

    y_s, z_s, scores_s = streamed()
    fast = gradients(mixer, (y_s * wave(y)).sum() + (z_s * wave(z)).sum() + (scores_s * wave(scores)).sum(),
                     tokens, shared, w, extra)  # fmt: skip
    with torch.no_grad():
        without_graph = streamed()
    for found, truth in zip([y_s, z_s, scores_s, *without_graph, *fast], [y, z, scores, y, z, scores, *slow]):
        assert (found - truth).abs().max() <= 1e-12 * truth.abs().max() + 1e-14


def test_state_is_mamba2s_and_parameters_are_no_more() -> None:
    ours, theirs = SetMixer(1024), Mamba2(1024)
    rows = torch.randn(5, len(ours.in_proj.weight))
    assert reference_mix(rows, ours.D, ours.norm.weight, ours.shape)[1].shape == (32, 64, 128)
    ours_count, theirs_count = (sum(p.numel() for p in m.parameters()) for m in (ours, theirs))
    assert 0.99 * theirs_count < ours_count <= theirs_count


def test_memory_of_the_graph_does_not_grow_with_what_a_segment_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kept rows the graph holds tokens, gates and outputs, and nothing as wide as a projected row."""
    monkeypatch.setattr(ssd_stream, "SEGMENT", 32)
    monkeypatch.setattr(ssd_stream, "KEEP_BYTES", 0)
    mixer = shaken()
    saved: list[int] = []
    tokens = torch.randn(320, 8, dtype=torch.float64, requires_grad=True)

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        rows = Rows(tokens, mixer.in_proj.weight, mixer.shape)
        mixer.pool(rows, torch.ones(8, dtype=torch.float64), None)
    width = len(mixer.in_proj.weight)
    assert sum(size for size in saved if size != tokens.numel()) < 320 * width


def test_tokens_of_another_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"SetMixer takes \(T, 8\) tokens"):
        shaken()(torch.zeros(3, 7, dtype=torch.float64))


# ---- in MARBLE -----------------------------------------------------------------------------------------------------


def with_one_level(bag: Bag) -> Bag:
    return bag.with_levels([replace(bag.finest, parent=None)])


@pytest.mark.parametrize("options", [{}, {"block": "prenorm", "depth": 2}, {"fusion": "shuffled"}])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_any_order_gives_the_same_bits(levels: int, options: dict[str, Any]) -> None:
    """A hundred random orders, for the model itself and for the one pass of a prediction."""
    torch.manual_seed(3)
    model = build("marble", 32, 2, levels=levels, mixer="set", d_state=16, **options).eval()
    bag = make_bag(700, max(levels, 2), seed=1)
    if levels == 1:
        bag = with_one_level(bag)
    with torch.no_grad():
        first = model(bag)
        predicted = infer(model, bag)
        for trial in range(100):
            rng = generator("order", trial)
            orders = [torch.randperm(len(level), generator=rng) for level in bag.levels]
            moved = reorder(bag, orders)
            out = model(moved)
            assert torch.equal(out.logits, first.logits)
            assert torch.equal(out.embedding, first.embedding)
            assert torch.equal(out.attention, first.attention[orders[-1]])
            if trial < 5:
                again = infer(model, moved)
                assert torch.equal(again.logits, predicted.logits)
                assert torch.equal(again.attention, predicted.attention)
    assert not model.order_sensitive
    assert len(predicted.logits_by_order) == 1
    assert predicted.order_sd == 0


def test_it_is_not_the_canonical_order_that_makes_it_order_free() -> None:
    """The mixer alone, handed tokens in another order, differs by rounding and nothing else; a scan does by far."""
    torch.manual_seed(0)
    tokens = torch.randn(500, 32)
    order = torch.randperm(500)
    mixer, scan = SetMixer(32, d_state=16), Mamba2(32, d_state=16)
    with torch.no_grad():
        ours = (mixer(tokens[order]) - mixer(tokens)[order]).abs().max()
        theirs = (scan(tokens[order]) - scan(tokens)[order]).abs().max()
    assert ours < 1e-5
    assert theirs > 1e-2


def test_tokens_do_meet() -> None:
    """Changing one tile changes what is said of the others: not the per-token control under another name."""
    torch.manual_seed(0)
    mixer = shaken()
    tokens = torch.randn(30, 8, dtype=torch.float64)
    changed = tokens.clone()
    changed[0] += 3
    with torch.no_grad():
        assert (mixer(tokens)[1:] - mixer(changed)[1:]).abs().min(dim=1).values.max() > 1e-6


def test_training_gives_the_same_steps_for_any_stored_order() -> None:
    bag = make_bag(300, 2, seed=2)
    orders = [torch.randperm(len(level), generator=generator(k)) for k, level in enumerate(bag.levels)]
    found = []
    for stored in (bag, reorder(bag, orders)):
        torch.manual_seed(0)
        model = build("marble", 32, 2, mixer="set", d_state=16)
        torch.autograd.backward(model(stored).logits.square().sum())
        found.append([p.grad for p in model.parameters()])
    assert all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(*found))


def test_half_precision_bags_need_no_copy() -> None:
    torch.manual_seed(0)
    model = build("marble", 32, 2, mixer="set", d_state=16).eval()
    bag = make_bag(100, 2, dtype=torch.float16)
    levels = [Level(level.features.float(), level.cells, level.parent, level.ratio) for level in bag.levels]
    with torch.no_grad():
        torch.testing.assert_close(model(bag).logits, model(Bag("full", levels)).logits)
