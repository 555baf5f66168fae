"""Checks of TransMIL, HIPT, HAG-MIL, CS-MIL and ZoomMIL against what their authors' code computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from marble.bags.bag import Bag, Level
from marble.models.base import BagModel
from marble.models.originals.weights import load_reference, renamed
from marble.models.parts.nystrom import NystromAttention
from marble.models.parts.topk import perturbed_topk
from marble.models.parts.vit import ViT4K
from marble.models.zoo.hagmil import HAGMIL
from marble.models.zoo.transmil import TransMIL
from tests.models.golden_case import Check, GoldenCase

DTYPES = (torch.float64, torch.float32)


def transmil(case: GoldenCase, nystrom_bug: bool = False) -> None:
    if case.name.startswith("nystrom"):
        nystrom_layer(case)
        return
    hidden = case.weights(torch.float32)["cls_token"].shape[-1]
    for dtype in DTYPES:
        model = load_reference("transmil", case.weights(dtype), hidden=hidden, nystrom_bug=nystrom_bug).eval()
        assert isinstance(model, TransMIL)
        seen = {
            "after_layer1": _record(model.layer1, lambda out: out[0]),
            "after_ppeg": _record(model.positions),
            "after_layer2": _record(model.layer2, lambda out: out[0]),
        }
        tokens = case.input("bag", dtype).requires_grad_()
        out = model(flat_bag(tokens))
        for name, recorded in seen.items():
            case.compare(name, recorded[0], dtype)
        _finish(case, model, out.logits, {"bag": tokens}, dtype)


def nystrom_layer(case: GoldenCase) -> None:
    ctor = case.ctor
    names = {"to_qkv.": "qkv.", "to_out.0.": "out.", "res_conv.": "conv."}
    for dtype in DTYPES:
        layer = NystromAttention(
            ctor["dim"],
            ctor["heads"],
            ctor["dim_head"],
            ctor["num_landmarks"],
            ctor["pinv_iterations"],
        ).to(dtype)
        layer.load_state_dict(renamed(case.weights(dtype), names))
        layer.eval()
        tokens = case.input("bag", dtype).requires_grad_()
        landmarked = layer.project(tokens)
        out = layer.mix(landmarked)
        case.compare("logits", out, dtype)
        case.compare("attention", layer.attention_of(landmarked, torch.arange(len(tokens))), dtype)
        torch.autograd.backward(out.sum())
        _compare_gradients(case, layer, names, {"bag": tokens}, dtype)


def zoommil(case: GoldenCase) -> None:
    if case.name.startswith("perturbed_topk"):
        perturbed_choice(case)
        return
    attention_dim, hidden = case.weights(torch.float32)["ga_low_mag.attention_a.0.weight"].shape
    options = {"levels": 3, "k": case.ctor.get("k_sample", 12), "hidden": hidden, "attention_dim": attention_dim}
    for dtype in DTYPES:
        model = load_reference("zoommil", case.weights(dtype), **options).eval()
        inputs = {name: case.input(name, dtype).requires_grad_() for name in ("low", "mid", "high")}
        out = model(complete_tree([tokens[0] for tokens in inputs.values()]))
        _finish(case, model, out.logits, inputs, dtype)


def perturbed_choice(case: GoldenCase) -> None:
    for dtype in DTYPES:
        scores = case.input("x", dtype).requires_grad_()  # (B, N)
        noise = case.input("noise", dtype)  # (B, samples, N)
        indicators = torch.stack(
            [perturbed_topk(row, case.info["k"], draws, case.info["sigma"]) for row, draws in zip(scores, noise)]
        )
        case.compare("indicators", indicators, dtype)
        torch.autograd.backward((indicators * case.input("cotangent", dtype)).sum())
        assert scores.grad is not None
        case.compare("grad_x", scores.grad, dtype)


def hipt_none_fc(case: GoldenCase) -> None:
    hidden = case.weights(torch.float32)["classifier.weight"].shape[1]
    for dtype in DTYPES:
        model = load_reference("hipt", case.weights(dtype), variant="none_fc", hidden=hidden).eval()
        tiles = case.input("bag", dtype).requires_grad_()  # (regions, tiles, D)
        regions = tiles.detach().new_zeros(len(tiles), tiles.shape[2])
        out = model(complete_tree([regions, tiles.flatten(0, 1)]))
        _finish(case, model, out.logits, {"bag": tiles}, dtype)


def hipt_lgp_fc(case: GoldenCase) -> None:
    weights, constants = case.weights(torch.float32), case.info.get("patched_constants") or {}
    options = {
        "hidden": weights["classifier.weight"].shape[1],
        "heads": constants.get("nhead=3", 3),
        "vit_depth": _count(weights, "local_vit.blocks.{}.norm1.weight"),
        "vit_heads": constants.get("local_vit", {}).get("num_heads", 6),
    }
    for dtype in DTYPES:
        model = load_reference("hipt", case.weights(dtype), variant="lgp_fc", **options).eval()
        tiles = case.input("bag", dtype).requires_grad_()  # (regions, 256, D)
        index = torch.arange(len(tiles) * 256)
        cells = torch.stack([index // 16, index % 16], dim=1)  # regions below each other
        out = model(Bag("golden", [Level(tiles.flatten(0, 1), cells)]))
        _finish(case, model, out.logits, {"bag": tiles}, dtype)


def hipt_vit4k(case: GoldenCase) -> None:
    weights = case.weights(torch.float32)
    hidden, dim = weights["phi.0.weight"].shape
    depth, heads = _count(weights, "blocks.{}.norm1.weight"), case.ctor.get("num_heads", 6)
    for dtype in DTYPES:
        vit = ViT4K(dim, hidden, depth, heads).to(dtype)
        vit.load_pretrained(case.weights(dtype))
        grid = case.input("bag", dtype).requires_grad_()  # (regions, D, 16, 16)
        vectors, _ = vit.eval()(grid.permute(0, 2, 3, 1))
        case.compare("logits", vectors, dtype)
        torch.autograd.backward((vectors * case.input("cotangent", dtype)).sum())
        _compare_gradients(case, vit, {}, {"bag": grid}, dtype)


def hagmil_options(case: GoldenCase) -> dict[str, Any]:
    ctor, weights = case.ctor, case.weights(torch.float32)
    prefix = "model0." if "model0.fc5.weight" in weights else ""
    blocks = [f"{prefix}layers.{i}." for i in range(_count(weights, prefix + "layers.{}.fc.0.weight"))]
    inner = next(name for name in weights if name.endswith(("attention_a.0.weight", "module.0.weight")))
    return {
        "widths": [weights[f"{block}fc.0.weight"].shape[0] for block in blocks],
        "attention_dims": weights[inner].shape[::-1],
        "gated": ctor.get("gate", True),
        "k_sample": ctor.get("k_sample", 8),
        "subtyping": ctor.get("subtyping", False),
    }


def hagmil_iat(case: GoldenCase) -> None:
    for dtype in DTYPES:
        model = load_reference("hagmil", case.weights(dtype), levels=1, **hagmil_options(case)).eval()
        assert isinstance(model, HAGMIL)
        views = _record(model.iats[0])
        tokens = case.input("bag", dtype).requires_grad_()
        out = model(flat_bag(tokens))
        case.compare("attention_raw", views[0].scores, dtype)
        if case.has("input/label"):
            loss = model.extra_loss(out, int(case.input("label")))
            assert loss is not None
            case.compare("instance_loss", loss / (1 - model.bag_weight), dtype)
        _finish(case, model, out.logits, {"bag": tokens}, dtype)


def hagmil_pipeline(case: GoldenCase) -> None:
    depth = _count(case.group("input"), "level{}")
    names = [f"level{i}" for i in reversed(range(depth))]  # level0 is the finest
    for dtype in DTYPES:
        options = {"levels": depth, "top_eval": case.info["t_patch"], **hagmil_options(case)}
        model = load_reference("hagmil", case.weights(dtype), **options).eval()
        inputs = {name: case.input(name, dtype).requires_grad_() for name in names}
        bag = complete_tree(list(inputs.values()))
        out = model(bag)
        for name, side in zip(names, out.side, strict=False):
            case.compare(f"logits_{name}", side.logits, dtype)
        chosen = case.expected("selected_level0", torch.float32)
        if chosen is not None:
            assert set(chosen.tolist()) == set(out.attention.nonzero()[:, 0].tolist())
        _finish(case, model, out.logits, inputs, dtype)


def csmil(case: GoldenCase) -> None:
    attention_dim, hidden = case.weights(torch.float32)["attention.0.weight"].shape
    names = [f"cluster_{c}" for c in range(_count(case.group("input"), "cluster_{}"))]
    kept = case.input("mask")[0] > 0  # (tiles of all clusters,)
    for dtype in DTYPES:
        inputs = {name: case.input(name, dtype).requires_grad_() for name in names}  # (n_c, D, scales)
        tiles = torch.cat(list(inputs.values()))[kept]
        options = {"levels": tiles.shape[2], "hidden": hidden, "attention_dim": attention_dim}
        model = load_reference("csmil", case.weights(dtype), **options).eval()
        # Every tile has views of its own: a tree in which each tile has one child.
        out = model(complete_tree(list(tiles.flip(2).unbind(dim=2))))
        _finish(case, model, out.logits, inputs, dtype)


def complete_tree(levels: list[Tensor]) -> Bag:
    """A bag in which the children of tile i are the rows [i * r, (i + 1) * r) of the next level."""
    found = [Level(levels[0], torch.stack([torch.arange(len(levels[0])), torch.zeros(len(levels[0]))], dim=1))]
    for tokens in levels[1:]:
        above = found[-1]
        children = len(tokens) // len(above)
        ratio = isqrt(children - 1) + 1
        index = torch.arange(len(tokens))
        parent, place = index // children, index % children
        cells = above.cells[parent] * ratio + torch.stack([place // ratio, place % ratio], dim=1)
        found.append(Level(tokens, cells, parent, ratio))
    return Bag("golden", found)


def flat_bag(tokens: Tensor) -> Bag:
    """One level; the tokens in row-major order."""
    places = torch.arange(len(tokens))
    return Bag("golden", [Level(tokens, torch.stack([places // 64, places % 64], dim=1))])


def _count(tensors: Mapping[str, Tensor], pattern: str) -> int:
    """How many of the names `pattern` with 0, 1, 2... exist."""
    return next(i for i in count() if pattern.format(i) not in tensors)


def _record(module: nn.Module, pick: Callable[[Any], Any] = lambda out: out) -> list[Any]:
    found: list[Any] = []
    module.register_forward_hook(lambda _module, _inputs, out: found.append(pick(out)))
    return found


def _finish(case: GoldenCase, model: BagModel, logits: Tensor, inputs: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Compare logits, probabilities and, where the case holds any, the gradients of sum(logits)."""
    case.compare("logits", logits, dtype)
    case.compare("prob", torch.softmax(logits, dim=0) if len(logits) > 1 else torch.sigmoid(logits), dtype)
    if any(case.expected(f"grad_{name}", dtype) is not None for name in inputs):
        torch.autograd.backward(logits.sum())
        _compare_gradients(case, model, model.reference_names, inputs, dtype)


def _compare_gradients(
    case: GoldenCase, module: nn.Module, names: Mapping[str, str], inputs: dict[str, Tensor], dtype: torch.dtype
) -> None:
    for name, tensor in inputs.items():
        found = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        case.compare(f"grad_{name}", found, dtype)
    if dtype == torch.float64:
        parameters = dict(module.named_parameters())
        originals = list(case.weights(dtype))
        ours = renamed(dict.fromkeys(originals, torch.empty(0)), names)
        gradients = {
            original: parameters[mine].grad
            for original, mine in zip(originals, ours, strict=True)
            if mine in parameters
        }
        case.compare_parameter_gradients(gradients)


CHECKS: dict[str, Check] = {
    "transmil": transmil,
    "transmil_nystrom009": partial(transmil, nystrom_bug=True),
    "hipt_none_fc": hipt_none_fc,
    "hipt_lgp_fc": hipt_lgp_fc,
    "hipt_vit4k": hipt_vit4k,
    "hagmil_iat": hagmil_iat,
    "hagmil_pipeline": hagmil_pipeline,
    "csmil": csmil,
    "zoommil": zoommil,
}
