"""`Slide`: the right pixels from the right plane, white outside, missing ones marked, no silent upsampling."""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import tifffile
from PIL import Image

from marble.errors import SlideError
from marble.slides import slide as slide_module
from marble.slides.slide import Box, Slide

from .conftest import Mask, Pixels, box_mean, drop_tiles, spoil_tiles, write_tiff

Noise = Callable[..., Pixels]


def _write_ome(path: Path, planes: list[Pixels], mpp: float = 0.5, compression: str = "zlib") -> Path:
    with tifffile.TiffWriter(path, ome=True) as tiff:
        options: dict[str, Any] = {"tile": (128, 128), "photometric": "rgb", "compression": compression}
        physical = {"PhysicalSizeX": mpp, "PhysicalSizeY": mpp, "PhysicalSizeXUnit": "µm", "PhysicalSizeYUnit": "µm"}
        tiff.write(planes[0], subifds=len(planes) - 1, metadata={"axes": "YXS", **physical}, **options)
        for plane in planes[1:]:
            tiff.write(plane, subfiletype=1, **options)
    return path


def _write_svs(path: Path, planes: list[Pixels], text: str) -> Path:
    height, width = planes[0].shape[:2]
    with tifffile.TiffWriter(path) as tiff:
        for i, plane in enumerate(planes):
            description = f"Aperio Image Library v12\n{width}x{height} (256x256) {text if i == 0 else ''}"
            tiff.write(
                plane, tile=(256, 256), photometric="rgb", compression="zlib", description=description, metadata=None
            )
            if i == 0:
                tiff.write(plane[:64, :64], photometric="rgb", description="Aperio thumbnail", metadata=None)
    return path


