"""What a compressed picture says of its size, against the encoders themselves."""

from __future__ import annotations

import cv2
import imagecodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.slides.readers.codestream import (
    PlainJpeg,
    has_restarts,
    huffman_symbols,
    jpeg2000_size,
    jpeg_size,
    plain_jpeg,
)


@pytest.mark.parametrize(("width", "height"), [(16, 16), (257, 33), (1000, 3)])
def test_sizes(width: int, height: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    assert jpeg_size(bytes(imagecodecs.jpeg_encode(pixels))) == (width, height)
    for container in ("j2k", "jp2"):
        assert jpeg2000_size(bytes(imagecodecs.jpeg2k_encode(pixels, codecformat=container))) == (width, height)


@pytest.mark.parametrize(("subsampling", "mcu"), [("444", (8, 8)), ("422", (16, 8)), ("420", (16, 16))])
def test_plain_streams(subsampling: str, mcu: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (48, 80, 3), dtype=np.uint8)
    stream = bytes(imagecodecs.jpeg8_encode(pixels, subsampling=subsampling))
    claims = plain_jpeg(stream)
    assert claims == PlainJpeg(80, 48, stream.index(b"\xff\xc0") + 5, *mcu)
    assert stream[claims.height_at : claims.height_at + 2] == b"\0\x30"
    assert not has_restarts(stream)


def test_other_streams_are_not_plain() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (48, 80, 3), dtype=np.uint8)
    restarts = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_RST_INTERVAL, 2])[1].tobytes()
    assert has_restarts(restarts)
    assert plain_jpeg(restarts) is None
    assert plain_jpeg(cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()) is None
    assert plain_jpeg(cv2.imencode(".jpg", pixels[..., 0])[1].tobytes()) is None
    plain = bytes(imagecodecs.jpeg8_encode(pixels))
    assert plain_jpeg(plain) is not None
    for cut in range(plain.index(b"\xff\xda") + 4):
        assert plain_jpeg(plain[:cut]) is None


def test_a_huffman_table_that_claims_more_than_there_is() -> None:
    plain = bytes(imagecodecs.jpeg8_encode(np.zeros((16, 16, 3), np.uint8)))
    at = plain.index(b"\xff\xc4") + 2
    assert huffman_symbols(plain[:at] + b"\xff\xff" + plain[at + 2 :])


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=64))
def test_any_bytes_are_answered(data: bytes) -> None:
    for head in (b"", b"\xff\xd8\xff", b"\xff\x4f\xff\x51"):
        assert jpeg_size(head + data) is None or len(head + data) >= 9
        assert plain_jpeg(head + data) is None or len(head + data) >= 24
        assert jpeg2000_size(head + data) is None or len(head + data) >= 24
