"""`marble import` as users meet it: folders in which some files are good, some damaged and some hostile."""

from __future__ import annotations

import json
import pickle
import random
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

import marble
from marble import cli
from marble.bags.provenance import MADE_UP_CELLS
from marble.bags.store import BagStore
from marble.errors import BagError, MarbleError
from tests.cli import running
from tests.interchange.making import truth, write_clam, write_plain, write_trident

MADE = truth(tiles=20)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.assemble(), ["import", *map(str, arguments)])


def imported(folder: Path, store: Path, *options: str, magnification: float = 10) -> Result:
    result = run("--level", f"{magnification:g}:{folder}", "--store", store, *options)
    assert result.exit_code == 0, result.output
    return result


def same_tokens(store: Path, slide: str, features: Any) -> None:
    """By content: the rows of the bag are those of the file, whatever the order."""
    rows = BagStore(store).load(slide).finest.features.float().numpy()
    np.testing.assert_array_equal(np.unique(rows, axis=0), np.unique(features, axis=0))


def save(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


def test_a_tensor_file_with_coordinates_in_it_beside_it_or_in_the_next_folder(tmp_path: Path) -> None:
    features, xy = torch.from_numpy(MADE.coarse), torch.from_numpy(MADE.coarse_xy)
    save(tmp_path / "inside" / "a.pt", {"feats": features, "coords": xy, "label": 1})
    imported(tmp_path / "inside", tmp_path / "s1")
    write_clam(tmp_path / "clam", "a", MADE.coarse, MADE.coarse_xy, 1024)
    (tmp_path / "clam" / "h5_files" / "a.h5").unlink()
    save(tmp_path / "clam" / "pt_files" / "a.pt", features)
    imported(tmp_path / "clam" / "pt_files", tmp_path / "s2")
    save(tmp_path / "slideflow" / "a.pt", features)
    np.savez(tmp_path / "slideflow" / "a.index.npz", MADE.coarse_xy + 512)
    imported(tmp_path / "slideflow", tmp_path / "s3")
    for folder, values in (("features_uni_v1", MADE.coarse), ("coords", MADE.coarse_xy)):
        (tmp_path / "torchmil" / folder).mkdir(parents=True)
        np.save(tmp_path / "torchmil" / folder / "a.npy", values)
    imported(tmp_path / "torchmil" / "features_uni_v1", tmp_path / "s4")
    cells = [BagStore(tmp_path / f"s{i}").load("a").finest.cells for i in (1, 2, 3, 4)]
    for i, found in enumerate(cells, start=1):
        same_tokens(tmp_path / f"s{i}", "a", MADE.coarse)
        assert torch.equal(found, cells[0])
    assert [BagStore(tmp_path / f"s{i}").load("a").provenance.source for i in (2, 3, 4)] == [
        "clam", "slideflow", "torchmil",
    ]  # fmt: skip


def test_half_precision_of_torch_alone_is_widened(tmp_path: Path) -> None:
    features = torch.from_numpy(MADE.coarse).to(torch.bfloat16)
    save(tmp_path / "in" / "a.pt", features)
    imported(tmp_path / "in", tmp_path / "store", "--no-coordinates")
    same_tokens(tmp_path / "store", "a", features.float().numpy())


def test_features_without_coordinates_serve_models_that_read_none(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    save(folder / "a.pt", torch.from_numpy(MADE.fine))
    save(folder / "b.pt", [torch.from_numpy(MADE.fine)])
    np.save(folder / "c.npy", MADE.fine)
    save_file({"features": MADE.fine}, folder / "d.safetensors")
    write_plain(tmp_path / "hdf5" / "e.h5", features=MADE.fine)
    refused = run("--level", f"20:{folder}", "--store", tmp_path / "no")
    assert refused.exit_code == 1
    assert refused.output.count("--no-coordinates") == 3
    result = run("--level", f"20:{folder}", "--store", tmp_path / "store", "--no-coordinates")
    assert result.exit_code == 1  # one file holds a list
    assert "3 of them without coordinates" in result.output
    assert "holds a list, not a tensor" in result.output
    imported(tmp_path / "hdf5", tmp_path / "e", "--no-coordinates")
    for slide in "acde":
        bag = BagStore(tmp_path / ("e" if slide == "e" else "store")).load(slide)
        np.testing.assert_array_equal(bag.finest.features.numpy(), MADE.fine)  # in the order of the file
        assert MADE_UP_CELLS in bag.provenance.notes
        assert marble.build("abmil", dim=MADE.fine.shape[1], outputs=2)(bag).logits.shape == (2,)
        for model in ("2dmambamil", "hipt"):
            with pytest.raises(BagError, match="reads where tiles lie") as caught:
                marble.build(model, dim=MADE.fine.shape[1], outputs=2)(bag)
            assert caught.value.hint


def test_levels_without_coordinates_have_no_parents(tmp_path: Path) -> None:
    for name in ("10", "40"):
        save(tmp_path / name / "a.pt", torch.from_numpy(MADE.fine))
    result = run(
        "--level", f"10:{tmp_path / '10'}", "--level", f"40:{tmp_path / '40'}", "--store", tmp_path / "s",
        "--no-coordinates",
    )  # fmt: skip
    assert isinstance(result.exception, MarbleError)
    assert "only one level" in str(result.exception)


def test_zarr_without_its_packages_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marble.interchange.zarr_arrays.find_spec", lambda _name: None)
    (tmp_path / "in" / "a.zarr").mkdir(parents=True)
    result = run("--level", f"10:{tmp_path / 'in'}", "--store", tmp_path / "store")
    assert isinstance(result.exception, MarbleError)
    assert "read with zarr and pyarrow, not installed here" in str(result.exception)
    assert "pip install 'marble-wsi[zarr]'" in str(result.exception)


def good(path: Path, rng: random.Random) -> None:
    made = truth(seed=rng.randrange(1000), tiles=rng.randrange(2, 20))
    write_trident(path.with_suffix(".h5"), made.coarse, made.coarse_xy, 1024, 10)


def truncated(path: Path, rng: random.Random) -> None:
    good(path, rng)
    data = path.with_suffix(".h5").read_bytes()
    path.with_suffix(".h5").write_bytes(data[: rng.randrange(1, len(data) - 512)])


def hostile_pickle(path: Path, _rng: random.Random) -> None:
    canary = path.parent.parent / "canary"
    path.with_suffix(".pt").write_bytes(f"cos\nsystem\n(S'touch {canary}'\ntR.".encode())


def endless_tensor(path: Path, _rng: random.Random) -> None:
    torch.save(torch.zeros(1).as_strided((1 << 20, 1 << 20), (0, 0)), path.with_suffix(".pt"))


def linked_elsewhere(path: Path, _rng: random.Random) -> None:
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file["features"] = h5py.ExternalLink("/etc/passwd", "x")


def not_finite(path: Path, _rng: random.Random) -> None:
    values = np.full((3, 6), np.nan, np.float32)
    write_trident(path.with_suffix(".h5"), values, np.arange(6).reshape(3, 2) * 1024, 1024, 10)


def twice(path: Path, rng: random.Random) -> None:
    for form in ("NFC", "NFD"):
        good(path.with_name(unicodedata.normalize(form, f"\u00e9{path.name}")), rng)


BAD: dict[str, Callable[[Path, random.Random], Any]] = {
    "truncated": truncated,
    "empty": lambda path, _: path.with_suffix(".h5").touch(),
    "text": lambda path, _: path.with_suffix(".h5").write_text("features"),
    "hostile pickle": hostile_pickle,
    "plain pickle": lambda path, _: path.with_suffix(".pt").write_bytes(pickle.dumps({"features": 1})),
    "endless tensor": endless_tensor,
    "objects": lambda path, _: np.save(path.with_suffix(".npy"), np.array([{}], dtype=object)),
    "folder": lambda path, _: path.with_suffix(".h5").mkdir(),
    "broken link": lambda path, _: path.with_suffix(".h5").symlink_to("nowhere"),
    "linked elsewhere": linked_elsewhere,
    "not finite": not_finite,
    "no coordinates": lambda path, _: save(path.with_suffix(".pt"), torch.ones(4, 6)),
    "no tiles": lambda path, _: write_plain(
        path.with_suffix(".h5"), features=np.ones((0, 6), np.float32), coords=np.ones((0, 2))
    ),
    "twice": twice,
}


def check_folder(seed: int, tmp_path: Path) -> None:
    """A folder drawn at random: every item has a status, and good ones have the bytes of a clean import."""
    rng = random.Random(seed)
    mixed, clean = tmp_path / "mixed", tmp_path / "clean"
    for folder in (mixed, clean):
        folder.mkdir()
    names = [f"slide-{i}" for i in range(rng.randrange(3, 9))]
    rng.shuffle(names)
    kinds = {name: "good" if i == 0 or rng.random() < 0.4 else rng.choice(sorted(BAD)) for i, name in enumerate(names)}
    failing = set()
    for name, kind in kinds.items():
        if kind == "good":
            good(mixed / name, random.Random(f"{seed}/{name}"))
            good(clean / name, random.Random(f"{seed}/{name}"))
        else:
            BAD[kind](mixed / name, rng)
            failing.add(f"\u00e9{name}" if kind == "twice" else name)
    found = run("--level", f"10:{mixed}", "--store", tmp_path / "store")
    imported(clean, tmp_path / "reference")
    assert not isinstance(found.exception, MarbleError)
    assert found.exit_code == (1 if failing else 0), found.output
    assert "Traceback" not in found.output
    assert not (tmp_path / "canary").exists()
    store, reference = BagStore(tmp_path / "store"), BagStore(tmp_path / "reference")
    assert store.slide_ids() == reference.slide_ids() == sorted(name for name in names if kinds[name] == "good")
    for slide in store.slide_ids():
        assert store.bag_path(slide).read_bytes() == reference.bag_path(slide).read_bytes()
    noted = {record.slide_id: record for record in store.records() if record.status != "ok"}
    assert set(noted) == failing
    for record in noted.values():
        assert record.reason
        assert record.slide_id in found.output
        assert "\n" not in record.reason
    assert json.loads((tmp_path / "store" / "store.json").read_text())


@pytest.mark.parametrize("seed", range(2))
def test_folders_of_good_damaged_and_hostile_files(tmp_path: Path, seed: int) -> None:
    check_folder(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 62))
def test_many_folders_of_good_damaged_and_hostile_files(tmp_path: Path, seed: int) -> None:
    check_folder(seed, tmp_path)


@pytest.mark.parametrize("flag", ["--tile-px", "--slide-mpp", "--extents"])
@pytest.mark.parametrize("size", ["-1", "0"])
def test_sizes_are_more_than_nothing(tmp_path: Path, flag: str, size: str) -> None:
    ended = running.marble("import", "--level", f"20:{tmp_path}", "--store", tmp_path / "bags", f"{flag}={size}")
    assert (ended.code, ended.output) == (2, f"error: {flag} must be more than 0, got {size}\n")


def test_tiles_at_the_place_of_another_are_counted_in_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with h5py.File(tmp_path / "plain" / "s.h5", "w") as file:
        file["features"] = np.ones((4, 3), np.float32)
        file["coords"] = np.array([[0, 0], [0, 0], [256, 0], [512, 0]])
    ended = running.marble(
        "import", "--level", f"20:{tmp_path / 'plain'}", "--store", tmp_path / "bags", "--tile-px=256"
    )
    assert "one level: 3 tiles of 1 slides; 0 left out for a shared cell, 1 for the place of another" in ended.output


def test_tiles_that_overlap_are_said_to(tmp_path: Path) -> None:
    """A grid of half a tile's step: three in four tiles have no cell of their own."""
    (tmp_path / "plain").mkdir()
    with h5py.File(tmp_path / "plain" / "s.h5", "w") as file:
        file["features"] = np.ones((36, 3), np.float32)
        file["coords"] = np.stack(np.meshgrid(np.arange(6), np.arange(6)), -1).reshape(-1, 2) * 128
        file["coords"].attrs.update({"patch_size": 256, "patch_size_level0": 256, "overlap": 128})
    ended = running.marble("import", "--level", f"20:{tmp_path / 'plain'}", "--store", tmp_path / "bags")
    assert re.search(r"one level, whose tiles OVERLAP: \d+ tiles of 1 slides; \d+ left out", ended.output)


@pytest.mark.parametrize("odd", ["a", "c"])
def test_a_file_of_another_width_is_named_whichever_comes_first(tmp_path: Path, odd: str) -> None:
    for name in ("a", "b", "c"):
        features = MADE.coarse[:, :5] if name == odd else MADE.coarse
        write_plain(tmp_path / "f" / f"{name}.h5", features=features, coords=MADE.coarse_xy)
    arguments = ("import", "--level", f"10:{tmp_path / 'f'}", "--store", tmp_path / "bags", "--extents=1024")
    ended = running.marble(*arguments)
    assert ended.code == 1, ended.output
    (line,) = ended.failed
    assert line.startswith(
        f"{odd}: tokens 5 wide, but tokens {MADE.coarse.shape[1]} wide in 2 other bags. Make the bag"
    )
    write_plain(tmp_path / "f" / f"{odd}.h5", features=MADE.coarse, coords=MADE.coarse_xy)
    assert running.marble(*arguments).code == 0  # made again as the others were made


def test_files_of_two_widths_are_all_imported_and_said_once(tmp_path: Path) -> None:
    write_plain(tmp_path / "f" / "a.h5", features=MADE.coarse[:, :5], coords=MADE.coarse_xy)
    write_plain(tmp_path / "f" / "b.h5", features=MADE.coarse, coords=MADE.coarse_xy)
    ended = running.marble("import", "--level", f"10:{tmp_path / 'f'}", "--store", tmp_path / "bags", "--extents=1024")
    (line,) = ended.failed
    assert (ended.code, "bags of different shapes: 1 with tokens 5 wide (as 'a') and 1 with" in line) == (1, True)
    assert len(BagStore(tmp_path / "bags")) == 2


@pytest.mark.parametrize("odd", ["a", "c"])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_file_does_not_decide_for_all_how_wide_an_encoder_is(tmp_path: Path, odd: str, workers: int) -> None:
    """A named encoder has a width, which all bags of a store share."""
    for name in ("a", "b", "c"):
        features = MADE.coarse[:, :5] if name == odd else MADE.coarse
        write_plain(tmp_path / "f" / f"{name}.h5", features=features, coords=MADE.coarse_xy)
    said = ("--extents=1024", "--tile-px=256", "--encoder=uni_v1", "--workers", workers)
    ended = running.marble("import", "--level", f"10:{tmp_path / 'f'}", "--store", tmp_path / "bags", *said)
    assert ended.code == 1, ended.output
    (line,) = ended.failed
    assert f"provenance differs in 'encoders': dim 6 here, dim 5 in bag '{odd}'. " in line
    assert BagStore(tmp_path / "bags").slide_ids() == sorted({"a", "b", "c"} - {odd})
    assert not BagStore(tmp_path / "bags").bag_path(odd).exists()
    assert running.marble("verify", tmp_path / "bags").code == 0
