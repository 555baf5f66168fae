"""Mean, max, ABMIL, CLAM, DSMIL and DTFD: what is theirs alone, beyond the contract and the golden cases."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from marble.bags.bag import Bag
from marble.errors import BagError, InputError
from marble.models import build
from marble.models.originals.weights import load_reference
from marble.models.parts.attention import GatedAttention
from marble.models.zoo.clam import CLAM, smooth_top1_svm
from marble.models.zoo.dsmil import DSMIL
from marble.models.zoo.dtfd import DTFD, positive_part
from tests.models.contract import DIM, make_bag


def double(name: str, outputs: int = 3, **options: Any) -> Any:
    torch.manual_seed(0)
    model = build(name, DIM, outputs, **options).double().eval()
    with torch.no_grad():  # zero biases would hide a mistake
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def bag64(tokens: int, levels: int = 1, seed: int = 0) -> Bag:
    return make_bag(tokens, levels, seed=seed, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("mean", {}, 525_826),
        ("max", {}, 525_826),
        ("abmil", {"gated": False}, 591_619),
        ("abmil", {}, 657_283),
        ("clam-sb", {}, 790_791),
        ("clam-sb", {"gated": False}, 659_463),
        ("clam-mb", {}, 791_048),
        ("clam-mb", {"gated": False}, 659_720),
        ("dsmil", {}, 153_860),
        ("dsmil", {"passing_v": True}, 1_203_460),
        ("dtfd", {"distill": "afs"}, 789_254),
        ("dtfd", {"distill": "maxs"}, 789_254),
        ("dtfd", {"distill": "maxmins"}, 789_254),
    ],
)
def test_parameter_count_is_the_original_s(name: str, options: dict[str, Any], count: int) -> None:
    assert build(name, 1024, 2, **options).parameter_count() == count


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("mean", "act", "swish"),
        ("abmil", "act", "swish"),
        ("clam-sb", "size", "huge"),
        ("clam-sb", "instance_loss", "hinge"),
        ("dsmil", "scales", "three"),
        ("dtfd", "distill", "min"),
        ("dtfd", "cam_class", "first"),
    ],
)
def test_unknown_choice_is_refused_with_the_valid_ones(name: str, option: str, value: str) -> None:
    with pytest.raises(InputError, match=f"unknown {option} '{value}'.*Valid: "):
        build(name, DIM, 2, **{option: value})


@pytest.mark.parametrize(
    ("name", "options"), [("clam-sb", {"k_sample": 0}), ("clam-mb", {"bag_weight": 1.1}), ("dtfd", {"groups": 0})]
)
def test_numbers_out_of_range_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        build(name, DIM, 2, **options)


# ---- attention and pooling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [True, False])
def test_attention_scores_token_by_token(gated: bool) -> None:
    torch.manual_seed(0)
    attention = GatedAttention(5, 4, heads=2, gated=gated).double()
    h = torch.randn(6, 5, dtype=torch.float64)
    scores = attention(h)
    assert scores.shape == (2, 6)
    for n in range(6):
        x = torch.tanh(attention.value.weight @ h[n] + attention.value.bias)
        if attention.gate is not None:
            x = x * torch.sigmoid(attention.gate.weight @ h[n] + attention.gate.bias)
        torch.testing.assert_close(scores[:, n], attention.score.weight @ x + attention.score.bias)


@pytest.mark.parametrize(("name", "pool"), [("mean", np.mean), ("max", np.max)])
def test_pooling_is_of_logits(name: str, pool: Any) -> None:
    model, bag = double(name), bag64(9)
    out = model(bag)
    each = np.stack([model(Bag("one", [bag.finest.take(torch.tensor([n]), None)])).logits.detach() for n in range(9)])
    np.testing.assert_allclose(out.logits.detach(), pool(each, axis=0), rtol=1e-12)
    winner = np.exp(each[:, int(out.logits.argmax())])
    np.testing.assert_allclose(out.attention.detach(), winner / winner.sum(), rtol=1e-12)


@pytest.mark.parametrize("name", ["mean", "max", "dsmil"])
def test_authors_initialisation_has_zero_biases(name: str) -> None:
    model = build(name, DIM, 2)
    biases = [p for key, p in model.named_parameters() if key.endswith("bias")]
    assert biases
    assert not any(bias.any() for bias in biases)


def test_dsmil_starts_orthogonal() -> None:
    model = build("dsmil", DIM, 2)
    assert isinstance(model, DSMIL)
    for weight in (model.instance_classifier.weight, model.classifier.weight.flatten(1)):
        torch.testing.assert_close(weight @ weight.T, torch.eye(2), atol=1e-5, rtol=0)


# ---- CLAM --------------------------------------------------------------------------------------------------------


def svm_by_hand(row: list[float], target: int) -> float:
    gap = [x + (c != target) - row[target] for c, x in enumerate(row)]
    first, second = sorted(row, reverse=True)[:2]
    if first - second >= math.log(1000):
        return max(gap)
    top = max(gap)
    return top + math.log(sum(math.exp(x - top) for x in gap))


@given(
    rows=st.lists(st.lists(st.floats(-20, 20), min_size=3, max_size=3), min_size=1, max_size=6),
    targets=st.lists(st.integers(0, 2), min_size=6, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_smooth_top1_svm_equals_its_formula(rows: list[list[float]], targets: list[int]) -> None:
    loss = smooth_top1_svm(torch.tensor(rows, dtype=torch.float64), torch.tensor(targets[: len(rows)]))
    by_hand = sum(svm_by_hand(row, target) for row, target in zip(rows, targets, strict=False)) / len(rows)
    assert float(loss) == pytest.approx(by_hand, rel=1e-12, abs=1e-12)


def test_smooth_top1_svm_is_hard_for_a_clear_winner() -> None:
    logits = torch.tensor([[9.0, 0.0]], dtype=torch.float64)
    assert float(smooth_top1_svm(logits, torch.tensor([0]))) == 0.0
    assert float(smooth_top1_svm(logits, torch.tensor([1]))) == 10.0
    assert 0 < float(smooth_top1_svm(logits - torch.tensor([[3.0, 0.0]]), torch.tensor([0]))) < 0.01


def instance_loss_by_hand(model: CLAM, bag: Bag, label: int) -> Tensor:
    h = model.embed(bag.finest.features)
    a = torch.softmax(model.attention(h), dim=1)
    k = min(model.k_sample, len(h))
    criterion = model.instance_criterion
    total = torch.zeros((), dtype=torch.float64)
    for c in range(model.outputs):
        attention: list[float] = a[c if len(a) > 1 else 0].tolist()
        ranked = sorted(range(len(h)), key=attention.__getitem__, reverse=True)
        if c == label:
            rows, targets = ranked[:k] + ranked[-k:], [1] * k + [0] * k
        elif model.subtyping:
            rows, targets = ranked[:k], [0] * k
        else:
            continue
        total = total + criterion(model.instance_classifiers[c](h[rows]), torch.tensor(targets))
    return total / model.outputs if model.subtyping else total


@pytest.mark.parametrize("tokens", [1, 5, 12, 40])
@pytest.mark.parametrize("instance_loss", ["svm", "cross-entropy"])
@pytest.mark.parametrize("subtyping", [False, True])
@pytest.mark.parametrize("name", ["clam-sb", "clam-mb"])
@pytest.mark.filterwarnings("ignore:a bag has fewer")
def test_clam_instance_loss(name: str, subtyping: bool, instance_loss: str, tokens: int) -> None:
    model, bag = double(name, subtyping=subtyping, instance_loss=instance_loss, bag_weight=0.6), bag64(tokens)
    out = model(bag)
    assert out.logits_weight == 0.6
    torch.testing.assert_close(model.extra_loss(out, 1), 0.4 * instance_loss_by_hand(model, bag, 1))


def test_clam_says_when_a_bag_is_too_small() -> None:
    model = double("clam-sb")
    with pytest.warns(UserWarning, match="fewer than 8 tiles"):
        model.extra_loss(model(bag64(7)), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.extra_loss(model(bag64(8)), 0)


def test_clam_attention_dropout_is_fixed() -> None:
    model = build("clam-sb", DIM, 2, dropout=0.1)
    assert isinstance(model, CLAM)
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.1, 0.25]
    assert [m.p for m in build("clam-sb", DIM, 2, dropout=0.0).modules() if isinstance(m, nn.Dropout)] == [0.0, 0.0]


# ---- DSMIL -------------------------------------------------------------------------------------------------------


def test_dsmil_two_scales_are_one_scale_on_joined_tokens() -> None:
    bag = bag64(30, levels=3)
    coarse, fine = bag.levels[1:]
    assert fine.parent is not None
    above = coarse.features[fine.parent]
    joined = {"cat": torch.cat([fine.features, above], dim=1), "fusion": fine.features + 0.25 * above}
    for scales, tokens in joined.items():
        model = double("dsmil", scales=scales, passing_v=True)
        single = build("dsmil", tokens.shape[1], 3, passing_v=True).double().eval()
        single.load_state_dict(model.state_dict())
        expected = single(Bag("joined", [type(fine)(tokens, fine.cells)]))
        out = model(bag)
        assert out.level == 2
        assert torch.equal(out.logits, expected.logits)
        assert torch.equal(out.attention, expected.attention)


@pytest.mark.parametrize("scales", ["cat", "fusion"])
def test_dsmil_two_scales_need_two_levels(scales: str) -> None:
    with pytest.raises(BagError, match=r"s-1.*parents.*two or more levels"):
        double("dsmil", scales=scales)(bag64(7))


def test_dsmil_linear_query() -> None:
    model, bag = double("dsmil", linear_q=True), bag64(9)
    x = bag.finest.features
    c = model.instance_classifier(x)
    q = model.query(x)
    for k in range(3):
        a = torch.softmax(q @ q[int(c[:, k].argmax())] / math.sqrt(128), dim=0)
        torch.testing.assert_close(model.attend(x, c.argmax(dim=0))[:, k], a)


# ---- DTFD --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 11])
def test_dtfd_pseudo_bags_are_consecutive_and_never_empty(tokens: int) -> None:
    model = double("dtfd")
    parts = [part.tolist() for part in model.split(torch.arange(tokens))]
    assert parts == [part.tolist() for part in np.array_split(np.arange(tokens), 4) if len(part)]
    out = model(bag64(tokens))
    assert len(out.side) == len(parts) == min(4, tokens)
    assert sum(side.weight for side in out.side) == pytest.approx(1)


def test_dtfd_keeps_empty_pseudo_bags_as_the_original_where_asked() -> None:
    model, bag = double("dtfd", keep_empty=True), bag64(3)
    out = model(bag)
    h = model.reduce(bag.finest.features)
    assert torch.equal(out.side[3].logits, model.classifier.bias)
    rows = torch.cat([h, torch.zeros_like(h[:1])])  # pseudo-bags of one tile are that tile
    b = torch.softmax(model.second.attention(rows)[0], dim=0)
    torch.testing.assert_close(out.logits, model.second.classifier(b @ rows))
    torch.testing.assert_close(out.attention, b[:3] / b[:3].sum())


def test_dtfd_second_tier_never_trains_the_first() -> None:
    for mode, reaches in ((True, False), (False, True)):
        model = double("dtfd").train(mode)
        torch.autograd.backward(model(bag64(20)).logits.sum())
        assert all((p.grad is not None) == reaches for p in model.reduce.parameters())
        assert all(p.grad is not None for p in model.second.parameters())
        assert all(p.grad is None for p in model.classifier.parameters())


def test_dtfd_afs_attention_is_the_weight_of_each_tile_in_the_slide() -> None:
    model, bag = double("dtfd", distill="afs"), bag64(21)
    out = model(bag)
    torch.testing.assert_close(out.attention @ model.reduce(bag.finest.features), out.embedding)


@pytest.mark.parametrize("cam_class", ["last", "predicted"])
@pytest.mark.parametrize(("outputs", "distill"), [(1, "maxs"), (3, "maxs"), (3, "maxmins"), (1, "maxmins")])
def test_dtfd_distils_by_class_activation(outputs: int, distill: str, cam_class: str) -> None:
    model = double("dtfd", outputs, distill=distill, cam_class=cam_class, instances=2, groups=2)
    h = model.reduce(bag64(14).finest.features)
    first = model.first_tier(h)
    for g, tokens in enumerate((h[:7], h[7:])):
        a = torch.softmax(model.attention(tokens)[0], dim=0)
        cam = torch.stack([a[n] * (model.classifier.weight @ tokens[n]) for n in range(7)])
        torch.testing.assert_close(first.cam[g], cam)
        logits = model.classifier(a @ tokens)
        target = outputs - 1 if cam_class == "last" else int(logits.argmax())
        score = cam[:, 0] if outputs == 1 else functional.softmax(cam, dim=1)[:, target]
        ranked = sorted(range(7), key=score.tolist().__getitem__, reverse=True)
        rows = ranked[:2] if distill == "maxs" else ranked[:2] + ranked[-2:]
        torch.testing.assert_close(first.distilled[g], tokens[rows])


def test_dtfd_training_shuffles_the_bag() -> None:
    model, bag = double("dtfd"), make_bag(30, 2)
    shuffled = model.augment(bag, torch.Generator().manual_seed(1))
    assert not torch.equal(shuffled.finest.cells, bag.finest.cells)
    assert {tuple(c) for c in shuffled.finest.cells.tolist()} == {tuple(c) for c in bag.finest.cells.tolist()}


def test_positive_part_of_a_class_activation_map() -> None:
    cam = torch.tensor([[1.0, 3.0], [5.0, 1.0], [0.0, 6.0]])
    torch.testing.assert_close(positive_part(cam, 1), torch.tensor([1.0, 0.0, 3.0]) / 4)
    torch.testing.assert_close(positive_part(-cam[:, :1], 0), torch.full((3,), 1 / 3))


def test_dtfd_groups_are_the_modules_that_are_clipped_apart() -> None:
    model = double("dtfd")
    assert isinstance(model, DTFD)
    assert [group[0][0].split(".")[0] for group in model.optimizer_groups()] == [
        "reduce",
        "attention",
        "classifier",
        "second",
    ]


# ---- checkpoints of the originals --------------------------------------------------------------------------------


def test_original_names_are_read_whatever_they_were_built_with() -> None:
    ours = build("clam-mb", DIM, 2, gated=False).state_dict()
    for last in (2, 3):  # the original's numbering depends on its dropout
        names = {
            "embed.0": "attention_net.0",
            "attention.value": "attention_net.3.module.0",
            "attention.score": f"attention_net.3.module.{last}",
        }
        original = {
            f"{names.get(key.rpartition('.')[0], key.rpartition('.')[0])}.{key.rpartition('.')[2]}": tensor
            for key, tensor in ours.items()
        }
        original["instance_loss_fn.labels"] = torch.tensor([0, 1])
        loaded = load_reference("clam-mb", original, gated=False)
        assert all(torch.equal(loaded.state_dict()[key], tensor) for key, tensor in ours.items())
        with pytest.raises(InputError, match=r"(?s)does not fit model 'clam-mb'.*gate.*Pass the options"):
            load_reference("clam-mb", original)


def test_a_checkpoint_of_something_else_is_refused() -> None:
    with pytest.raises(InputError, match=r"not a checkpoint of 'dtfd'.*dimReduction"):
        load_reference("dtfd", {"weight": torch.zeros(2, 2)})
