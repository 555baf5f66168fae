"""`marble bench zoo --against torchmil`, over a stand-in with torchmil's signatures and, slow, over the real one."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner, Result

from marble.benchmarks import zoo_peers
from marble.benchmarks.zoo_scans import PASSES
from marble.cli import assemble
from marble.errors import UnavailableError

ROOT = Path(__file__).parents[2]
ROWS = {(m, t, w) for m in zoo_peers.PAIRS for t in zoo_peers.QUICK_SIZES for w in PASSES}


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(assemble(), ["bench", *map(str, arguments)])


def stand_in(built: list[tuple[str, dict[str, Any]]], seen: list[torch.Size]) -> ModuleType:
    """A module with torchmil's four classes: their options, their batch of bags, their dictionary of losses."""

    class Mean(nn.Module):
        def __init__(self, in_shape: tuple[int, ...], feat_ext: nn.Module, **options: Any) -> None:
            super().__init__()
            built.append((type(self).__name__, options))
            self.feat_ext = feat_ext
            self.classifier = nn.Linear(feat_ext(torch.zeros(1, *in_shape)).shape[-1], 1)

        def forward(self, X: Tensor) -> Tensor:
            seen.append(X.shape)
            logits: Tensor = self.classifier(self.feat_ext(X).mean(dim=1))[:, 0]  # (1,)
            return logits

        def compute_loss(self, Y: Tensor, X: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            logits = self(X)
            bag = nn.functional.binary_cross_entropy_with_logits(logits, Y)
            return logits, {"BCEWithLogitsLoss": bag, "Another": bag**2}

    class ABMIL(Mean):
        def __init__(self, in_shape: tuple[int, ...], att_dim: int, gated: bool, feat_ext: nn.Module) -> None:
            super().__init__(in_shape, feat_ext, att_dim=att_dim, gated=gated)

    class CLAM_SB(Mean):  # noqa: N801
        def __init__(
            self, in_shape: tuple[int, ...], att_dim: int, k_sample: int, gated: bool, feat_ext: nn.Module
        ) -> None:
            super().__init__(in_shape, feat_ext, att_dim=att_dim, gated=gated, k_sample=k_sample)

    class DSMIL(Mean):
        def __init__(self, in_shape: tuple[int, ...], att_dim: int, nonlinear_q: bool, nonlinear_v: bool) -> None:
            options = {"att_dim": att_dim, "nonlinear_q": nonlinear_q, "nonlinear_v": nonlinear_v}
            super().__init__(in_shape, nn.Identity(), **options)

    class TransMIL(Mean):
        def __init__(
            self,
            in_shape: tuple[int, ...],
            att_dim: int,
            n_heads: int,
            n_landmarks: int,
            pinv_iterations: int,
            use_mlp: bool,
            feat_ext: nn.Module,
        ) -> None:
            sizes = {"n_heads": n_heads, "n_landmarks": n_landmarks, "pinv_iterations": pinv_iterations}
            super().__init__(in_shape, feat_ext, att_dim=att_dim, use_mlp=use_mlp, **sizes)

    module = ModuleType("torchmil.models")
    for kind in (ABMIL, CLAM_SB, DSMIL, TransMIL):
        setattr(module, kind.__name__, kind)
    return module


def test_every_pair_is_measured_on_one_bag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[str, dict[str, Any]]] = []
    seen: list[torch.Size] = []
    monkeypatch.setitem(sys.modules, "torchmil", ModuleType("torchmil"))
    monkeypatch.setitem(sys.modules, "torchmil.models", stand_in(built, seen))
    monkeypatch.setattr(zoo_peers, "interleaved", lambda cases, *_, **__: _taken(cases))
    out = tmp_path / "peers.json"
    done = bench("zoo", "--against", "torchmil", "--quick", "--json", out)
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    assert (result["against"], result["dim"], result["target"]) == ("torchmil", 1024, "<= 1")
    assert {(row["model"], row["tokens"], row["which"]) for row in result["rows"]} == ROWS
    assert all(row["ratio"] == 1.5 and not row["met"] for row in result["rows"])
    assert len(result["misses"]) == len(ROWS) == done.output.count("missed: ")
    assert "missed: clam-sb: forward of 256 tokens takes 1.50 x torchmil's (target <= 1)" in done.output
    assert set(seen) == {torch.Size([1, 256, 1024])}
    assert {name for name, _ in built} == {"ABMIL", "CLAM_SB", "DSMIL", "TransMIL"}
    assert ("CLAM_SB", {"att_dim": 256, "gated": True, "k_sample": 8}) in built

    # What the page says of it.
    render = runpy.run_path(str(ROOT / "benchmarks" / "render_docs.py"))["zoo_peers"]
    page = "\n".join(render(result))
    assert page.count("| no |") == len(ROWS)
    assert page.count("\n- ") == len(ROWS)
    assert "Every target was met." in "\n".join(render(result | {"misses": []}))


def _taken(cases: Any) -> dict[str, float]:
    """Runs every case once, and gives ours one and a half times theirs."""
    for case in cases.values():
        case()
    return {"ours": 1.5, "theirs": 1.0}


def test_a_ratio_at_the_target_is_no_miss() -> None:
    cost = zoo_peers.PeerCost("abmil", 2048, "forward", 1.0, 1.0, 1.0, 1.0, 1.0, met=True)
    assert zoo_peers.misses([cost], "torchmil") == []


def test_sizes_of_the_bag_are_exact() -> None:
    for tokens in (1, 2, 2048):
        level = zoo_peers.bag_of(tokens).finest
        assert level.features.shape == (tokens, 1024)
        assert len(torch.unique(level.cells, dim=0)) == tokens


def test_an_absent_peer_is_one_line_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmil", None)
    done = bench("zoo", "--against", "torchmil", "--quick")
    assert isinstance(done.exception, UnavailableError)
    assert str(done.exception) == "torchmil is not installed. Install it with pip install torchmil"


def test_a_peer_that_lacks_a_package_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.py").write_text("import a_package_that_is_not_there\n")
    broken = ModuleType("torchmil")
    broken.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "torchmil", broken)
    monkeypatch.delitem(sys.modules, "torchmil.models", raising=False)
    done = bench("zoo", "--against", "torchmil", "--quick")
    assert isinstance(done.exception, UnavailableError)
    assert "torchmil is installed but lacks 'a_package_that_is_not_there'" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("zoo", "--against", "torchmill"), "unknown peer 'torchmill'; did you mean 'torchmil'?"),
        (("model", "--against", "torchmil"), "`bench model` has no peers"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "marble", "bench", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_real_one_does_the_same_products(tmp_path: Path) -> None:
    python = os.environ.get("MARBLE_PEERS", sys.executable)
    found = subprocess.run([python, "-c", "import importlib.util as u; assert u.find_spec('torchmil')"], check=False)
    if found.returncode:
        pytest.skip(f"torchmil is not installed in {python}; MARBLE_PEERS may name a Python that has it")
    out = tmp_path / "peers.json"
    command = [python, "-m", "marble", "bench", "zoo", "--against", "torchmil", "--quick", "--json", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(out.read_text())
    assert result["version"]
    assert {(row["model"], row["tokens"], row["which"]) for row in result["rows"]} == ROWS
    for row in result["rows"]:
        if row["model"] == "transmil":  # ours leaves out padding that is all alike, theirs the paper's projection
            continue
        # One classifier of 512 numbers more or less is all the difference.
        assert row["products_gflop"] == pytest.approx(row["their_products_gflop"], rel=2e-3), row
