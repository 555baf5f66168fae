"""Golden cases of mean, max, ABMIL, CLAM, DSMIL and DTFD."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from marble.bags.bag import Bag, Level
from marble.models.base import BagModel, Output
from marble.models.originals.weights import load_reference, renamed
from marble.models.zoo.clam import CLAM
from marble.models.zoo.dsmil import DSMIL
from marble.models.zoo.dtfd import DTFD
from marble.models.zoo.pooling import PooledLogits
from tests.models.golden_case import FLOAT32_TOLERANCE, FLOAT64_TOLERANCE, NOISE, Check, GoldenCase

DTYPES = (torch.float64, torch.float32)


def bag_of(features: Tensor) -> Bag:
    """A bag of one level; its tiles lie in one row, since none of these models looks at cells."""
    cells = torch.stack([torch.zeros(len(features)), torch.arange(len(features))], dim=1)
    return Bag("golden", [Level(features, cells)], checked=True)


def run(case: GoldenCase, name: str, options: Mapping[str, Any]) -> Iterator[tuple[Any, Tensor, Output, torch.dtype]]:
    """The model, its tokens and its output in both precisions, after comparing what every case holds."""
    for dtype in DTYPES:
        model = load_reference(name, case.weights(dtype), **options).eval()
        tokens = case.input("bag", dtype).requires_grad_()
        order = case.input("permutation") if case.has("input/permutation") else torch.arange(len(tokens))
        out = model(bag_of(tokens[order]))
        case.compare("logits", out.logits, dtype)
        case.compare("prob", torch.softmax(out.logits, dim=0), dtype)
        torch.autograd.backward(out.logits.sum(), retain_graph=True)
        assert tokens.grad is not None
        case.compare("grad_bag", tokens.grad, dtype)
        if dtype == torch.float64:
            compare_gradient_norms(case, model)
        yield model, tokens.detach()[order], out, dtype


def compare_gradient_norms(case: GoldenCase, model: BagModel) -> None:
    """Every parameter's gradient norm; where the original has no gradient (null), there is none here either."""
    weights = case.weights(torch.float64)
    ours = dict(zip(renamed(weights, model.reference_names), weights, strict=True))
    norms = {
        ours[key]: 0.0 if parameter.grad is None else float(parameter.grad.norm())
        for key, parameter in model.named_parameters()
    }
    theirs: dict[str, float | None] = case.info.get("param_grad_norms_f64") or {}
    assert theirs.keys() <= norms.keys()
    largest = max((norm or 0.0 for norm in theirs.values()), default=0.0)
    for key, norm in theirs.items():
        scale = norm if norm is not None and norm > NOISE * largest else largest  # zero but for rounding
        error = abs(norms[key] - (norm or 0.0)) / scale
        assert error < FLOAT64_TOLERANCE, f"{case.id} gradient of {key}: norm {norms[key]} vs {norm}"


def check_pooling(name: str, case: GoldenCase) -> None:
    options = {"act": case.ctor.get("act", "relu"), "hidden": case.weights(torch.float64)["head.0.weight"].shape[0]}
    for model, tokens, _, dtype in run(case, name, options):
        assert isinstance(model, PooledLogits)
        case.compare("instance_logits", model.classifier(model.embed(tokens)), dtype)


def check_abmil(gated: bool, case: GoldenCase) -> None:
    weights = case.weights(torch.float64)
    options = {
        "gated": gated,
        "act": case.ctor.get("act", "relu"),
        "hidden": weights["feature.0.weight"].shape[0],
        "attention_dim": weights["attention_V.0.weight" if gated else "attention.0.weight"].shape[0],
    }
    for model, tokens, out, dtype in run(case, "abmil", options):
        case.compare("attention", out.attention, dtype)
        case.compare("attention_raw", model.attention(model.embed(tokens)), dtype)


def check_clam(name: str, case: GoldenCase) -> None:
    ctor = case.ctor
    options = {
        "gated": ctor.get("gate", True),
        "size": ctor.get("size_arg", "small"),
        "dropout": ctor.get("dropout", 0.0),
        "k_sample": ctor.get("k_sample", 8),
        "subtyping": ctor.get("subtyping", False),
        "instance_loss": "svm" if "SVM" in str(ctor.get("instance_loss_fn")) else "cross-entropy",
        "bag_weight": case.info.get("bag_weight", 0.7),
    }
    for model, tokens, out, dtype in run(case, name, options):
        assert isinstance(model, CLAM)
        raw = model.attention(model.embed(tokens))
        case.compare("attention_raw", raw, dtype)
        case.compare("attention", torch.softmax(raw, dim=1), dtype)
        head = int(out.logits.argmax()) if model.heads_per_class else 0
        assert torch.equal(out.attention, torch.softmax(raw, dim=1)[head])
        if case.has("input/label"):
            label = int(case.input("label"))
            bag_loss = functional.cross_entropy(out.logits[None], torch.tensor([label]))
            case.compare("bag_loss_ce", bag_loss, dtype)
            if case.expected("instance_loss", dtype) is not None:
                extra = model.extra_loss(out, label)
                assert extra is not None
                case.compare("instance_loss", model.instance_loss(out, label), dtype)
                case.compare("total_loss", out.logits_weight * bag_loss + extra, dtype)


