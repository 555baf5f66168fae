"""Orders of a scan: the Hilbert curve against its definition, and what each order means for a prediction."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from marble.bags.augment import canonical, generator, reorder, shuffled
from marble.bags.bag import Level
from marble.models import build
from marble.models.inference import infer
from marble.models.orders import arranged, best_first, hilbert_index, hilbert_order, inverse, order_of_each_level
from tests.models.contract import make_bag


def grid(rows: int, cols: int) -> Tensor:
    return torch.cartesian_prod(torch.arange(rows), torch.arange(cols))


def curve_by_recursion(bits: int) -> list[tuple[int, int]]:
    """The Hilbert curve as (row, col) by its drawing rule: four smaller curves, the outer two turned."""
    if bits == 0:
        return [(0, 0)]
    small, half = curve_by_recursion(bits - 1), 1 << (bits - 1)
    return [
        *((x, y) for y, x in small),
        *((y + half, x) for y, x in small),
        *((y + half, x + half) for y, x in small),
        *((half - 1 - x, 2 * half - 1 - y) for y, x in small),
    ]


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5])
def test_hilbert_is_its_drawing_rule(bits: int) -> None:
    cells = grid(1 << bits, 1 << bits)
    drawn = curve_by_recursion(bits)
    assert len(set(drawn)) == 4**bits
    index = hilbert_index(cells[:, 0], cells[:, 1], bits)
    assert [tuple(cell) for cell in cells[torch.argsort(index)].tolist()] == drawn
    assert index.sort().values.tolist() == list(range(4**bits))  # a bijection
    steps = cells[torch.argsort(index)].diff(dim=0).abs().sum(1)
    assert (steps == 1).all()  # from a cell to one beside it


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (5, 3), (7, 12), (33, 2)])
@pytest.mark.parametrize("origin", [(0, 0), (1000, 37), (-5, -2)])
def test_hilbert_of_any_rectangle_and_place(shape: tuple[int, int], origin: tuple[int, int]) -> None:
    cells = grid(*shape)
    order = hilbert_order((cells + torch.tensor(origin)).to(torch.int32))
    assert order.sort().values.tolist() == list(range(len(cells)))
    assert torch.equal(order, hilbert_order(cells))  # where the tissue lies on the glass does not matter
    bits = max(1, (max(shape) - 1).bit_length())
    drawn = [cell for cell in curve_by_recursion(bits) if cell[0] < shape[0] and cell[1] < shape[1]]
    assert [tuple(cell) for cell in cells[order].tolist()] == drawn


def test_hilbert_of_sparse_cells_follows_the_full_curve_and_keeps_near_what_is_near() -> None:
    rng = generator("sparse")
    cells = grid(64, 64)[torch.randperm(4096, generator=rng)[:700]]
    cells = torch.unique(torch.cat([cells, torch.tensor([[0, 0], [63, 63]])]), dim=0)
    place = {cell: i for i, cell in enumerate(curve_by_recursion(6))}
    order = hilbert_order(cells)
    along = [place[(row, col)] for row, col in cells[order].tolist()]
    assert along == sorted(along)
    jumps = cells[order].double().diff(dim=0).norm(dim=1).mean()
    assert jumps < cells.double().diff(dim=0).norm(dim=1).mean() / 2  # row by row


def test_arranged_keeps_parents_and_says_what_moved() -> None:
    bag = shuffled(make_bag(60, 3, seed=4), generator("stored"))
    levels, orders = arranged(bag.levels, ["shuffle", "hilbert", "raster"])
    assert orders[0] is None
    for k, (level, order) in enumerate(zip(levels, orders)):
        source = bag.levels[k]
        taken: Level = source if order is None else source.take(order, None)
        assert torch.equal(level.cells, taken.cells)
        assert torch.equal(level.features, taken.features)
        if k > 0:
            assert level.parent is not None
            assert torch.equal(levels[k - 1].cells[level.parent], level.cells // 2)
    assert torch.equal(levels[2].cells, canonical(bag).levels[2].cells)


def test_best_first_and_inverse() -> None:
    order = best_first(torch.tensor([0.5, 2.0, 0.5, -1.0, 2.0]))
    assert order.tolist() == [1, 4, 0, 2, 3]
    assert inverse(order)[order].tolist() == list(range(5))
    assert order_of_each_level("raster", 3) == ("raster",) * 3


@pytest.mark.parametrize("order", ["raster", "hilbert", "coarse-attention", "learned", ["hilbert", "learned"]])
@pytest.mark.parametrize("block", ["literal", "prenorm"])
def test_an_order_of_its_own_needs_one_pass_and_no_stored_order_matters(order: Any, block: str) -> None:
    torch.manual_seed(1)
    model = build("marble", 32, 2, order=order, block=block, d_state=16, drop_rate=0.0).eval()
    bag = make_bag(120, 2)
    assert not model.order_sensitive
    with torch.no_grad():
        out = model(bag)
    for trial in range(5):
        orders = [torch.randperm(len(level), generator=generator(trial)) for level in bag.levels]
        with torch.no_grad():
            moved = model(reorder(bag, orders))
        assert torch.equal(moved.logits, out.logits)
        assert torch.equal(moved.attention, out.attention[orders[-1]])
    predicted = infer(model, bag, orders=8)
    assert len(predicted.logits_by_order) == 1
    assert predicted.order_sd == 0
    assert torch.equal(model.augment(bag, generator(0)).finest.cells, bag.finest.cells)  # nothing to shuffle


def test_one_shuffled_level_is_enough_to_need_several_orders() -> None:
    model = build("marble", 32, 2, order=["shuffle", "hilbert"], d_state=16).eval()
    assert model.order_sensitive
    predicted = infer(model, make_bag(120, 2), orders=3)
    assert len(predicted.logits_by_order) == 3
    assert predicted.order_sd > 0


def test_orders_differ_and_both_directions_read_the_same_from_either_end() -> None:
    bag = canonical(make_bag(120, 2))
    flipped = reorder(bag, [torch.arange(len(level)).flip(0) for level in bag.levels])

    def said(stored: Any, **options: Any) -> Tensor:
        torch.manual_seed(1)
        model = build("marble", 32, 2, d_state=16, **options).double().eval()
        with torch.no_grad():
            logits: Tensor = model(stored).logits
        return logits

    assert not torch.allclose(said(bag, order="raster"), said(bag, order="hilbert"), rtol=1e-6)
    assert torch.equal(said(bag, order="raster"), said(bag))  # a canonical bag is in raster order
    torch.testing.assert_close(said(bag, directions=2), said(flipped, directions=2), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(said(bag), said(flipped), rtol=1e-6)


@pytest.mark.parametrize("order", ["coarse-attention", "learned"])
def test_scores_that_order_are_trained(order: str) -> None:
    torch.manual_seed(1)
    model = build("marble", 32, 2, order=order, d_state=16)
    torch.autograd.backward(model(make_bag(120, 2)).logits.square().sum())
    scores = {name: p.grad for name, p in model.named_parameters() if name.startswith("order_scores")}
    assert len(scores) == (1 if order == "coarse-attention" else 2)
    assert all(gradient is not None and gradient.any() for gradient in scores.values())
