"""MARBLE over the scan for accelerators equals its equations, outputs and every gradient."""

from __future__ import annotations

import pytest
import torch

from marble.models.ssm import ssd_stream
from marble.native.library import BACKEND_VARIABLE
from tests.models.zoo.test_marble import nested_bag, shaken


@pytest.mark.parametrize("block", ["literal", "prenorm"])
@pytest.mark.parametrize("composed", [True, False])
def test_batched_is_as_written(block: str, composed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssd_stream, "BATCHED_SEGMENT", 128)  # several segments, the last one ragged
    monkeypatch.setattr("marble.models.zoo.marble.composing_pays", lambda *_, **__: composed)
    model, bag = shaken(block=block), nested_bag(300, 2)
    found = {}
    for path in ("reference", "batched"):
        monkeypatch.setenv(BACKEND_VARIABLE, path)
        model.zero_grad(set_to_none=True)
        out = model(bag)
        torch.autograd.backward(out.logits.square().sum() + (out.attention * torch.linspace(0, 1, 300)).sum())
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        found[path] = {"logits": out.logits.detach(), "attention": out.attention.detach(), **gradients}
    for name, expected in found["reference"].items():
        torch.testing.assert_close(found["batched"][name], expected, rtol=1e-9, atol=1e-12, msg=name)
