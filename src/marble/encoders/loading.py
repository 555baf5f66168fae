"""`load_encoder`: from a name to an encoder that is ready to run."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from marble import devices
from marble.bags.tensors import map_file
from marble.encoders import lite0
from marble.encoders.catalogue import EncoderRow, Rgb, encoder_row
from marble.encoders.colour import DIM, colour_statistics
from marble.encoders.encoder import Encoder, RunTiles
from marble.encoders.feed import Feed, Forward, on_cpu
from marble.encoders.lanes import lane_of
from marble.encoders.weights import check_hash, find_weights
from marble.errors import InputError

Precision = Literal["float32", "float16", "bfloat16"]
Backend = Literal["auto", "onnx", "torch"]
#: batch by batch, from any thread; and one feed for each accelerator
Ways = tuple[RunTiles, tuple[Feed, ...]]
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def load_encoder(
    name: str,
    weights: Path | str | None = None,
    *,
    device: str = "cpu",
    precision: Precision = "float32",
    backend: Backend = "auto",
    allow_download: bool = False,
    expect_sha256: str | None = None,
) -> Encoder:
    """Load an encoder by its catalogue name, `timm:NAME` or `hf-hub:ORG/NAME`.

    Args:
        name: which encoder.
        weights: a local safetensors file, or a folder that holds one.
        device: what `devices.choose` knows; several, comma-separated, share the batches.
        precision: float16 and bfloat16 only on a GPU.
        backend: for `lite0` on a CPU: ONNX Runtime, torch, or whichever is faster here ("auto").
        allow_download: fetch weights that are not here; otherwise nothing is ever downloaded.
        expect_sha256: refuse weights whose file has another hash.
    """
    row = encoder_row(name)
    places = devices.choose_several(device)
    if len(places) > 1:
        each = [
            load_encoder(
                name, weights, device=str(place), precision=precision, backend=backend, allow_download=allow_download,
                expect_sha256=expect_sha256,
            )
            for place in places
        ]  # fmt: skip
        return replace(each[0], device=device, feeds=tuple(feed for one in each for feed in one.feeds))
    (place,) = places
    if precision != "float32" and place.type == "cpu":
        raise InputError(
            f"precision {precision} is slower and less exact than float32 on a CPU",
            where=f"encoder '{name}'",
            hint="Leave precision at float32, or give a GPU as device",
        )
    given = None if weights is None else Path(weights)
    if row.family == "colour":
        if given is not None or expect_sha256 is not None:
            raise InputError("encoder 'colour' has no weights", where="weights", hint="Leave them out")
        if precision != "float32":
            raise InputError("encoder 'colour' runs in float32 only", where="precision")
        return Encoder(row, DIM, row.input_px or 0, colour_statistics, None, backend="numpy")
    if row.family == "lite0":
        return _load_lite0(row, given, place, precision, backend, expect_sha256)
    return _load_timm(row, given, place, precision, expect_sha256, allow_download=allow_download)


def _load_lite0(
    row: EncoderRow,
    given: Path | None,
    device: torch.device,
    precision: Precision,
    backend: Backend,
    expected: str | None,
) -> Encoder:
    if precision != "float32":
        raise InputError("encoder 'lite0' runs in float32 only", where="precision")
    path = given or lite0.package_weights()
    if not path.is_file():
        raise InputError("no such weights file", where=path)
    check_hash(path, expected)
    net = lite0.folded(lite0.read_state(path))
    (run, feeds), used = _lite0_runner(net, device, backend)
    assert row.dim is not None
    assert row.input_px is not None
    return Encoder(row, row.dim, row.input_px, run, lite0.WEIGHTS_SHA256, precision, str(device), used, feeds)


def _lite0_runner(net: list[lite0.Conv], device: torch.device, backend: Backend) -> tuple[Ways, str]:
    off_cpu = device.type != "cpu"
    if backend == "torch" or (backend == "auto" and off_cpu):
        return ways(lite0.forward_torch(net, device), device), "torch"
    if off_cpu:
        raise InputError("backend 'onnx' runs on the CPU only", where="backend", hint="Use backend 'torch'")
    from marble.encoders import lite0_onnx

    try:
        return (lite0_onnx.run_onnx(net), ()), "onnx"
    except ImportError as error:
        if backend == "onnx":
            raise InputError(
                f"backend 'onnx' is not installed ({error})", hint="Run `pip install 'marble-wsi[onnx]'`"
            ) from None
        warnings.warn(
            f"ONNX Runtime is not installed ({error}): encoder 'lite0' runs in torch, which takes two to three times "
            "as long. Run `pip install 'marble-wsi[onnx]'`",
            stacklevel=4,
        )
        return ways(lite0.forward_torch(net, device), device), "torch"


def _load_timm(
    row: EncoderRow,
    given: Path | None,
    device: torch.device,
    precision: Precision,
    expected: str | None,
    *,
    allow_download: bool,
) -> Encoder:
    from marble.encoders import timm_models

    path = find_weights(row, given, allow_download=allow_download)
    digest = check_hash(path, expected)
    state, _ = map_file(path)
    if row.network is not None:
        model = timm_models.build_network(row.network)
        tensors = timm_models.NAMES[row.network.names](state)
        dim, input_px, mean, std = row.dim, row.input_px, row.mean, row.std
    else:
        model, config = timm_models.build_any(row, path)
        tensors = timm_models.without_head(state, config)
        dim, input_px = int(model.num_features), int(config["input_size"][-1])  # type: ignore[arg-type]
        mean, std = tuple(config["mean"]), tuple(config["std"])
    timm_models.load_strictly(model, tensors, path)
    assert dim is not None
    assert input_px is not None
    assert mean is not None
    assert std is not None
    run, feeds = ways(forward_module(model, mean, std, device, precision), device)
    if row.network is None:  # what `num_features` says need not be what comes out
        dim = int(run(np.zeros((1, input_px, input_px, 3), np.uint8)).shape[1])
    return Encoder(row, dim, input_px, run, digest, precision, str(device), "timm", feeds)


def ways(forward: Forward, device: torch.device) -> Ways:
    """How an encoder's arithmetic is called, batch by batch and as a feed, where its weights are."""
    if device.type == "cpu":
        return on_cpu(forward), ()
    feed = Feed(forward, lane_of(device))
    return feed.run, (feed,)


def forward_module(model: nn.Module, mean: Rgb, std: Rgb, device: torch.device, precision: Precision) -> Forward:
    """A torch module on uint8 tiles: scale to 0..1, normalise, forward."""
    dtype = _DTYPES[precision]
    model = model.eval().requires_grad_(False).to(device=device, dtype=dtype)
    shift = torch.tensor(mean, device=device)[:, None, None]  # (3, 1, 1)
    scale = torch.tensor(std, device=device)[:, None, None]

    @torch.inference_mode()
    def forward(tiles: Tensor) -> Tensor:
        x = tiles.permute(0, 3, 1, 2).float() / 255  # (n, 3, px, px)
        x = ((x - shift) / scale).to(dtype).contiguous()
        tokens: Tensor = model(x).float()
        return tokens

    return forward
