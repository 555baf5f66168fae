"""Whatever lies in a folder, in whatever order: `extract` gives every item a status, and good slides their bags."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from marble.files import sha256_file
from marble.identifiers import printable
from marble.synthetic.slides import write_slide
from tests.cli.running import marble
from tests.extract.folders import Item, drawn_folder

SETTINGS = ("--magnifications", "5,20", "--tile-px", "64", "--encoder", "colour", "--threads", "1")


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    """Three good slides and one without tissue."""
    folder = tmp_path_factory.mktemp("stock")
    good = [write_slide(folder / f"{i}.tiff", (512, 384), mpp=0.5, seed=i, pieces=1) for i in range(3)]
    return good, write_slide(folder / "blank.tiff", (512, 384), mpp=0.5, pieces=0)


def check_folder(seed: int, stock: tuple[list[Path], Path], tmp_path: Path) -> None:
    """Draw a folder, extract it, verify the store, then compare with a run on the good slides alone."""
    rng = random.Random(seed)
    items = drawn_folder(tmp_path / "slides", *stock, rng)
    ended = marble("extract", tmp_path / "slides", "--store", tmp_path / "bags", *SETTINGS)
    assert ended.output.count("[") >= len(items)
    assert f"[{len(items)}/{len(items)}]" in ended.output, ended.output
    failing = [item for item in items if item.expected == {"failed"}]
    listed = sorted(line.split(".", 1)[0] for line in ended.failed)
    assert listed == sorted(printable(item.path).split(".", 1)[0] for item in failing), ended.output
    assert ended.code == (1 if failing else 0), ended.output
    assert marble("verify", tmp_path / "bags").code == 0
    bags = _files(tmp_path / "bags")
    _leave_only_good(items)
    assert marble("extract", tmp_path / "slides", "--store", tmp_path / "clean", *SETTINGS).code == 0
    clean = _files(tmp_path / "clean")
    assert sum(name.endswith(".safetensors") for name in clean) == sum(item.is_good for item in items)
    assert {name: bags.get(name) for name in clean} == clean
    assert not list((tmp_path / "bags").rglob(".*"))


def _files(root: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in root.rglob("*") if path.is_file()}


def _leave_only_good(items: list[Item]) -> None:
    for item in items:
        if not item.is_good:
            if item.path.is_dir() and not item.path.is_symlink():
                item.path.rmdir()
            else:
                item.path.unlink()


@pytest.mark.parametrize("seed", range(2))
def test_every_item_of_a_drawn_folder_gets_a_status(seed: int, stock: tuple[list[Path], Path], tmp_path: Path) -> None:
    check_folder(seed, stock, tmp_path)


def test_an_empty_slide_in_front_does_not_end_the_batch_or_its_restart(
    stock: tuple[list[Path], Path], tmp_path: Path
) -> None:
    (tmp_path / "slides").mkdir()
    (tmp_path / "slides" / "a.svs").touch()
    (tmp_path / "slides" / "b.tiff").write_bytes(stock[0][0].read_bytes())
    for _ in range(2):
        ended = marble("extract", tmp_path / "slides", "--store", tmp_path / "bags", *SETTINGS)
        assert ended.code == 1
        assert [line.endswith("the file is empty. Copy or export the file again") for line in ended.failed] == [True]
        assert "b: ok" in ended.output
