"""Slides that name their patient in every place their format has for it."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from marble.slides.slide import Box, Slide
from marble.synthetic.slides import write_slide

#: where a scanner or an archive leaves a name, each with a canary of its own
PLACES = (
    "description", "software", "artist", "host", "document", "xmp", "private tag", "label", "folder", "broken file",
    "aperio", "macro", "png text", "png chunk", "exif", "jpeg comment", "file behind a link",
)  # fmt: skip
DICOM_PLACES = ("dicom patient", "dicom id", "dicom accession")
TAGS = {"artist": 315, "host": 316, "document": 269, "private tag": 65001}
_SIZE = (512, 384)
_EXIF_ARTIST, _EXIF_DESCRIPTION = 0x013B, 0x010E
_LONG = (b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV")
_UNKNOWN_LENGTH = 0xFFFFFFFF
_END_OF_SEQUENCE = b"\xfe\xff\xdd\xe0\0\0\0\0"


def canary(place: str) -> str:
    return f"Kanarienvogel{(*PLACES, *DICOM_PLACES).index(place)}x"


def write_tiff(path: Path, seed: int) -> None:
    packet = f"<x:xmpmeta><dc:creator>{canary('xmp')}</dc:creator></x:xmpmeta>".encode()
    tags = [(code, 2, 0, canary(place), True) for place, code in TAGS.items()] + [(700, 1, len(packet), packet, True)]
    about = f"patient {canary('description')} barcode={canary('description')}"
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(
            _drawn(path, seed), tile=(256, 256), compression="zlib", photometric="rgb", metadata=None,
            description=about, resolution=(2e4, 2e4), resolutionunit="CENTIMETER",
            software=canary("software"), extratags=tags,
        )  # fmt: skip
        label = np.full((64, 64, 3), 7, np.uint8)
        tiff.write(label, photometric="rgb", metadata=None, description=f"label {canary('label')}", subfiletype=1)


def write_svs(path: Path, seed: int) -> None:
    """As Aperio's scanners write it: settings and names in one description, a macro picture with its own."""
    width, height = _SIZE
    about = (
        f"Aperio Image Library v12.0.15\n{width}x{height} [0,0 {width}x{height}] (256x256) JPEG/RGB Q=70|AppMag = 20|"
        f"MPP = 0.5|Patient = {canary('aperio')}|Title = {canary('aperio')}|User = {canary('aperio')}"
    )
    pixels = _drawn(path, seed)
    with tifffile.TiffWriter(path) as tiff:
        tiff.write(pixels, tile=(256, 256), compression="zlib", photometric="rgb", metadata=None, description=about)
        small = np.ascontiguousarray(pixels[::8, ::8])
        tiff.write(small, photometric="rgb", metadata=None, description=f"Aperio thumbnail\n{width}x{height}")
        macro = f"Aperio Image Library v12.0.15\nmacro 64x48|Patient = {canary('macro')}"
        tiff.write(small, photometric="rgb", metadata=None, description=macro, subfiletype=9)


def write_png(path: Path, seed: int) -> None:
    text = PngInfo()
    text.add_text("Patient", canary("png text"))
    text.add_itxt("Description", canary("png text"))
    Image.fromarray(_drawn(path, seed)).save(path, pnginfo=text)
    data, name = path.read_bytes(), b"paTi"  # a chunk of nobody's
    body = canary("png chunk").encode()
    chunk = struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    path.write_bytes(data[:-12] + chunk + data[-12:])


def write_jpeg(path: Path, seed: int) -> None:
    exif = Image.Exif()
    exif[_EXIF_ARTIST], exif[_EXIF_DESCRIPTION] = canary("exif"), canary("exif")
    Image.fromarray(_drawn(path, seed)).save(path, quality=95, exif=exif, comment=canary("jpeg comment"))


def name_dicom(data: bytes) -> bytes:
    """A DICOM file of somebody else's, with a patient put into it; offsets within a file begin at its pixels."""
    fields = [
        (8, 0x0050, b"SH", canary("dicom accession")[-16:]),
        (16, 0x0010, b"PN", canary("dicom patient")),
        (16, 0x0020, b"LO", canary("dicom id")),
    ]
    for group, element, kind, value in fields:
        body = value.encode() + b" " * (len(value) % 2)
        at = _place(data, (group, element))
        data = data[:at] + struct.pack("<HH2sH", group, element, kind, len(body)) + body + data[at:]
    return data


def _place(data: bytes, tag: tuple[int, int]) -> int:
    """Where an element of this tag belongs: before the first with a larger one."""
    at = 132  # the preamble and DICM
    while True:
        group, element, kind, short = struct.unpack_from("<HH2sH", data, at)
        if (group, element) >= tag:
            assert (group, element) != tag
            return at
        if kind in _LONG:
            (length,) = struct.unpack_from("<I", data, at + 8)
            unknown = length == _UNKNOWN_LENGTH
            at = data.index(_END_OF_SEQUENCE, at) + len(_END_OF_SEQUENCE) if unknown else at + 12 + length
        else:
            at += 8 + short


def _drawn(path: Path, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """(h, w, 3) a small slide's pixels."""
    beside = path.with_name(f"{path.name}.drawn.tiff")
    write_slide(beside, _SIZE, mpp=0.5, pieces=1, quality=None, seed=seed)
    with Slide.open(beside) as slide:
        pixels = slide.read(Box(0, 0, *_SIZE), _SIZE).pixels
    beside.unlink()
    return pixels
