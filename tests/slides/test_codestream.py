"""What a compressed picture says of its size, against the encoders themselves."""

from __future__ import annotations

import imagecodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.slides.codestream import jpeg2000_size, jpeg_size


@pytest.mark.parametrize(("width", "height"), [(16, 16), (257, 33), (1000, 3)])
def test_sizes(width: int, height: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    assert jpeg_size(bytes(imagecodecs.jpeg_encode(pixels))) == (width, height)
    for container in ("j2k", "jp2"):
        assert jpeg2000_size(bytes(imagecodecs.jpeg2k_encode(pixels, codecformat=container))) == (width, height)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=64))
def test_any_bytes_are_answered(data: bytes) -> None:
    for head in (b"", b"\xff\xd8\xff", b"\xff\x4f\xff\x51"):
        assert jpeg_size(head + data) is None or len(head + data) >= 9
        assert jpeg2000_size(head + data) is None or len(head + data) >= 24
