"""Whether a JPEG stream holds all of its picture, and its pixels if it does.

The library that decodes JPEG goes on without a word when the data ends too early, and leaves what it has no data for
plain grey; over zeros in place of data it makes up a picture. Three things tell:

* a whole stream ends with its end marker;
* a picture that is said to be 16 rows higher than it is has something in the first extra block (made from the bits
  left over), and plain grey behind it: anything later means that there is too much data. Grey at once means that data
  is lacking, or that the picture itself ends in exactly this grey: then a few bytes more must show in the extra rows;
* a run of zero bytes inside the data is damage, unless the stream's own codes say that zeros mean "as before".
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Literal

import imagecodecs
import numpy as np

from marble.slides.readers.codestream import PlainJpeg, huffman_symbols, jpeg_scan, plain_jpeg, restart_gaps
from marble.slides.readers.planes import Pixels

END_OF_IMAGE = b"\xff\xd9"
_BLOCK_PX = 8
_EXTRA_ROWS = 16
_JUDGED = np.s_[2:6, 2:6]  # of the first extra block, without its edges, which chroma upsampling mixes with others
_GREY = 128
_MAX_SIDE = 65_535
# Bits that mean something under any table; few enough to reach the extra rows only where the picture ends.
_PROBES = (b"\x5a\x36\x9b\x61", b"\x33\xd2\x2d\x4b", b"\xb6\x6d\xdb\x36")
_ZEROS = re.compile(rb"\x00{32,}")

Colours = Literal["YCBCR", "RGB", "GRAYSCALE", "CMYK", "YCCK"]


class Whole(Enum):
    """What can be said of a stream."""

    YES = "it holds all of its picture"
    NO = "data is lacking, or is not what was written"
    UNSURE = "of a kind that cannot be judged here"


def judge(stored: bytes, tables: bytes | None = None) -> Whole:
    """Whether a stream holds all of its picture. Costs the decoding of its brightness, for the usual kinds."""
    if not has_an_end(stored) or has_zeros(stored, tables):
        return Whole.NO
    claims = plain_jpeg(stored, components=(1, 3, 4))
    if claims is None:
        return Whole.UNSURE if restart_gaps(stored) == 0 else Whole.NO
    return _judge_extended(stored, tables, claims)


def decode_plain(
    stored: bytes, tables: bytes | None, size: tuple[int, int], *, is_ycbcr: bool
) -> tuple[Pixels | None, Whole]:
    """The pixels (h, w, 3) of a baseline stream of `size` (width, height) that is whole; else None, and why."""
    if has_zeros(stored, tables):
        return None, Whole.NO
    claims = plain_jpeg(stored)
    if claims is None or (claims.width, claims.height) != size or claims.height % claims.mcu_height:
        return None, Whole.UNSURE
    if not has_an_end(stored) or claims.height + _EXTRA_ROWS > _MAX_SIDE:
        return None, Whole.UNSURE
    # The file's word on its colours stands, not the stream's: Aperio's streams do not say that they hold RGB.
    colours = "YCBCR" if is_ycbcr else "RGB"
    at_once = claims.mcu_height == _BLOCK_PX  # else extra rows would change the last row, where chroma is halved
    try:
        rows = _extended(stored, claims) if at_once else stored
        pixels = imagecodecs.jpeg8_decode(rows, tables=tables, colorspace=colours, outcolorspace="RGB")
    except Exception:  # the codec's own errors
        return None, Whole.UNSURE
    expected = claims.height + (_EXTRA_ROWS if at_once else 0), claims.width, 3
    if pixels.shape != expected or pixels.dtype != np.uint8:
        return None, Whole.UNSURE
    verdict = _verdict(pixels, claims) if at_once else _judge_extended(stored, tables, claims)
    if at_once and verdict is Whole.NO:
        verdict = _judge_extended(stored, tables, claims)
    return (np.asarray(pixels[: claims.height]), verdict) if verdict is Whole.YES else (None, verdict)


def has_an_end(stored: bytes) -> bool:
    """Whether the stream ends with its end marker; zeros behind it are padding."""
    return stored.endswith(END_OF_IMAGE) or stored.rstrip(b"\0").endswith(END_OF_IMAGE)


def has_zeros(stored: bytes, tables: bytes | None = None) -> bool:
    """Whether zeros lie where picture data belongs, in a stream in which they mean nothing."""
    scan = jpeg_scan(stored)
    if scan is None:
        return False
    end = stored.rfind(END_OF_IMAGE)
    if _ZEROS.search(stored, scan, end if end > 0 else len(stored)) is None:
        return False
    symbols = huffman_symbols((tables or b"") + stored)
    return any(said[:1] != b"\0" for said in symbols)  # all zero: the shortest codes are "no change" and "end of block"


def _judge_extended(stored: bytes, tables: bytes | None, claims: PlainJpeg) -> Whole:
    if claims.height + _EXTRA_ROWS > _MAX_SIDE:
        return Whole.UNSURE
    for probe in (b"", *_PROBES):
        end = stored.rfind(END_OF_IMAGE)
        longer = b"".join((stored[:end], probe, stored[end:]))
        try:
            grey = imagecodecs.jpeg8_decode(_extended(longer, claims), tables=tables, outcolorspace="GRAYSCALE")
        except Exception:  # the codec's own errors, or colours that have no brightness of their own
            return Whole.UNSURE
        if bool((grey[-_EXTRA_ROWS:][_JUDGED] != _GREY).any()):
            return _verdict(grey, claims) if not probe else Whole.YES
    only_grey = all(said == b"\0" for said in huffman_symbols((tables or b"") + stored))  # it can say nothing else
    return Whole.YES if only_grey else Whole.NO


def _extended(stored: bytes, claims: PlainJpeg) -> bytes:
    """The stream with more rows than it has: 16 beyond its last row of blocks."""
    rows = -(-claims.height // claims.mcu_height) * claims.mcu_height + _EXTRA_ROWS
    at = claims.height_at
    return b"".join((stored[:at], rows.to_bytes(2, "big"), stored[at + 2 :]))


def _verdict(pixels: Pixels, claims: PlainJpeg) -> Whole:
    extra = pixels[-_EXTRA_ROWS:]
    if bool((extra[_JUDGED] == _GREY).all()):
        return Whole.NO
    behind = extra[:_BLOCK_PX, 4 * claims.mcu_width :]  # far enough from what the last bits still made
    return Whole.YES if bool((behind == _GREY).all()) else Whole.NO
