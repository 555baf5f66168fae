"""Feature files as other tools lay them out, from one nested truth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
DIM = 6


@dataclass(frozen=True)
class Truth:
    """Two levels of a slide: level-0 corners (x, y), features, and each fine tile's parent, in scrambled order."""

    coarse_xy: Array
    fine_xy: Array
    coarse: Array
    fine: Array
    parent: Array
    extents: tuple[int, int]


def truth(seed: int = 0, coarse_extent: int = 1024, ratio: int = 4, tiles: int = 7, step: int = 6) -> Truth:
    """`tiles` of a `step` x `step` grid; every coarse tile but the last has some children."""
    rng = np.random.default_rng(seed)
    fine_extent = coarse_extent // ratio
    cells = rng.permutation(step * step)[:tiles]
    coarse = np.stack([cells % step, cells // step], 1) * coarse_extent
    pairs = [(p, i, j) for p in range(tiles - 1) for i in range(ratio) for j in range(ratio) if rng.random() < 0.7]
    inner = np.array(pairs or [(0, 0, 0)])[rng.permutation(max(1, len(pairs)))]
    fine = coarse[inner[:, 0]] + inner[:, 1:] * fine_extent
    return Truth(
        coarse_xy=coarse,
        fine_xy=fine,
        coarse=rng.normal(size=(len(coarse), DIM)).astype(np.float32),
        fine=rng.normal(size=(len(fine), DIM)).astype(np.float32),
        parent=inner[:, 0],
        extents=(coarse_extent, fine_extent),
    )


def write_trident(path: Path, features: Array, xy: Array, extent: int, magnification: float, **attrs: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "patch_size": 256,
        "patch_size_level0": extent,
        "level0_magnification": 40,
        "target_magnification": magnification,
        "overlap": 0,
        "name": path.stem,
        "savetodir": "somewhere",
        "level0_width": 50_000,
        "level0_height": 40_000,
    }
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=features, chunks=(1, features.shape[1])).attrs["encoder"] = "None"
        coords = file.create_dataset("coords", data=xy.astype(np.int64), chunks=(1, 2))
        coords.attrs.update({**about, **attrs})


def write_clam(folder: Path, slide: str, features: Array, xy: Array, extent: int, *, patches: bool = True) -> Path:
    path = folder / "h5_files" / f"{slide}.h5"
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["features"] = features
        file["coords"] = xy.astype(np.int32)
    if patches:
        beside = folder / "patches" / f"{slide}.h5"
        beside.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(beside, "w") as file:
            coords = file.create_dataset("coords", data=xy.astype(np.int64))
            coords.attrs.update({"patch_size": 256, "patch_level": 0, "downsample": (extent / 256, extent / 256)})
    return path


def write_stamp(path: Path, features: Array, xy_um: Array, side_um: float, *, version: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["feats"] = features.astype(np.float16)
        if version == "1":
            file["coords"] = (xy_um * 224 / 256).astype(np.float32)
            return
        file["coords"] = xy_um.astype(np.float32)
        file.attrs["unit"] = "um"
        if version == "2.0":
            file.attrs["tile_size"] = side_um
        else:
            about = {"stamp_version": version, "tile_size_um": side_um, "tile_size_px": 224, "extractor": "ctranspath"}
            file.attrs.update(about)


def write_plain(path: Path, **datasets: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name.replace("__", "/")] = values
    return path
