"""Checkpoints with the original names come in as safetensors; a pickle with anything else in it is refused unrun."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from marble import files
from marble.bags.tensors import map_file, to_bytes
from marble.errors import InputError
from marble.models import BagModel, build
from marble.models.originals.checkpoint import import_checkpoint, load_imported
from marble.models.originals.weights import load_reference
from tests.models.golden_case import GoldenCase, find_cases
from tests.models.golden_systems import all_checks, attention_models, hierarchical_models, scan_models
from tests.models.golden_systems.attention_models import bag_of

GOLDEN = Path(__file__).parents[2] / "data" / "golden"


def _weights(system: str) -> dict[str, Tensor]:
    return GoldenCase(GOLDEN / system, "b").weights(torch.float64)


def _abmil_options() -> dict[str, Any]:
    weights = _weights("abmil_gated")
    return {
        "hidden": weights["feature.0.weight"].shape[0],
        "attention_dim": weights["attention_V.0.weight"].shape[0],
        "act": GoldenCase(GOLDEN / "abmil_gated", "b").ctor["act"],
    }


def _saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def _prefixed(weights: dict[str, Tensor], prefix: str) -> OrderedDict[str, Tensor]:
    return OrderedDict((prefix + name, tensor) for name, tensor in weights.items())


WRAPPED: dict[str, tuple[Callable[[dict[str, Tensor]], object], tuple[str, ...], tuple[str, ...]]] = {
    "bare": (lambda w: w, (), ()),
    "state_dict": (lambda w: {"epoch": 3, "state_dict": w}, ("state_dict",), ("epoch",)),
    "lightning": (
        lambda w: {"state_dict": _prefixed(w, "model."), "optimizer_states": [{"lr": 1e-4}], "global_step": 7},
        ("state_dict", "model."),
        ("optimizer_states", "global_step"),
    ),
    "data parallel": (lambda w: {"model": _prefixed(w, "module.")}, ("model", "module."), ()),
    "both": (
        lambda w: {"model_state_dict": _prefixed(w, "module.model."), "loss": 0.1},
        ("model_state_dict", "module.", "model."),
        ("loss",),
    ),
}


@pytest.mark.parametrize("how", WRAPPED)
def test_weights_come_out_of_their_wrappers_and_compute_what_the_original_did(tmp_path: Path, how: str) -> None:
    wrap, taken_off, left_out = WRAPPED[how]
    case = GoldenCase(GOLDEN / "abmil_gated", "b")
    weights = case.weights(torch.float64)
    source = _saved(tmp_path / "original.pt", wrap(weights))
    done = import_checkpoint(source, "abmil", tmp_path / "out" / "abmil.safetensors", **_abmil_options())
    assert (done.taken_off, done.left_out, done.tensors) == (taken_off, left_out, len(weights))
    stored, about = map_file(done.path)
    assert stored.keys() == weights.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in weights.items())
    assert about == {
        "model": "abmil",
        "dim": done.model.dim,
        "outputs": done.model.outputs,
        "options": _abmil_options(),
        "source_sha256": files.sha256_file(source),
    }
    model = load_imported(done.path)
    case.compare("logits", model(bag_of(case.input("bag", torch.float64))).logits, torch.float64)


@pytest.mark.parametrize("parallel", ["", "module."])
def test_the_four_state_dicts_of_a_dtfd_checkpoint_are_joined(tmp_path: Path, parallel: str) -> None:
    weights = _weights("dtfd_afs")
    modules = {"dimReduction": "dim_reduction", "attention": "attention", "classifier": "classifier"}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in weights.items():
        module, _, rest = name.partition(".")
        parts.setdefault({**modules, "attCls": "att_classifier"}[module], {})[parallel + rest] = tensor
    shapes = {
        "hidden": weights["classifier.fc.weight"].shape[1],
        "attention_dim": weights["attention.attention_V.0.weight"].shape[0],
        "residual_blocks": GoldenCase(GOLDEN / "dtfd_afs", "b").ctor["numLayer_Res"],
    }
    source = _saved(tmp_path / "best_model.pth", {**parts, "epoch": 170})
    done = import_checkpoint(source, "dtfd", tmp_path / "dtfd.safetensors", **shapes)
    assert done.left_out == ("epoch",)
    expected = load_reference("dtfd", weights, **shapes).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in load_imported(done.path).state_dict().items())


def test_old_files_of_torch_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save(_weights("abmil_gated"), path, _use_new_zipfile_serialization=False)
    assert import_checkpoint(path, "abmil", tmp_path / "a.safetensors", **_abmil_options()).tensors > 0


def test_tensors_that_share_memory_are_written_apart(tmp_path: Path) -> None:
    weights = _weights("abmil_gated")
    both = torch.cat([weights["feature.0.bias"], weights["feature.0.bias"]])
    weights["feature.0.bias"] = both[: len(both) // 2]
    out = import_checkpoint(_saved(tmp_path / "a.pt", weights), "abmil", tmp_path / "a.safetensors", **_abmil_options())
    assert torch.equal(map_file(out.path)[0]["feature.0.bias"], both[: len(both) // 2])


class _Malice:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("new_format", [True, False])
def test_code_in_a_pickle_is_refused_and_does_not_run(tmp_path: Path, new_format: bool) -> None:
    mark, source, out = tmp_path / "ran", tmp_path / "evil.pt", tmp_path / "out.safetensors"
    torch.save(
        {"state_dict": _weights("abmil_gated"), "callbacks": _Malice(mark)},
        source,
        _use_new_zipfile_serialization=new_format,
    )
    with pytest.raises(
        InputError, match=r"evil\.pt: not a file of weights alone: it asks for \S+mkdir.*state_dict\(\)"
    ):
        import_checkpoint(source, "abmil", out, **_abmil_options())
    assert not mark.exists()
    assert not out.exists()
    torch.load(source, weights_only=False)  # it would have run
    assert mark.exists()


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 not a zip", b"\x80\x02."])
def test_what_is_no_checkpoint_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "broken.pt"
    source.write_bytes(content)
    with pytest.raises(InputError, match=r"broken\.pt: not a file of weights alone"):
        import_checkpoint(source, "abmil", tmp_path / "out.safetensors")
    with pytest.raises(InputError, match=r"gone\.pt: no such file"):
        import_checkpoint(tmp_path / "gone.pt", "abmil", tmp_path / "out.safetensors")


@pytest.mark.parametrize(
    ("content", "message"),
    [([1, 2], "dict of tensors, this is a list"), ({"epoch": 3}, "no tensors.*epoch"), ({}, "no tensors.*nothing")],
)
def test_files_without_a_state_dict_are_refused(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        import_checkpoint(_saved(tmp_path / "x.pt", content), "abmil", tmp_path / "out.safetensors")


def test_misfits_are_listed_by_their_original_names(tmp_path: Path) -> None:
    weights = _weights("abmil_gated")
    bias = weights.pop("classifier.0.bias")
    weights["extra.weight"] = bias
    weights["attention_V.0.bias"] = torch.zeros(3)
    with pytest.raises(InputError) as caught:
        import_checkpoint(_saved(tmp_path / "a.pt", weights), "abmil", tmp_path / "o.safetensors", **_abmil_options())
    text = str(caught.value)
    assert "a.pt: checkpoint does not fit model 'abmil'" in text
    assert "missing: classifier.bias" in text
    assert "unexpected: extra.weight" in text
    assert "of another shape: attention_V.0.bias (3,) instead of" in text
    assert not (tmp_path / "o.safetensors").exists()


def test_two_tensors_for_one_place_are_not_taken_for_one() -> None:
    ours = build("mean", 6, 2, hidden=4).state_dict()
    original = {name.replace("embed", "head").replace("classifier", "head.3"): tensor for name, tensor in ours.items()}
    load_reference("mean", original, hidden=4)
    with pytest.raises(InputError, match=r"for one place: head\.3\.weight, head\.2\.weight"):
        load_reference("mean", {**original, "head.2.weight": torch.zeros(2, 4)}, hidden=4)


def test_another_safetensors_file_is_no_imported_checkpoint(tmp_path: Path) -> None:
    path = files.publish(tmp_path / "x.safetensors", to_bytes({"a": torch.zeros(1)}, {"slide": "s"}))
    with pytest.raises(InputError, match="marble import-checkpoint"):
        load_imported(path)


#: golden cases of a loss or a layer alone
PARTS = ("losses/", "mamba1_block/", "mamba2_block/", "transmil/nystrom", "zoommil/perturbed")


@pytest.mark.parametrize(
    "case", [case for case in find_cases(GOLDEN) if not case.id.startswith(PARTS)], ids=lambda case: case.id
)
def test_every_golden_case_passes_through_a_file(
    case: GoldenCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The golden checks, with each state dict saved as a Lightning checkpoint, imported and loaded from safetensors."""
    imported = 0

    def through_a_file(name: str, tensors: dict[str, Tensor], **options: Any) -> BagModel:
        nonlocal imported
        imported += 1
        source = _saved(tmp_path / "last.ckpt", {"state_dict": _prefixed(tensors, "model."), "epoch": 1})
        done = import_checkpoint(source, name, tmp_path / f"{imported}.safetensors", **options)
        return load_imported(done.path)

    check = all_checks()[case.system]
    for family in (attention_models, scan_models, hierarchical_models):
        monkeypatch.setattr(family, "load_reference", through_a_file)
    check(case)
    assert imported > 0
