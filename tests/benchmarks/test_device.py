"""`marble doctor --gpu` and `marble bench device` on the CPU, where they can be tested; a few lines without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from marble.benchmarks import device as bench
from tests.cli.commands import marble as run


def test_the_cpu_agrees_with_itself_and_resumes_to_the_bit(tmp_path: Path) -> None:
    ended = run("doctor", "--gpu", "--device", "cpu", "--quick", "--json", tmp_path / "gpu.json")
    assert ended.code == 0, ended.err
    assert "Comparing at 1, 64, 65, 200 tokens" in ended.out
    assert "peak MiB" not in ended.out  # a column that torch cannot fill
    assert "cpu is right: errors may be up to 0.001" in ended.out
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["right"]
    assert found["resumed_bit_for_bit"]
    assert [row["tokens"] for row in found["sizes"]] == list(bench.QUICK_SIZES)
    for row in found["sizes"]:
        assert 0 < row["output_error"] <= bench.TOLERANCE  # float32 against float64: how far is the processor's matter
        assert 0 < row["gradient_error"] <= bench.TOLERANCE


def test_a_device_that_computes_something_else_is_found_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "TOLERANCE", 1e-12)
    assert not bench.run(device="cpu", sizes=(64,))["right"]
    assert "cpu is NOT right" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_why_and_what_was_not_written(tmp_path: Path) -> None:
    ended = run("doctor", "--gpu", "--json", tmp_path / "gpu.json")
    assert ended.code == 0
    first, then, last = ended.out.strip().splitlines()
    assert "no GPU" in first
    assert torch.__version__ in first
    assert "--device cpu" in then
    assert last.endswith("gpu.json was not written")
    assert not (tmp_path / "gpu.json").exists()
    refused = run("doctor", "--gpu", "--device", "cuda")
    assert refused.code != 0
    assert "no CUDA device" in refused.err