def check_dsmil(case: GoldenCase) -> None:
    options = {
        "linear_q": not case.ctor.get("nonlinear", True),
        "passing_v": case.ctor.get("passing_v", False),
        "dropout": case.ctor.get("dropout_v", 0.0),
    }
    for model, tokens, out, dtype in run(case, "dsmil", options):
        assert isinstance(model, DSMIL)
        side = out.side[0]
        case.compare("instance_logits", model.instance_classifier(tokens), dtype)
        case.compare("max_logits", side.logits, dtype)
        case.compare("bag_repr", out.embedding, dtype)
        attention = model.attend(tokens, model.instance_classifier(tokens).argmax(dim=0))
        case.compare("attention", attention, dtype)
        assert torch.equal(out.attention, attention[:, int(out.logits.argmax())])
        if case.has("input/label"):
            target = case.input("label", dtype).reshape(-1)
            bag_loss = functional.binary_cross_entropy_with_logits(out.logits, target)
            max_loss = functional.binary_cross_entropy_with_logits(side.logits, target)
            case.compare("bag_loss", bag_loss, dtype)
            case.compare("max_loss", max_loss, dtype)
            case.compare("total_loss", out.logits_weight * bag_loss + side.weight * max_loss, dtype)


def check_dtfd(distill: str, case: GoldenCase) -> None:
    if case.name.startswith("train"):
        check_dtfd_training(distill, case)
        return
    ctor, weights = case.ctor, case.weights(torch.float64)
    sizes = case.input("pseudo_bag_sizes")
    options = {
        **dtfd_options(weights, distill),
        "groups": ctor["numGroup"],
        "instances": ctor["total_instance"] // ctor["numGroup"],
        "keep_empty": bool((sizes == 0).any()),
    }
    for model, tokens, out, dtype in run(case, "dtfd", options):
        assert isinstance(model, DTFD)
        raw = model.attention(model.reduce(tokens))[0]
        assert [len(part) for part in model.split(raw)] == sizes.tolist()
        unshuffled = torch.empty_like(raw)
        unshuffled[case.input("permutation")] = raw
        case.compare("attention_raw", unshuffled, dtype)
        case.compare("distilled", torch.cat(model.first_tier(model.reduce(tokens)).distilled), dtype)
        first = torch.stack([side.logits for side in out.side])
        case.compare("pseudo_bag_logits", first, dtype)
        label = torch.tensor([case.info["label"]])
        case.compare("loss0", functional.cross_entropy(first, label.expand(len(first))), dtype)
        case.compare("loss1", functional.cross_entropy(out.logits[None], label), dtype)


def dtfd_options(weights: Mapping[str, Tensor], distill: str) -> dict[str, Any]:
    return {
        "distill": distill,
        "hidden": weights["dimReduction.fc1.weight"].shape[0],
        "attention_dim": weights["attention.attention_V.0.bias"].shape[0],
        "residual_blocks": sum(key.endswith(".block.0.weight") for key in weights),
    }


def check_dtfd_training(distill: str, case: GoldenCase) -> None:
    """One epoch as the original trains: here one backward pass and one Adam, each module clipped apart."""
    info = case.info
    init = case.group("init")
    options = {
        **dtfd_options(init, distill),
        "groups": info["numGroup"],
        "instances": info["total_instance"] // info["numGroup"],
    }
    model = load_reference("dtfd", init, **options).train()
    groups = model.optimizer_groups()
    optimizer = torch.optim.Adam(
        [p for group in groups for _, p in group], lr=info["lr"], weight_decay=info["weight_decay"]
    )
    labels = case.input("labels")
    permutations = case.input("permutations_in_slide_order")
    for slide, order in zip(case.input("slide_order").tolist(), permutations, strict=True):
        out = model(bag_of(case.input(f"bag_{slide}")[order]))
        label = labels[slide : slide + 1]
        loss = out.logits_weight * functional.cross_entropy(out.logits[None], label)
        for side in out.side:
            loss = loss + side.weight * functional.cross_entropy(side.logits[None], label)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        for group in groups:
            clip_grad_norm_([p for _, p in group], info["grad_clipping"])
        optimizer.step()
    ours = model.state_dict()
    after = renamed(case.group("after"), model.reference_names)
    largest = max(float(theirs.abs().max()) for theirs in after.values())
    for key, theirs in after.items():
        # A bias before a softmax has no gradient but rounding, which Adam divides by its own size.
        scale = largest if key.endswith("score.bias") else float(theirs.abs().max())
        error = float((ours[key] - theirs).abs().max()) / scale
        assert error < FLOAT32_TOLERANCE, f"{case.id}: {key} after training: relative error {error:.2e}"


def _check(function: Callable[[Any, GoldenCase], None], argument: object) -> Check:
    return partial(function, argument)


CHECKS: dict[str, Check] = {
    "mean_mil": _check(check_pooling, "mean"),
    "max_mil": _check(check_pooling, "max"),
    "abmil_attention": _check(check_abmil, False),
    "abmil_gated": _check(check_abmil, True),
    "clam_sb": _check(check_clam, "clam-sb"),
    "clam_mb": _check(check_clam, "clam-mb"),
    "dsmil": check_dsmil,
    "dsmil_passing_v": check_dsmil,
    "dtfd_afs": _check(check_dtfd, "afs"),
    "dtfd_maxs": _check(check_dtfd, "maxs"),
    "dtfd_maxmins": _check(check_dtfd, "maxmins"),
}
