"""Mamba-2 blocks of state-spaces/mamba, through every path that runs on a CPU."""

from __future__ import annotations

import torch

from marble.models.ssm.ssd import Mamba2
from tests.models.golden_case import GoldenCase


def check_block(case: GoldenCase) -> None:
    options = {key: value for key, value in case.ctor.items() if key != "chunk_size"}  # changes no number
    for backend in ("reference", "torch", "batched"):
        for dtype in (torch.float64, torch.float32):
            block = Mamba2(**options, backend=backend).to(dtype)
            block.load_state_dict(case.weights(dtype))
            bag = case.input("bag", dtype).requires_grad_()
            out, state = block.run(bag)
            case.compare("logits", out, dtype)
            case.compare("final_state", state, dtype)
            cotangent = case.input("cotangent", dtype) if case.has("input/cotangent") else torch.ones_like(out)
            torch.autograd.backward((out * cotangent.view_as(out)).sum())
            assert bag.grad is not None
            case.compare("grad_bag", bag.grad, dtype)
            if dtype == torch.float64:
                case.compare_parameter_gradients({name: p.grad for name, p in block.named_parameters()})


CHECKS = {"mamba2_block": check_block}
