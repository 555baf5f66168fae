"""Memory and open files: hundreds of slides in one process, and one bag that is larger than any."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from marble.extract import Machine, extract_many
from marble.synthetic.slides import write_slide
from tests.extract.making import spec_of
from tests.reliability.scale import scaled

Record = Callable[[str, object], None]
pytestmark = [pytest.mark.reliability, pytest.mark.timeout(3600)]
DRIFT = 0.05


def test_memory_and_open_files_stay_over_many_slides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    count, parts = scaled(500), 5
    drawn = [write_slide(tmp_path / f"drawn-{i}.tiff", (512, 384), mpp=0.5, seed=i, pieces=1) for i in range(5)]
    this, seen = psutil.Process(), []
    for part in range(parts):
        folder = tmp_path / f"part-{part}"
        folder.mkdir()
        slides = [Path(shutil.copy(drawn[i % 5], folder / f"s{part}-{i}.tiff")) for i in range(count // parts)]
        assert extract_many(slides, spec_of(), tmp_path / "bags", machine=Machine(threads=1)).ok
        gc.collect()
        seen.append((this.memory_info().rss, this.num_fds(), len(this.children(recursive=True))))
        shutil.rmtree(folder)
    (first, files, children), (last, files_after, children_after) = seen[0], seen[-1]
    assert last <= first * (1 + DRIFT), seen
    assert files_after == files, seen
    assert children_after == children, seen
    assert list(scratch.iterdir()) == []
    record_property("cases", count // parts * parts)


HUGE = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
import torch
from marble.bags.bag import Bag, Level
from marble.errors import MarbleError
from marble.models import build
from marble.models.inference import infer

torch.set_num_threads(1)
name, coarse, ratio = sys.argv[1], int(sys.argv[2]), 4
side = int(coarse**0.5) + 1
cells = torch.cartesian_prod(torch.arange(side), torch.arange(side))[:coarse]
inner = torch.cartesian_prod(torch.arange(ratio), torch.arange(ratio))
fine = (cells[:, None] * ratio + inner).reshape(-1, 2)
parent = torch.arange(coarse).repeat_interleave(ratio**2)
bag = Bag("huge", [Level(torch.randn(coarse, 1024), cells), Level(torch.randn(len(fine), 1024), fine, parent=parent)])
try:
    out = infer(build(name, 1024, 2).eval(), bag, 1)
    assert torch.isfinite(out.logits).all()
    print(json.dumps("done"))
except MarbleError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize("model", ["marble", "abmil", "transmil"])
def test_a_huge_bag_is_answered_or_refused_under_a_limit_on_memory(model: str, record_property: Record) -> None:
    """12,500 coarse and 200,000 fine tokens of 1,024 numbers in 6 GiB of addresses."""
    command = [sys.executable, "-c", HUGE, model, str(scaled(12_500))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    said = json.loads(ended.stdout)
    assert said == "done" or "GiB" in said, said
    record_property("said", said)
