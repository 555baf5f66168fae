"""Features as a bare array: `.pt`, `.npy` or `.safetensors`, with coordinates inside, beside, or nowhere.

SLIDE.pt            a tensor (N, D), as CLAM, STAMP's heirs and many scripts write it, or a dict with features
SLIDE.index.npz     Slideflow's coordinates beside it
../coords/SLIDE.npy torchmil's coordinates
../patches/SLIDE.h5 CLAM's coordinates, in the order of the features
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from marble.bags.tensors import map_file
from marble.errors import BagError, InputError
from marble.interchange.arrays import read_npy
from marble.interchange.attributes import COORDINATE_NAMES, FEATURE_NAMES, encoder_of_folder, grid_of
from marble.interchange.clam import coordinates_beside, looked_for
from marble.interchange.hdf5 import MAX_BYTES, Array, open_foreign
from marble.interchange.tiles import NO_PLACES, LevelHints, Tiles
from marble.models.originals.checkpoint import read_weights

PICKLE_SUFFIXES = (".pt", ".pth")
PLAIN_SUFFIXES = (".safetensors", ".npy", *PICKLE_SUFFIXES)
_TORCHMIL = ("coords", "coordinates")


def read_plain(path: Path, _hints: LevelHints) -> Tiles:
    """One level of one slide from a bare array; without coordinates its tiles have no places."""
    arrays = arrays_of(path)
    features = features_of(arrays, path)
    inside = next((arrays[name] for name in COORDINATE_NAMES if name in arrays), None)
    beside = coordinates_beside(path)
    npy = next(
        (file for file in (path.parent.parent / each / f"{path.stem}.npy" for each in _TORCHMIL) if file.is_file()),
        None,
    )
    tool, xy, grid = "plain", inside, {}
    if xy is None and beside is not None:
        with open_foreign(beside) as file:
            tool, xy, grid = "clam", file.numbers("coords"), grid_of(file.attributes("coords"))
    elif xy is None and npy is not None:
        tool, xy = "torchmil", read_npy(npy)
    return Tiles(
        tool=tool,
        features=features,
        xy=NO_PLACES if xy is None else xy,
        placeless=None if xy is not None else looked_for(sorted(arrays)),
        encoder=encoder_of_folder(path.parent),
        **grid,
    )


def arrays_of(path: Path) -> dict[str, Array]:
    """The arrays of a file by name; a bare one is called `features`."""
    if path.suffix == ".npy":
        return {"features": read_npy(path)}
    if path.suffix == ".safetensors":
        return {name: _array(tensor, name, path) for name, tensor in map_file(path)[0].items()}
    try:
        loaded = read_weights(path)
    except InputError as error:
        what = error.what.replace("a file of weights alone", "a file of tensors alone")
        hint = "Where it was made, save the features alone, torch.save(features, 'SLIDE.pt'), or give HDF5 files"
        raise BagError(what, where=path, hint=hint) from None
    if isinstance(loaded, Tensor):
        return {"features": _array(loaded, "features", path)}
    if isinstance(loaded, Mapping):
        return {str(name): _array(each, str(name), path) for name, each in loaded.items() if isinstance(each, Tensor)}
    raise BagError(f"holds a {type(loaded).__name__}, not a tensor or a dict of tensors", where=path)


def features_of(arrays: dict[str, Array], path: Path) -> Array:
    """The features among a file's arrays, by a usual name or as the only ones."""
    name = next((name for name in FEATURE_NAMES if name in arrays), None)
    others = [other for other in arrays if other not in COORDINATE_NAMES]
    if name is None and len(others) == 1:
        name = others[0]
    if name is None:
        raise BagError(
            f"no features: none of {', '.join(FEATURE_NAMES)} among {sorted(arrays) or 'nothing'}", where=path
        )
    return arrays[name]


def _array(tensor: Tensor, name: str, path: Path) -> Array:
    """The tensor as an array, if it is dense and its numbers are all there."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex() or tensor.device.type != "cpu":
        raise BagError(f"tensor '{name}' is not a plain array of numbers", where=path)
    # A few bytes may be declared to be a tensor of any size, by steps of 0.
    declared = tensor.numel() * tensor.element_size()
    if declared > min(MAX_BYTES, tensor.untyped_storage().nbytes()):
        raise BagError(f"tensor '{name}' declares {declared:,} bytes that are not there", where=path)
    known = tensor.dtype in (torch.float16, torch.float32, torch.float64) or not tensor.is_floating_point()
    return (tensor if known else tensor.float()).detach().numpy()  # numpy has no bfloat16
