"""What holds for every encoder: its contract, its catalogue row, what is refused."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest

from marble.encoders import CATALOGUE, encoder_row, load_encoder
from marble.encoders.catalogue import EncoderRow
from marble.encoders.encoder import Encoder
from marble.errors import InputError, MarbleError, NonFiniteError, UnavailableError

ON_HUB = [row.name for row in CATALOGUE.values() if row.is_on_hub]


def test_catalogue_holds_what_other_tools_call_by_the_same_names() -> None:
    dims = {row.name: row.dim for row in CATALOGUE.values()}
    assert dims == {
        "lite0": 1280, "colour": 24, "uni_v1": 1024, "uni_v2": 1536, "conch_v15": 768, "virchow2": 2560,
        "gigapath": 1536, "hoptimus1": 1536, "phikon_v2": 1024, "ctranspath": 768, "resnet50": 1024,
    }  # fmt: skip


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=list(CATALOGUE))
def test_every_row_is_complete(row: EncoderRow) -> None:
    assert row.licence
    assert row.source
    assert row.input_px
    assert (row.mean is None) == (row.name == "colour")
    assert all(0.05 <= mpp <= 20 for mpp in row.recommended_mpp)


@pytest.mark.parametrize("name", [*ON_HUB, "timm:resnet18.a1_in1k", "hf-hub:someone/something"])
def test_nothing_is_downloaded_unless_asked(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UnavailableError) as caught:
        load_encoder(name)
    message = str(caught.value)
    assert "--weights" in message
    row = encoder_row(name)
    assert row.source in message
    assert ("hf auth login" in message) == row.gated


def test_a_download_that_fails_ends_in_a_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", no_network)
    with pytest.raises(UnavailableError, match=r"no route to host.*--weights uni_v1=FILE"):
        load_encoder("uni_v1", allow_download=True)


@pytest.mark.parametrize("name", ["univ1", "timm:", "hf-hub:name-without-owner", ""])
def test_unknown_names_are_refused_with_the_list(name: str) -> None:
    with pytest.raises(InputError, match=r"lite0, colour, uni_v1"):
        load_encoder(name)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".pkl"])
def test_pickled_weights_are_refused_with_the_command_that_converts_them(suffix: str, tmp_path: Path) -> None:
    canary = tmp_path / "ran"
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR.")
    with pytest.raises(InputError, match=r"safetensors.*save_file"):
        load_encoder("uni_v1", weights=path)
    assert not canary.exists()


def test_half_precision_on_a_cpu_is_refused() -> None:
    with pytest.raises(InputError, match="GPU"):
        load_encoder("colour", precision="float16")


def test_what_the_control_has_none_of_cannot_be_given(tmp_path: Path) -> None:
    for options in ({"weights": tmp_path / "a.safetensors"}, {"expect_sha256": "0" * 64}):
        with pytest.raises(InputError, match="encoder 'colour' has no weights"):
            load_encoder("colour", **options)


def test_warns_far_from_the_pixel_size_it_was_trained_for() -> None:
    def at(name: str, mpp: float) -> str | None:
        return Encoder(CATALOGUE[name], 1, 1, lambda x: x, None).far_from(mpp)  # type: ignore[arg-type, return-value]

    assert at("uni_v1", 0.5) is None
    assert at("uni_v1", 0.46) is None
    assert "trained at 0.5" in str(at("uni_v1", 1.0))
    assert at("uni_v1", 0.25) is not None
    assert at("virchow2", 1.0) is None
    assert at("virchow2", 4.0) is not None
    assert at("lite0", 4.0) is None


def test_batches_of_the_wrong_kind_are_refused() -> None:
    encoder = load_encoder("colour")
    good = np.zeros((2, 64, 64, 3), np.uint8)
    assert encoder.encode(good).shape == (2, 24)
    for bad in (good.astype(np.float32), good[0], good[:, :32], good[:0], np.zeros((2, 3, 64, 64), np.uint8)):
        with pytest.raises(InputError, match="takes uint8 tiles"):
            encoder.encode(bad)  # type: ignore[arg-type]


def test_tokens_that_are_not_finite_are_refused() -> None:
    row = CATALOGUE["colour"]
    encoder = Encoder(row, 1, 4, lambda x: np.full((len(x), 1), np.nan, np.float32), None)
    with pytest.raises(NonFiniteError):
        encoder.encode(np.zeros((1, 4, 4, 3), np.uint8))


def test_fit_shrinks_by_area_and_never_crops() -> None:
    encoder = load_encoder("colour")
    rng = np.random.default_rng(0)
    tile = rng.integers(0, 256, (128, 128, 3), dtype=np.uint8)
    by_hand = tile.reshape(64, 2, 64, 2, 3).mean((1, 3))
    assert np.abs(encoder.fit(tile) - by_hand).max() <= 0.5
    assert np.array_equal(encoder.fit(tile[:64, :64]), tile[:64, :64])
    assert encoder.fit(tile[:32, :32]).shape == (64, 64, 3)


@pytest.mark.parametrize("px", [96, 80, 48])
def test_fit_keeps_every_place_where_it_was(px: int) -> None:
    encoder = load_encoder("colour")
    across, down = np.meshgrid(np.linspace(0, 250, px), np.linspace(250, 0, px))
    tile = np.stack([across, down, np.full_like(across, 77)], axis=2).round().astype(np.uint8)
    place = (np.arange(64) + 0.5) * px / 64 - 0.5  # centres of the new pixels among the old ones
    expected = np.clip(place, 0, px - 1) * 250 / (px - 1)
    fitted = encoder.fit(tile).astype(np.float64)
    assert np.abs(fitted[:, :, 0] - expected[None, :]).max() <= 2
    assert np.abs(fitted[:, :, 1] - (250 - expected)[:, None]).max() <= 2
    assert (fitted[:, :, 2] == 77).all()


def test_colour_statistics_against_numpy() -> None:
    rng = np.random.default_rng(1)
    batch = rng.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    tokens = load_encoder("colour").encode(batch).reshape(3, 8, 3)
    for n in range(3):
        for channel in range(3):
            values = batch[n, :, :, channel].ravel().astype(np.float64) / 255
            expected = [values.mean(), values.std()]
            expected += [np.quantile(values, q, method="higher") for q in (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)]
            assert np.allclose(tokens[n, :, channel], expected, atol=2 / 255)
            assert np.allclose(tokens[n, :2, channel], expected[:2], atol=1e-6)


def test_errors_are_ours() -> None:
    assert issubclass(UnavailableError, MarbleError)
