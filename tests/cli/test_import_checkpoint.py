"""`marble import-checkpoint`, as a user types it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from marble.bags.tensors import map_file
from marble.cli import assemble
from marble.errors import InputError
from marble.models import build
from marble.models.originals.checkpoint import load_imported


def _marble(*arguments: object) -> Result:
    return CliRunner().invoke(assemble(), [str(argument) for argument in arguments])


def _refusal(*arguments: object) -> str:
    """The text of our own error; the program prints it without a traceback and exits with 2."""
    done = _marble(*arguments)
    assert isinstance(done.exception, InputError), done.output
    return str(done.exception)


def _checkpoint(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A Lightning checkpoint of an ungated ABMIL, by its original names."""
    ours = build("abmil", 6, 3, gated=False, hidden=5, attention_dim=4).state_dict()
    names = {"embed.0": "feature.0", "attention.value": "attention.0", "attention.score": "attention.2",
             "classifier": "classifier.0"}  # fmt: skip
    original = {
        f"model.{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": tensor for key, tensor in ours.items()
    }
    torch.save({"state_dict": original, "epoch": 4}, folder / "last.ckpt")
    return folder / "last.ckpt", ours


SETTINGS = ("--set", "gated=false", "--set", "hidden=5", "--set", "attention_dim=4")


def test_a_checkpoint_becomes_safetensors(tmp_path: Path) -> None:
    source, ours = _checkpoint(tmp_path)
    out = tmp_path / "abmil.safetensors"
    done = _marble("import-checkpoint", source, "--model", "abmil", *SETTINGS, "--out", out)
    assert done.exit_code == 0, done.output
    assert "taken off the names: state_dict, model." in done.output
    assert "not weights, left out: epoch" in done.output
    assert "abmil: 8 tensors" in done.output
    assert "tokens 6 wide, 3 outputs" in done.output
    assert map_file(out)[1]["options"] == {"gated": False, "hidden": 5, "attention_dim": 4}
    assert all(torch.equal(tensor, ours[name]) for name, tensor in load_imported(out).state_dict().items())


def test_words_and_numbers_of_set(tmp_path: Path) -> None:
    source, _ = _checkpoint(tmp_path)
    text = _refusal("import-checkpoint", source, "--model", "abmil", "--set", "act=tanh", "--out", tmp_path / "o")
    assert "tanh" in text
    text = _refusal("import-checkpoint", source, "--model", "abmil", "--set", "gated", "--out", tmp_path / "o")
    assert "--set 'gated' is not KEY=VALUE" in text
    text = _refusal("import-checkpoint", source, "--model", "abmil", "--set", "depth=2", "--out", tmp_path / "o")
    assert "option of model 'abmil' 'depth'" in text


def test_a_checkpoint_of_other_options_lists_what_does_not_fit(tmp_path: Path) -> None:
    source, _ = _checkpoint(tmp_path)
    text = _refusal("import-checkpoint", source, "--model", "abmil", "--out", tmp_path / "o")
    assert "missing: attention.gate.weight" in text
    assert text.startswith(str(source))


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (("import-checkpoint", "a.pt", "--model", "abmil"), "--out"),
        (("import-checkpoint", "a.pt", "--out", "o"), "--model"),
        (("import", "--level", "10:a"), "--store"),
        (("import",), "--level"),
    ],
)
def test_what_is_missing_is_named(arguments: tuple[str, ...], missing: str) -> None:
    done = _marble(*arguments)
    assert done.exit_code == 2
    assert f"Missing option '{missing}'" in done.output


class _Malice:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def test_a_malicious_pickle_does_not_run(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "hyper_parameters": _Malice(tmp_path / "ran")}, tmp_path / "evil.ckpt")
    text = _refusal("import-checkpoint", tmp_path / "evil.ckpt", "--model", "abmil", "--out", tmp_path / "o")
    assert "evil.ckpt: not a file of weights alone" in text
    assert "torch.save(model.state_dict()" in text
    assert not (tmp_path / "ran").exists()
