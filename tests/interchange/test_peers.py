"""Files of other packages' own making, imported; what those packages read back themselves is the oracle.

The packages need not be installed beside MARBLE: `MARBLE_PEERS` names a Python that has them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from marble.bags.bag import Bag
from marble.bags.store import BagStore
from marble.cli import assemble
from marble.synthetic.slides import write_slide

# The packages alone take minutes to import on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]


def peer(package: str, *arguments: object) -> dict[str, NDArray[np.float64]]:
    """Let the package do its work in whichever Python has it; skip, with the reason, if none has."""
    python = os.environ.get("MARBLE_PEERS", sys.executable)
    found = subprocess.run([python, "-c", f"import importlib.util as u; assert u.find_spec('{package}')"], check=False)
    if found.returncode:
        pytest.skip(f"{package} is not installed in {python}; MARBLE_PEERS may name a Python that has it")
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    command = [python, "-m", "tests.interchange.peers", package, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(arguments[2]) as said:  # type: ignore[arg-type]
        return dict(said)


def run_import(*arguments: object) -> str:
    done = CliRunner().invoke(assemble(), ["import", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def check(bag: Bag, level: int, features: NDArray[np.float64], xy: NDArray[np.float64], *, exact: bool = True) -> None:
    """Every tile's features stand where the package says they lie."""
    wanted = {tuple(place): row for place, row in zip(xy.astype(int).tolist(), features, strict=True)}
    corners = bag.boxes(level)[:, :2].tolist()
    rows = bag.levels[level].features.numpy()
    if exact:  # one grid: every corner is a tile's own
        for corner, row in zip(corners, rows, strict=True):
            np.testing.assert_array_equal(row, wanted[tuple(corner)])
        return
    left = {row.tobytes() for row in np.asarray(features, rows.dtype)}
    assert {row.tobytes() for row in rows} <= left


def test_lazyslides_own_store(tmp_path: Path) -> None:
    pytest.importorskip("zarr", reason="needs the extra [zarr]")
    pytest.importorskip("pyarrow", reason="needs the extra [zarr]")
    said = {}
    (tmp_path / "stores").mkdir()
    for name, where in (("whole", "whole"), ("within", "tissue")):
        slide = tmp_path / f"{name}.tiff"
        write_slide(slide, (1536, 1024), seed=1, planted=[])
        said[name] = peer("lazyslide", slide, tmp_path / "stores" / f"{name}.zarr", tmp_path / f"{name}.npz", where)
    levels = [f"5:{tmp_path / 'stores'}", f"20:{tmp_path / 'stores'}"]
    output = run_import("--level", levels[0], "--level", levels[1], "--store", tmp_path / "bags")
    store = BagStore(tmp_path / "bags")
    assert sorted(store.slide_ids()) == ["whole", "within"], output
    for name in said:
        bag = store.load(name)
        assert bag.provenance.source == "lazyslide"
        assert [level.magnification for level in bag.provenance.levels] == [5, 20]
        slide_of = bag.provenance.slide
        assert slide_of is not None
        assert (slide_of.l0_width_px, slide_of.l0_height_px, slide_of.mpp) == (1536, 1024, 0.5)
        for level, key in enumerate(("coarse", "fine")):
            # Tiles of each piece of tissue are laid from its own corner, so in one lattice they lie near their place.
            features, xy = said[name][f"{key}_features"], said[name][f"{key}_xy"]
            check(bag, level, features, xy, exact=name == "whole")
    assert len(store.load("whole").finest) == len(said["whole"]["fine_xy"]) == 96


def test_what_torchmil_reads_is_imported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cells = rng.permutation(30)[:20]
    xy = np.stack([cells % 6, cells // 6], axis=1) * 512
    folder = tmp_path / "data"
    for name, array in (("features", rng.normal(size=(20, 8)).astype(np.float32)), ("labels", np.array(1)),
                        ("coords", xy)):  # fmt: skip
        (folder / name).mkdir(parents=True)
        np.save(folder / name / "S1.npy", array)
    said = peer("torchmil", folder, "S1", tmp_path / "said.npz")
    run_import("--level", f"20:{folder / 'features'}", "--store", tmp_path / "bags", "--tile-px", 256)
    bag = BagStore(tmp_path / "bags").load("S1")
    assert bag.provenance.source == "torchmil"
    check(bag, 0, said["features"], said["xy"])
