"""HIPT, HAG-MIL, CS-MIL and ZoomMIL: what the golden cases and the contract do not show; sizes of TransMIL too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from marble.bags.bag import Bag, Level
from marble.errors import BagError, InputError
from marble.models import build
from marble.models.parts.topk import hard_topk, perturbed_topk
from marble.models.parts.tree import ancestors, finest_levels, spread
from marble.models.parts.vit import ViT4K
from marble.models.zoo.csmil import CSMIL
from marble.models.zoo.hagmil import HAGMIL, IAT, OMEGA, children
from marble.models.zoo.hipt import HIPT, segment_softmax, square_regions
from marble.models.zoo.zoommil import Scale, ZoomMIL
from tests.models.contract import make_bag
from tests.models.golden_systems.hierarchical_models import complete_tree

SMALL: dict[str, dict[str, Any]] = {
    "hagmil": {"widths": (16, 24), "attention_dims": (12, 8)},
    "csmil": {"hidden": 12, "attention_dim": 6},
    "zoommil": {"hidden": 12, "attention_dim": 6, "k": 3},
}


@pytest.mark.parametrize(
    ("name", "options", "dim", "outputs", "parameters"),
    [
        ("transmil", {}, 1024, 2, 2_672_146),
        ("hipt", {"variant": "lgp_fc"}, 384, 2, 3_376_515),
        ("hagmil", {"levels": 1}, 1024, 2, 30_201_903),
        ("csmil", {}, 1024, 1, 71_939),  # the original has one output
        ("csmil", {}, 2048, 1, 137_475),
        ("zoommil", {}, 1024, 2, 2_889_991),
    ],
)
def test_parameters_are_those_of_the_original(
    name: str, options: dict[str, Any], dim: int, outputs: int, parameters: int
) -> None:
    assert build(name, dim, outputs, **options).parameter_count() == parameters


def test_vit4k_parameters() -> None:
    assert sum(p.numel() for p in ViT4K().parameters()) == 2_781_504


# ---- HIPT ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(segments=st.lists(st.integers(0, 4), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_segment_softmax(segments: list[int], seed: int) -> None:
    segment = torch.tensor([sorted(set(segments)).index(s) for s in segments])
    scores = 50 * torch.randn(len(segment), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = segment_softmax(scores, segment, len(set(segments)))
    for s in set(segment.tolist()):
        torch.testing.assert_close(found[segment == s], torch.softmax(scores[segment == s], dim=0))


def test_square_regions_group_cells_of_16_by_16() -> None:
    level = Level(torch.zeros(5, 1), torch.tensor([[0, 0], [15, 15], [0, 16], [-1, 0], [16, 16]]))
    region, count = square_regions(level)
    assert region[0] == region[1]
    assert len(set(region.tolist())) == count == 4


def test_hipt_lgp_ignores_where_a_region_lies_but_not_where_its_tiles_lie() -> None:
    torch.manual_seed(0)
    model = HIPT(6, 2, variant="lgp_fc", hidden=12, vit_depth=1, vit_heads=2).double().eval()
    bag = make_bag(30, 1, dim=6).to(dtype=torch.float64)

    def moved(by: int) -> Tensor:
        return model(bag.with_levels([Level(bag.finest.features, bag.finest.cells + by)])).logits

    torch.testing.assert_close(moved(160), moved(0))
    assert not torch.allclose(moved(1), moved(0), rtol=1e-6)


def test_vit4k_takes_published_names_and_refuses_strangers() -> None:
    vit = ViT4K(6, 12, 1, 2)
    published = {f"module.backbone.{name}": tensor + 1 for name, tensor in vit.state_dict().items()}
    published["module.head.mlp.0.weight"] = torch.zeros(3)
    vit.load_pretrained(published)
    assert torch.equal(vit.cls_token, published["module.backbone.cls_token"])
    with pytest.raises(InputError, match=r"(?s)ViT-4K.*stranger"):
        vit.load_pretrained({**published, "stranger": torch.zeros(1)})


# ---- the tree -----------------------------------------------------------------------------------------------------


def test_ancestors_and_spread() -> None:
    bag = make_bag(40, 3)
    above = ancestors(bag.levels)
    for k in range(3):
        assert torch.equal(above[k], bag.ancestors(k))
    shares = torch.rand(len(bag.levels[0]), dtype=torch.float64)
    dealt = spread(shares, above[0])
    for tile, share in enumerate(shares):
        below = dealt[above[0] == tile]
        torch.testing.assert_close(below, (share / len(below)).expand(len(below)))


@pytest.mark.parametrize("name", ["hagmil", "csmil", "zoommil"])
def test_too_few_levels_are_refused_and_more_are_left_out(name: str) -> None:
    model = build(name, 32, 2, levels=2, **SMALL[name]).eval()
    with pytest.raises(BagError, match=r"s-1: .*2 levels, the bag has 1.*levels=1"):
        model(make_bag(7, 1))
    bag = make_bag(30, 3)
    finest_two = Bag("s-1", [Level(bag.levels[1].features, bag.levels[1].cells), bag.levels[2]])
    assert torch.equal(model(bag).logits, model(finest_two).logits)
    assert finest_levels(bag, 2) == bag.levels[1:]


def with_childless(bag: Bag) -> Bag:
    """The same bag with one more tile at the coarsest level, below which there is nothing."""
    coarse = bag.levels[0]
    features = torch.cat([coarse.features, 100 * torch.ones(1, coarse.dim, dtype=coarse.features.dtype)])
    cells = torch.cat([coarse.cells, coarse.cells.max() + torch.ones(1, 2, dtype=torch.int32)])
    return Bag(bag.slide_id, [Level(features, cells), *bag.levels[1:]])


@pytest.mark.parametrize("name", ["hagmil", "zoommil"])
@pytest.mark.parametrize("training", [True, False])
def test_a_childless_tile_never_leaves_the_next_level_empty(name: str, training: bool) -> None:
    option = {"hagmil": {"top": 1, "top_eval": 1}, "zoommil": {"k": 1}}[name]
    torch.manual_seed(0)
    for seed in range(4):
        model = build(name, 32, 2, levels=3, **{**SMALL[name], **option}).train(training)
        out = model(with_childless(make_bag(20, 3, seed=seed)))
        assert torch.isfinite(out.logits).all()
        assert float(out.attention.sum().detach()) == pytest.approx(1, abs=1e-5)


# ---- CS-MIL -------------------------------------------------------------------------------------------------------


def test_csmil_sums_the_weighted_views_of_every_tile() -> None:
    torch.manual_seed(0)
    model = CSMIL(32, 2, levels=3, hidden=12, attention_dim=6).double().eval()
    bag = make_bag(20, 3).to(dtype=torch.float64)
    tiles = []
    for t in range(20):
        views = [bag.levels[k].features[bag.ancestors(k)[t]] for k in range(3)]
        embedded = [torch.relu(model.embed(view)) for view in views]
        weights = [model.scale_weight(torch.relu(model.scale_hidden(e))) for e in embedded]
        tiles.append(sum(s * e for s, e in zip(weights, embedded, strict=True)))
    stacked = torch.stack([torch.as_tensor(tile) for tile in tiles])
    attention = torch.softmax(model.attention(stacked)[0], dim=0)
    out = model(bag)
    torch.testing.assert_close(out.attention, attention)
    torch.testing.assert_close(out.logits, model.head(attention @ stacked))


# ---- HAG-MIL ------------------------------------------------------------------------------------------------------


def test_omega() -> None:
    assert pytest.approx(1.7595671399, abs=1e-9) == OMEGA


def test_children_follow_their_parents_order() -> None:
    bag = make_bag(40, 2)
    parent = bag.finest.parent
    assert parent is not None
    parents = torch.randperm(len(bag.levels[0]))[:3]
    found = children(parents, len(bag.levels[0]), bag.finest)
    expected = [
        t
        for p in parents.tolist()
        for t in sorted((parent == p).nonzero()[:, 0].tolist(), key=lambda t: bag.finest.cells[t].tolist())
    ]
    assert found.tolist() == expected


def test_hagmil_levels_do_not_teach_each_other() -> None:
    torch.manual_seed(0)
    model = HAGMIL(32, 2, levels=2, widths=(16, 24), attention_dims=(12, 8)).eval()
    out = model(make_bag(30, 2))
    torch.autograd.backward(out.logits.sum())
    coarse = model.iats[1]
    assert isinstance(coarse, IAT)
    assert all(p.grad is None for p in coarse.parameters())
    assert len(out.side) == 1
    torch.autograd.backward(out.side[0].logits.sum())
    assert all(p.grad is not None for p in coarse.blocks.parameters())


def test_hagmil_keeps_top_tiles_only() -> None:
    torch.manual_seed(0)
    model = HAGMIL(32, 2, levels=2, top_eval=2, **SMALL["hagmil"]).eval()
    bag = make_bag(30, 2)
    views = []
    model.iats[1].register_forward_hook(lambda _m, _i, out: views.append(out))
    out = model(bag)
    order = torch.argsort(bag.levels[0].cells[:, 0] * 1000 + bag.levels[0].cells[:, 1])
    kept = set(order[views[0].scores.topk(2).indices].tolist())
    parent = bag.finest.parent
    assert parent is not None
    assert set(parent[out.attention.nonzero()[:, 0]].tolist()) == kept


# ---- ZoomMIL ------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 12), k=st.integers(1, 12), seed=st.integers(0, 99))
def test_perturbed_topk_counts_choices_and_pairs_them_with_their_noise(n: int, k: int, seed: int) -> None:
    k = min(k, n)
    rng = torch.Generator().manual_seed(seed)
    scores, noise = (torch.randn(*shape, dtype=torch.float64, generator=rng) for shape in ((n,), (20, n)))
    cotangent = torch.randn(k, n, dtype=torch.float64, generator=rng)
    one_hot = torch.zeros(20, k, n, dtype=torch.float64)
    for s in range(20):
        best = sorted(range(n), key=lambda t: -float(scores[t] + 0.5 * noise[s, t]))[:k]
        for j, t in enumerate(sorted(best)):
            one_hot[s, j, t] = 1
    scores.requires_grad_()
    found = perturbed_topk(scores, k, noise, 0.5)
    torch.testing.assert_close(found, one_hot.mean(dim=0))
    torch.autograd.backward((found * cotangent).sum())
    slope = (one_hot * noise[:, None]).mean(dim=0) / 0.5
    torch.testing.assert_close(scores.grad, (slope * cotangent).sum(dim=0))


def test_hard_topk_is_sorted() -> None:
    found = hard_topk(torch.tensor([0.1, 0.9, 0.5, 0.7]), 2)
    assert found.tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]


def test_zoommil_training_equals_dense_mixing_on_a_complete_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The authors' formulation with Kronecker products, under the same noise; logits and every gradient."""
    torch.manual_seed(0)
    model = ZoomMIL(5, 2, k=3, hidden=8, attention_dim=4, dropout=0.0, sigma=0.02).double().train()
    inputs = [torch.randn(n, 5, dtype=torch.float64, requires_grad=True) for n in (7, 28, 448)]
    noises = [torch.randn(100, n, dtype=torch.float64) for n in (7, 12)]
    draws = iter(noises)
    monkeypatch.setattr("marble.models.zoo.zoommil.torch.randn", lambda *_shape, **_kwargs: next(draws))
    logits = model(complete_tree(inputs)).logits

    x = list(inputs)
    vectors = []
    for level in range(3):
        scale = model.scales[level]
        assert isinstance(scale, Scale)
        h = scale.embed(x[level])
        vectors.append(torch.softmax(scale.attention(h)[0], dim=0) @ h)
        if scale.zoom is not None:
            interest = torch.softmax(scale.zoom(h)[0], dim=0)
            select = perturbed_topk(interest, 3, noises[level], 0.02)
            assert ((select > 0) & (select < 1)).any()  # the choice is soft
            before = len(x[level])
            for finer in range(level + 1, 3):
                block = torch.eye(len(x[finer]) // before, dtype=torch.float64)
                x[finer] = torch.kron(select, block) @ x[finer]
    dense = model.head(torch.stack(vectors).sum(dim=0))
    torch.testing.assert_close(logits, dense, rtol=1e-10, atol=1e-12)
    wanted = [*inputs, *model.parameters()]
    ours, theirs = (torch.autograd.grad(out[0], wanted, retain_graph=True) for out in (logits, dense))
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("training", [True, False])
def test_zoommil_runs_on_sparse_trees_and_attends_below_its_choices(training: bool) -> None:
    torch.manual_seed(0)
    model = ZoomMIL(32, 2, levels=2, k=2, hidden=12, attention_dim=6).train(training)
    out = model(make_bag(40, 2))
    assert (out.attention > 0).all()  # the coarse attention reaches every tile
    assert float(out.attention.sum().detach()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("zoommil", {"k": 0}),
        ("zoommil", {"sigma": 0.0}),
        ("csmil", {"levels": 0}),
        ("hagmil", {"levels": 0}),
        ("hagmil", {"bag_weight": 2.0}),
        ("hipt", {"variant": "other"}),
        ("hipt", {"variant": "lgp_fc", "hidden": 10}),
        ("transmil", {"hidden": 4}),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        build(name, 8, 2, **options)
