"""Golden cases of MambaMIL, SRMambaMIL, 2DMambaMIL, S4-MIL and of the Mamba-1 mixer alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from marble.bags.bag import Bag, Level
from marble.models.base import BagModel, Output
from marble.models.originals.weights import load_reference, renamed
from marble.models.ssm.mamba1 import Mamba1Mixer
from marble.models.zoo.mamba2d import Mamba2DMIL
from marble.models.zoo.mambamil import MambaMIL, SRMambaMIL
from marble.models.zoo.s4mil import S4MIL
from tests.models.golden_case import Check, GoldenCase

DTYPES = (torch.float64, torch.float32)
#: gradients below this share of the largest are zero but for rounding (a bias before a softmax)
ZERO = 1e-3


class Run(NamedTuple):
    """A loaded model's answer to the case's bag in one precision."""

    model: BagModel
    bag: Bag
    out: Output
    dtype: torch.dtype


def runs(case: GoldenCase, name: str, options: Mapping[str, Any], cells: Tensor | None = None) -> Iterator[Run]:
    """Both precisions, after comparing what every case holds: logits, probabilities, gradients."""
    for dtype in DTYPES:
        weights = case.weights(dtype)
        model = load_reference(name, weights, **options).eval()
        tokens = case.input("bag", dtype).requires_grad_()
        if cells is None:
            cells = torch.stack([torch.zeros(len(tokens)), torch.arange(len(tokens))], dim=1)
        bag = Bag("golden", [Level(tokens, cells)], checked=True)
        out = model(bag)
        case.compare("logits", out.logits, dtype)
        case.compare("prob", out.logits.softmax(0), dtype)
        out.logits.sum().backward()  # type: ignore[no-untyped-call]
        assert tokens.grad is not None
        case.compare("grad_bag", tokens.grad, dtype)
        if dtype == torch.float64:
            ours = dict(model.named_parameters())
            names = dict(zip(weights, renamed(weights, model.reference_names), strict=True))
            gradients = {theirs: ours[name].grad for theirs, name in names.items() if name in ours}
            case.compare_parameter_gradients(gradients, floor=ZERO)
        yield Run(model, bag, out, dtype)


def check_mambamil(name: str, case: GoldenCase) -> None:
    weights, ctor = case.weights(torch.float64), case.ctor
    options: dict[str, Any] = {
        "layers": sum(key.endswith(".A_log") for key in weights),
        "hidden": weights["_fc1.0.weight"].shape[0],
        "attention_hidden": weights["attention.0.weight"].shape[0],
        "state": weights["layers.0.1.A_log"].shape[1],
        "act": ctor["act"],
        "dropout": float(ctor["dropout"] or 0.0),
    }
    if name == "srmambamil":
        options["rate"] = ctor["rate"]
    else:
        options["bidirectional"] = ctor["type"] == "BiMamba"
    for model, bag, out, dtype in runs(case, name, options):
        assert isinstance(model, MambaMIL | SRMambaMIL)
        case.compare("attention", out.attention, dtype)
        with torch.no_grad():
            case.compare("tokens", model.encode(model.tokens(bag)), dtype)


def check_2dmambamil(case: GoldenCase) -> None:
    weights, ctor = case.weights(torch.float64), case.ctor
    tile = ctor["mamba_2d_patch_size"]
    options = {
        "layers": ctor["mambamil_layer"],
        "hidden": weights["_fc1.0.weight"].shape[0],
        "attention_hidden": weights["attention.0.weight"].shape[0],
        "state": ctor["mambamil_state_dim"],
        "dropout": ctor["drop_out"],
        "grid": (ctor["mamba_2d_max_h"] // tile + 1, ctor["mamba_2d_max_w"] // tile + 1),
        "empty": "trainable" if "layers.pad_token" in weights else "zero",
    }
    cells = case.input("coords").flip(1) // tile  # (x, y) in pixels -> (row, col)
    for model, bag, out, dtype in runs(case, "2dmambamil", options, cells):
        assert isinstance(model, Mamba2DMIL)
        with torch.no_grad():
            place, grid = model.place(bag)
            g = model.encode(model.tokens(bag), place, grid)
            over_all_cells = model.attention(g)[0].softmax(0)
        case.compare("attention", over_all_cells, dtype)
        case.compare("grid_tokens", g, dtype)
        on_tiles = over_all_cells[place]
        torch.testing.assert_close(out.attention.detach(), on_tiles / on_tiles.sum())


def check_s4mil(case: GoldenCase) -> None:
    options = {"hidden": case.ctor["model_dim"], "state": case.ctor["state_dim"]}
    label = torch.tensor(1)
    for model, bag, out, dtype in runs(case, "s4mil", options):
        assert isinstance(model, S4MIL)
        tokens = model.tokens(bag)
        case.compare("tokens", model.encode(tokens), dtype)
        case.compare("kernel", model.s4d.kernel(len(tokens)), dtype)
        if len(out.logits) > 1:
            case.compare("ce_on_logits_label1", cross_entropy(out.logits, label), dtype)
            case.compare("official_train_loss_label1", cross_entropy(out.logits.softmax(0), label), dtype)


def check_mamba1_block(case: GoldenCase) -> None:
    ctor = case.ctor
    for dtype in DTYPES:
        mixer = Mamba1Mixer(ctor["d_model"], ctor["d_state"], ctor["d_conv"], ctor["expand"]).to(dtype)
        mixer.load_state_dict(case.weights(dtype), strict=True)
        tokens = case.input("bag", dtype).requires_grad_()
        out = mixer(tokens)
        case.compare("logits", out, dtype)
        out.sum().backward()
        assert tokens.grad is not None
        case.compare("grad_bag", tokens.grad, dtype)
        if dtype == torch.float64:
            case.compare_parameter_gradients({key: p.grad for key, p in mixer.named_parameters()}, floor=ZERO)


CHECKS: dict[str, Check] = {
    "mambamil": partial(check_mambamil, "mambamil"),
    "mambamil_bi": partial(check_mambamil, "mambamil"),
    "srmambamil": partial(check_mambamil, "srmambamil"),
    "2dmambamil": check_2dmambamil,
    "s4mil": check_s4mil,
    "mamba1_block": check_mamba1_block,
}
