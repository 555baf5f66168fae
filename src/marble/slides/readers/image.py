"""Plain pictures (PNG, JPEG, BMP): one plane, held in memory, with a limit on its size."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from marble.errors import SlideError
from marble.slides.mpp import PixelSizeClues
from marble.slides.readers.jpeg import Whole, judge
from marble.slides.readers.planes import WHITE, Mask, Pixels
from marble.slides.readers.png import png_is_whole
from marble.slides.readers.preflight import TiffClaims

MAX_IMAGE_PX = 1 << 26
_FORMATS = ("PNG", "JPEG", "BMP")  # a short list: some of the library's other formats start programs
_MODES = ("L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")


class ImagePlanes:
    """A decoded picture. Its dots per inch are about printing, so the pixel size must be given."""

    def __init__(self, path: Path) -> None:
        self.vendor = "image"
        self.clues = PixelSizeClues()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit follows
                image = Image.open(path, formats=_FORMATS)
        except UnidentifiedImageError:
            raise SlideError(
                "neither a slide nor a picture that can be read",
                where=path,
                hint="Slides: what OpenSlide reads, OME-TIFF, DICOM; pictures: PNG, JPEG, BMP, TIFF",
            ) from None
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise SlideError(f"cannot be read: {error}", where=path) from None
        with image:
            if image.width * image.height > MAX_IMAGE_PX:
                raise SlideError(
                    f"a plain picture of {image.width:,} x {image.height:,} pixels",
                    where=path,
                    hint="Convert it to a pyramid, for example `vips tiffsave --tile --pyramid`",
                )
            if image.mode not in _MODES:
                raise SlideError(f"pixels of kind '{image.mode}', not 8-bit colour or grey", where=path)
            _require_whole(path, image.format)
            try:
                self._pixels = _on_white(image)  # (h, w, 3)
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                raise SlideError(f"cannot be decoded: {error}", where=path, hint="Copy or export it again") from None
        self.sizes: tuple[tuple[int, int], ...] = ((self._pixels.shape[1], self._pixels.shape[0]),)

    def read(self, plane: int, x: int, y: int, width: int, height: int) -> tuple[Pixels, Mask | None]:
        return self._pixels[y : y + height, x : x + width].copy(), None

    def close(self) -> None:
        self._pixels = np.empty((0, 0, 3), np.uint8)


def _require_whole(path: Path, kind: str | None) -> None:
    """Refuse a picture that lacks data; the library would make up the rest."""
    judges = {"JPEG": lambda: judge(path.read_bytes()) is not Whole.NO, "PNG": lambda: png_is_whole(path)}
    whole = judges[kind]() if kind in judges else True
    if not whole:
        raise SlideError(
            "cannot be decoded: it is truncated or damaged and lacks picture data",
            where=path,
            hint="Copy or export it again",
        )


def _on_white(image: Image.Image) -> Pixels:
    if image.has_transparency_data:
        canvas = Image.new("RGBA", image.size, (WHITE, WHITE, WHITE, WHITE))
        canvas.alpha_composite(image.convert("RGBA"))
        image = canvas
    return np.asarray(image.convert("RGB"))


def open_image(path: Path, claims: TiffClaims | None) -> ImagePlanes:
    """The last to be asked: what is not a picture either, is refused."""
    del claims
    return ImagePlanes(path)