def _tile_mask(width: int, height: int, side: int, indices: list[int]) -> Mask:
    columns = -(-width // side)
    mask = np.zeros((height, width), bool)
    for index in indices:
        row, column = divmod(index, columns)
        mask[row * side : (row + 1) * side, column * side : (column + 1) * side] = True
    return mask


class TestPixels:
    def test_level_0_is_exact(self, tmp_path: Path, noise: Noise) -> None:
        pixels = noise(1001, 703)
        with Slide.open(write_tiff(tmp_path / "a.tiff", [pixels])) as slide:
            assert slide.l0_size_px == (1001, 703)
            assert (slide.name, slide.vendor) == ("a", "generic-tiff")
            assert slide.mpp == pytest.approx(0.5)
            assert slide.mpp_origin == "tiff resolution tags"
            region = slide.read(Box(250, 133, 517, 401), (517, 401))
        np.testing.assert_array_equal(region.pixels, pixels[133:534, 250:767])
        assert region.missing is None

    def test_takes_the_coarsest_plane_that_is_fine_enough(self, tmp_path: Path, noise: Noise) -> None:
        # Three unrelated pictures, so that the pixels tell which plane they came from.
        planes = [noise(2048, 1024, 1), noise(512, 256, 2), noise(128, 64, 3)]
        with Slide.open(write_tiff(tmp_path / "a.tiff", planes)) as slide:
            assert slide.native_mpps == pytest.approx((0.5, 2.0, 8.0))
            for zoom, plane, factor in ((1, 0, 1), (2, 0, 2), (4, 1, 1), (8, 1, 2), (12, 1, 3), (16, 2, 1), (32, 2, 2)):
                assert slide.plane_for(zoom) == (plane, 4**plane)
                side = 768
                read = slide.read(Box(0, 0, side, side), (side // zoom, side // zoom)).pixels
                own = side // zoom * factor
                expected = box_mean(planes[plane][:own, :own], factor)
                assert np.abs(read.astype(int) - expected).max() <= 1, zoom  # rounding of halves

    def test_planes_of_odd_sizes_are_whole_divisions(self, tmp_path: Path, noise: Noise) -> None:
        pixels = noise(2051, 1023)
        planes = [pixels, box_mean(pixels, 4), box_mean(pixels, 16)]
        with Slide.open(write_tiff(tmp_path / "a.tiff", planes)) as slide:
            assert slide.native_mpps == pytest.approx((0.5, 2.0, 8.0))
            read = slide.read(Box(0, 0, 1024, 512), (256, 128)).pixels
        np.testing.assert_array_equal(read, planes[1][:128, :256])

    def test_a_plane_of_an_odd_scale_is_not_bent_to_a_whole_one(self, tmp_path: Path, noise: Noise) -> None:
        planes = [noise(3000, 1500), noise(1200, 600)]
        with Slide.open(write_tiff(tmp_path / "a.tiff", planes)) as slide:
            assert slide.native_mpps == pytest.approx((0.5, 1.25))

    def test_outside_is_white(self, tmp_path: Path, noise: Noise) -> None:
        pixels = noise(300, 200)
        with Slide.open(write_tiff(tmp_path / "a.tiff", [pixels])) as slide:
            region = slide.read(Box(-10, 150, 400, 100), (400, 100))
            far = slide.read(Box(5000, 5000, 64, 64), (64, 64))
        expected = np.full((100, 400, 3), 255, np.uint8)
        expected[:50, 10:310] = pixels[150:]
        np.testing.assert_array_equal(region.pixels, expected)
        assert region.missing is None
        np.testing.assert_array_equal(far.pixels, np.full((64, 64, 3), 255, np.uint8))
        assert far.missing is None

    def test_upsampling_only_when_allowed(self, tmp_path: Path, noise: Noise) -> None:
        with Slide.open(write_tiff(tmp_path / "a.tiff", [noise(300, 300)])) as slide:
            with pytest.raises(
                SlideError, match=r"a\.tiff: finer than the scan: 256 x 256 pixels of a box of 200 x 200"
            ):
                slide.read(Box(0, 0, 200, 200), (256, 256))
            assert slide.read(Box(0, 0, 200, 200), (256, 256), allow_upsample=True).pixels.shape == (256, 256, 3)

    def test_block_by_block_is_the_same(self, tmp_path: Path, noise: Noise, monkeypatch: pytest.MonkeyPatch) -> None:
        smooth = cv2.GaussianBlur(noise(1200, 900), (0, 0), 5)
        path = write_tiff(tmp_path / "a.tiff", [np.asarray(smooth, np.uint8)])
        with Slide.open(path) as slide:
            boxes = [
                (Box(0, 0, 1200, 900), (1200, 900)),
                (Box(-50, 30, 1300, 1000), (130, 100)),
                (Box(3, 7, 1111, 777), (97, 71)),
            ]
            whole = [slide.read(*box) for box in boxes]
            monkeypatch.setattr(slide_module, "_BLOCK_PX", 256)
            parts = [slide.read(*box) for box in boxes]
        np.testing.assert_array_equal(whole[0].pixels, parts[0].pixels)
        for one, other in zip(whole, parts, strict=True):
            assert np.abs(one.pixels.astype(int) - other.pixels).mean() < 2
            assert one.missing is other.missing is None
        for region in (whole[1], parts[1]):  # 5 columns and 13 rows of it lie outside; where they begin may be blended
            for outside in (np.s_[:, :4], np.s_[:, 126:], np.s_[88:, :]):
                assert region.pixels[outside].min() == 255
            assert region.pixels[:86, 6:124].max() < 255

    def test_thumbnail(self, tmp_path: Path, noise: Noise) -> None:
        pixels = noise(800, 400)
        with Slide.open(write_tiff(tmp_path / "a.tiff", [pixels])) as slide:
            assert np.abs(slide.thumbnail(200).astype(int) - box_mean(pixels, 4)).max() <= 1
            np.testing.assert_array_equal(slide.thumbnail(5000), pixels)

    def test_limits(self, tmp_path: Path, noise: Noise, monkeypatch: pytest.MonkeyPatch) -> None:
        with Slide.open(write_tiff(tmp_path / "a.tiff", [noise(600, 600)])) as slide:
            with pytest.raises(SlideError, match="not possible"):
                slide.read(Box(0, 0, 100_000, 100_000), (100_000, 100_000))
            with pytest.raises(SlideError, match="not possible"):
                slide.read(Box(0, 0, 0, 10), (1, 1))
            monkeypatch.setattr(slide_module, "MAX_SOURCE_PX", 300_000)
            with pytest.raises(SlideError, match=r"a\.tiff: 0\.0 gigapixels .* no smaller copy of itself.*vips"):
                slide.thumbnail(100)


class TestFormats:
    def test_ome_sub_directories(self, tmp_path: Path, noise: Noise) -> None:
        planes = [noise(1000, 700, 1), noise(500, 350, 2), noise(250, 175, 3)]
        with Slide.open(_write_ome(tmp_path / "a.ome.tif", planes, mpp=0.2527)) as slide:
            assert (slide.vendor, slide.mpp_origin) == ("ome-tiff", "OME PhysicalSizeX")
            assert slide.native_mpps == pytest.approx((0.2527, 0.5054, 1.0108))
            np.testing.assert_array_equal(
                slide.read(Box(33, 44, 777, 555), (777, 555)).pixels, planes[0][44:599, 33:810]
            )
            np.testing.assert_array_equal(slide.read(Box(0, 0, 1000, 700), (500, 350)).pixels, planes[1])
            np.testing.assert_array_equal(
                slide.read(Box(400, 400, 400, 200), (100, 50)).pixels, planes[2][100:150, 100:200]
            )

    def test_the_pixel_size_is_that_of_the_slide_not_of_its_macro_picture(self, tmp_path: Path, noise: Noise) -> None:
        path, planes = tmp_path / "a.ome.tif", [noise(512, 512, 1), noise(256, 256, 2)]
        with tifffile.TiffWriter(path, ome=True) as tiff:
            about = {"axes": "YXS", "PhysicalSizeX": 0.25, "PhysicalSizeY": 0.25}
            tiff.write(planes[0], tile=(128, 128), photometric="rgb", subifds=1, metadata=about)
            tiff.write(planes[1], tile=(128, 128), photometric="rgb", subfiletype=1)
            macro = {"axes": "YXS", "PhysicalSizeX": 16.0, "PhysicalSizeY": 16.0}
            tiff.write(noise(64, 32, 3), photometric="rgb", metadata=macro)
        with Slide.open(path) as slide:
            assert (slide.l0_size_px, slide.mpp, slide.mpp_origin) == ((512, 512), 0.25, "OME PhysicalSizeX")

    def test_aperio(self, tmp_path: Path, noise: Noise) -> None:
        planes = [noise(1024, 768, 1), noise(256, 192, 2)]
        path = _write_svs(tmp_path / "a.svs", planes, "|AppMag = 40|MPP = 0.2498")
        with Slide.open(path) as slide:
            assert (slide.vendor, slide.mpp, slide.mpp_origin) == ("aperio", 0.2498, "openslide.mpp-x")
            np.testing.assert_array_equal(slide.read(Box(0, 0, 1024, 768), (256, 192)).pixels, planes[1])

    def test_aperio_with_power_only_and_contradiction(self, tmp_path: Path, noise: Noise) -> None:
        planes = [noise(512, 512)]
        with Slide.open(_write_svs(tmp_path / "a.svs", planes, "|AppMag = 20")) as slide:
            assert (slide.mpp, slide.mpp_origin) == (0.5, "objective power 20 (nominal)")
        path = _write_svs(tmp_path / "b.svs", planes, "|AppMag = 40|MPP = 1.0")
        with pytest.raises(SlideError, match=r"b\.svs: pixel size 1 um .* contradicts its objective power 40"):
            Slide.open(path)
        with Slide.open(path, mpp=0.25) as slide:
            assert (slide.mpp, slide.mpp_origin) == (0.25, "given by the user")

    @pytest.mark.parametrize("mpp", ["0", "-0.25", "nan", "1e9"])
    def test_aperio_with_an_absurd_pixel_size(self, tmp_path: Path, noise: Noise, mpp: str) -> None:
        path = _write_svs(tmp_path / "a.svs", [noise(512, 512)], f"|MPP = {mpp}")
        with pytest.raises(SlideError, match=r"a\.svs: (pixel size|no pixel size)"):
            Slide.open(path)

    def test_pixels_that_are_not_square(self, tmp_path: Path, noise: Noise) -> None:
        path = write_tiff(tmp_path / "a.tiff", [noise(300, 300)], mpp=(0.5, 0.6))
        with pytest.raises(SlideError, match="not square"):
            Slide.open(path)

    @pytest.mark.parametrize("name", ["a.png", "a.bmp"])
    def test_plain_pictures_need_a_pixel_size(self, tmp_path: Path, noise: Noise, name: str) -> None:
        pixels = noise(300, 200)
        Image.fromarray(pixels).save(tmp_path / name)
        with pytest.raises(SlideError, match=rf"{name}: no pixel size.*--mpp-csv"):
            Slide.open(tmp_path / name)
        with Slide.open(tmp_path / name, mpp=1.0) as slide:
            np.testing.assert_array_equal(slide.read(Box(10, 20, 50, 60), (50, 60)).pixels, pixels[20:80, 10:60])

    def test_transparent_picture_is_laid_on_white(self, tmp_path: Path) -> None:
        Image.new("RGBA", (40, 30), (0, 0, 0, 0)).save(tmp_path / "a.png")
        with Slide.open(tmp_path / "a.png", mpp=1.0) as slide:
            assert slide.thumbnail(100).min() == 255

    def test_plain_striped_tiff(self, tmp_path: Path, noise: Noise) -> None:
        pixels = noise(301, 203)
        tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb", rowsperstrip=16, metadata=None)
        with Slide.open(tmp_path / "a.tif", mpp=0.5) as slide:
            np.testing.assert_array_equal(slide.read(Box(7, 9, 200, 150), (200, 150)).pixels, pixels[9:159, 7:207])
        with pytest.raises(SlideError, match="no pixel size"):
            Slide.open(tmp_path / "a.tif")

    @pytest.mark.parametrize("pixels", [np.zeros((300, 300), np.uint16), np.zeros((300, 300, 3), np.uint16)])
    def test_other_pixels_are_refused(self, tmp_path: Path, pixels: npt.NDArray[Any]) -> None:
        tifffile.imwrite(tmp_path / "a.tif", pixels, metadata=None)
        with pytest.raises(SlideError, match="8-bit RGB"):
            Slide.open(tmp_path / "a.tif", mpp=0.5)

    @pytest.mark.parametrize(("kind", "expected"), [("unassalpha", 178), ("assocalpha", 229), ("unspecified", 100)])
    def test_transparent_tiff_is_laid_on_white(self, tmp_path: Path, kind: Any, expected: int) -> None:
        pixels = np.full((40, 30, 4), 100, np.uint8)  # 100 * 126 / 255 + 129 = 178.4; 100 + 129 = 229
        pixels[..., 3] = 126
        pixels[0, :, :3], pixels[0, :, 3] = 0, 0
        tifffile.imwrite(
            tmp_path / "a.tif", pixels, photometric="rgb", extrasamples=[kind], rowsperstrip=16, metadata=None
        )
        with Slide.open(tmp_path / "a.tif", mpp=1.0) as slide:
            found = slide.thumbnail(100)
        assert found[1:].min() == found[1:].max() == expected
        assert found[0].min() == (0 if kind == "unspecified" else 255)

    @pytest.mark.parametrize(("photometric", "channels"), [("separated", 4), ("cielab", 3), ("ycbcr", 3)])
    def test_other_colours_are_not_shown_as_rgb(self, tmp_path: Path, photometric: Any, channels: int) -> None:
        pixels = np.full((64, 64, channels), 90, np.uint8)
        tifffile.imwrite(tmp_path / "a.tif", pixels, photometric=photometric, rowsperstrip=16, metadata=None)
        with pytest.raises(SlideError, match=f"its colours are stored as {photometric.upper()}, not as RGB"):
            Slide.open(tmp_path / "a.tif", mpp=0.5)

    @pytest.mark.parametrize("content", [b"", b"not a slide at all", bytes(4096)])
    def test_no_slide(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "a.svs").write_bytes(content)
        with pytest.raises(SlideError, match=r"a\.svs"):
            Slide.open(tmp_path / "a.svs", mpp=0.5)

    def test_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "link.svs").symlink_to(tmp_path / "absent.svs")
        said = {
            "": "a folder, not a slide",
            "absent.svs": "no such file",
            "link.svs": "a link to a file that is not there",
        }
        for name, why in said.items():
            with pytest.raises(SlideError, match=why):
                Slide.open(tmp_path / name)

    def test_truncated_picture(self, tmp_path: Path, noise: Noise) -> None:
        Image.fromarray(noise(300, 300)).save(tmp_path / "a.png")
        (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:20_000])
        with pytest.raises(SlideError, match=r"a\.png: cannot be decoded"):
            Slide.open(tmp_path / "a.png", mpp=1.0)


class TestMissing:
    @pytest.mark.parametrize("missing", [[], [3], [0, 5, 11], list(range(12))[1:]])
    @pytest.mark.parametrize("kind", ["generic", "ome"])
    def test_tiles_without_bytes(self, tmp_path: Path, noise: Noise, kind: str, missing: list[int]) -> None:
        pixels = np.maximum(noise(480, 360), 1)
        if kind == "generic":
            path = write_tiff(tmp_path / "a.tiff", [pixels], tile=(128, 128))
        else:
            path = _write_ome(tmp_path / "a.ome.tif", [pixels, box_mean(pixels, 2)])
        drop_tiles(path, missing)
        expected = _tile_mask(480, 360, 128, missing)
        with Slide.open(path) as slide:
            region = slide.read(Box(0, 0, 480, 360), (480, 360))
        found = np.zeros((360, 480), bool) if region.missing is None else region.missing
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(region.pixels, np.where(expected[..., None], 255, pixels))

    @pytest.mark.parametrize("bad", [[0], [7], [1, 2, 6], list(range(12))])
    @pytest.mark.parametrize("kind", ["generic", "ome"])
    def test_tiles_that_cannot_be_decoded(self, tmp_path: Path, noise: Noise, kind: str, bad: list[int]) -> None:
        pixels = noise(480, 360)
        if kind == "generic":
            path = write_tiff(tmp_path / "a.tiff", [pixels], tile=(128, 128))
        else:
            path = _write_ome(tmp_path / "a.ome.tif", [pixels, box_mean(pixels, 2)])
        spoil_tiles(path, bad)
        expected = _tile_mask(480, 360, 128, bad)
        with Slide.open(path) as slide:
            for box in (Box(0, 0, 480, 360), Box(100, 90, 300, 200), Box(0, 0, 480, 360)):
                region = slide.read(box, box[2:])
                part = np.s_[box.y : box.y + box.height, box.x : box.x + box.width]
                found = np.zeros_like(expected[part]) if region.missing is None else region.missing
                np.testing.assert_array_equal(found, expected[part])
                np.testing.assert_array_equal(region.pixels, np.where(expected[part][..., None], 255, pixels[part]))

    def test_many_threads_and_a_bad_tile(self, tmp_path: Path, noise: Noise) -> None:
        pixels = noise(640, 640)
        path = write_tiff(tmp_path / "a.tiff", [pixels], tile=(128, 128))
        spoil_tiles(path, [12])
        boxes = [Box(x, y, 128, 128) for y in range(0, 640, 64) for x in range(0, 512, 64)]
        with Slide.open(path) as slide, ThreadPoolExecutor(8) as pool:
            regions = list(pool.map(lambda box: slide.read(box, (128, 128)), boxes))
        expected = _tile_mask(640, 640, 128, [12])
        for box, region in zip(boxes, regions, strict=True):
            clipped = expected[box.y : box.y + 128, box.x : box.x + 128]
            assert (0 if region.missing is None else region.missing.sum()) == clipped.sum()

    def test_a_shrunk_pixel_is_missing_if_any_of_its_own_is(self, tmp_path: Path, noise: Noise) -> None:
        path = write_tiff(tmp_path / "a.tiff", [noise(512, 512)], tile=(128, 128))
        drop_tiles(path, [5])
        with Slide.open(path) as slide:
            region = slide.read(Box(0, 0, 500, 500), (50, 50))
        assert region.missing is not None
        expected = np.zeros((50, 50), bool)
        expected[12:26, 12:26] = True  # 128..255 in pixels of 10
        np.testing.assert_array_equal(region.missing, expected)

    @pytest.mark.parametrize("kind", ["generic", "ome"])
    def test_a_tile_that_claims_to_be_huge(self, tmp_path: Path, noise: Noise, kind: str) -> None:
        """A JPEG of 128 x 128 that says 65,000 x 65,000: marked missing, and nothing of that size is allocated."""
        pixels = noise(256, 256)
        if kind == "generic":
            path = write_tiff(tmp_path / "a.tiff", [pixels], tile=(128, 128), compression="jpeg")
        else:
            path = _write_ome(tmp_path / "a.ome.tif", [pixels, box_mean(pixels, 2)], compression="jpeg")
        content = bytearray(path.read_bytes())
        with tifffile.TiffFile(path) as tiff:
            place = content.index(b"\xff\xc0", tiff.pages[0].dataoffsets[0])
        assert content[place + 5 : place + 9] == b"\0\x80\0\x80"
        content[place + 5 : place + 9] = b"\xfd\xe8\xfd\xe8"
        path.write_bytes(content)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with Slide.open(path) as slide:
            region = slide.read(Box(0, 0, 256, 256), (256, 256))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB
        assert region.missing is not None
        np.testing.assert_array_equal(region.missing, _tile_mask(256, 256, 128, [0]))

    def test_gives_up_on_a_slide_of_ruins(self, tmp_path: Path, noise: Noise, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("marble.slides.readers.openslide.MAX_UNDECODABLE_TILES", 3)
        path = write_tiff(tmp_path / "a.tiff", [noise(512, 512)], tile=(128, 128))
        spoil_tiles(path, list(range(16)))
        with Slide.open(path) as slide, pytest.raises(SlideError, match="more than 3 tiles cannot be decoded"):
            slide.read(Box(0, 0, 512, 512), (512, 512))


def test_any_damage_ends_in_pixels_or_a_named_refusal(tmp_path: Path, noise: Noise) -> None:
    smooth = np.asarray(cv2.GaussianBlur(noise(600, 500), (0, 0), 3), np.uint8)
    good = write_tiff(tmp_path / "good.tiff", [smooth, box_mean(smooth, 4)], compression="jpeg").read_bytes()
    rng = np.random.default_rng(5)
    outcomes = set()
    for i in range(60):
        content = bytearray(good)
        if i % 3 == 0:
            content = content[: rng.integers(len(good))]
        else:
            span = 600 if i % 3 == 1 else len(good)
            for place in rng.integers(0, span, 4):
                content[place] = rng.integers(256)
        path = tmp_path / f"bad-{i}.tiff"
        path.write_bytes(content)
        refusal = _refusal(path)
        outcomes.add(refusal is None)
        assert refusal is None or path.name in refusal
    assert outcomes == {True, False}


def _refusal(path: Path) -> str | None:
    try:
        with Slide.open(path, mpp=0.5) as slide:
            slide.thumbnail(100)
    except SlideError as error:
        return str(error)
    return None
