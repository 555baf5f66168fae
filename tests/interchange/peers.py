"""Files by other packages' own writers and readers, made in whichever Python has them:

python -m tests.interchange.peers lazyslide SLIDE.tiff STORE.zarr SAID.npz tissue|whole
python -m tests.interchange.peers torchmil FOLDER SLIDE SAID.npz

SAID.npz holds what the package itself reads back: an answer that an import can be held against.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from marble.encoders.torchvision_guard import import_timm


def lazyslide(slide: str, store: str, said: str, where: str) -> None:
    """Tiles at 5x and 20x of a slide with 0.5 um per pixel, with features, written by LazySlide.

    `where`: tiles inside the tissue, which LazySlide numbers, or of the whole picture, which it does not.
    """
    import lazyslide as zs
    import torch
    from wsidata import open_wsi

    class Sums(torch.nn.Module):
        """Numbers that differ from tile to tile; LazySlide asks for no more of a model."""

        def forward(self, pictures: torch.Tensor) -> torch.Tensor:
            flat = pictures.float().flatten(2)  # (B, C or height, the rest)
            return torch.cat([flat.mean(2), flat.std(2)], dim=1)

    wsi = open_wsi(slide, store=store)
    wsi.set_mpp(0.5)
    if where == "tissue":
        zs.pp.find_tissues(wsi)
    answers: dict[str, Any] = {}
    for name, mpp in (("coarse", 2.0), ("fine", 0.5)):
        zs.pp.tile_tissues(wsi, 128, mpp=mpp, background_fraction=0.95, key_added=name)
        zs.tl.feature_extraction(wsi, model=Sums(), model_name="sums", tile_key=name, device="cpu", num_workers=0)
        table = wsi.tables[f"sums_{name}"]
        corners = wsi.shapes[name].geometry.bounds[["minx", "miny"]].to_numpy()
        answers |= {f"{name}_features": np.asarray(table.X), f"{name}_xy": corners[table.obs["tile_id"].to_numpy()]}
    wsi.write()
    np.savez(said, **answers)


def torchmil(folder: str, slide: str, said: str) -> None:
    """torchmil has no writer; its reader says what a folder of its layout holds."""
    from torchmil.datasets import ProcessedMILDataset

    keys = ["X", "Y", "coords"]
    found = ProcessedMILDataset(f"{folder}/features", f"{folder}/labels", coords_path=f"{folder}/coords", bag_keys=keys)
    bag = found[found.get_bag_names().index(slide)]
    np.savez(said, features=bag["X"].numpy(), xy=bag["coords"].numpy())


if __name__ == "__main__":
    import_timm()  # both import torchvision, which not every build of torch bears
    peers: dict[str, Callable[..., None]] = {"lazyslide": lazyslide, "torchmil": torchmil}
    peers[sys.argv[1]](*sys.argv[2:])
