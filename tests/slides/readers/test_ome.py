"""OME-TIFF as tifffile writes it: the pixel size is the file's whoever reads it; one of many pictures is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from marble.errors import SlideError
from marble.slides.readers.ome import Ome
from marble.slides.slide import Slide
from marble.synthetic.slides import write_slide
from tests.cli.commands import marble

SIZES = {"PhysicalSizeX": 0.25, "PhysicalSizeY": 0.25}
RGB: dict[str, Any] = {"photometric": "rgb"}


def _pixels(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def _write(path: Path, axes: str, shape: tuple[int, ...], *, pyramid: bool = False, **options: Any) -> Path:
    """Tiled; without sub-directories OpenSlide takes it for a TIFF of its own."""
    pixels, about = _pixels(*shape), {"axes": axes, **options.pop("about", SIZES)}
    with tifffile.TiffWriter(path, ome=True) as tiff:
        tiff.write(pixels, tile=(128, 128), subifds=int(pyramid), metadata=about, **options)
        if pyramid:
            tiff.write(pixels[..., ::2, ::2, :], tile=(128, 128), subfiletype=1, **RGB)
    return path


@pytest.mark.parametrize("pyramid", [False, True])
@pytest.mark.parametrize(
    ("axes", "shape", "colours", "says"),
    [
        ("ZYXS", (5, 512, 512, 3), "rgb", r"holds 5 focal planes \(SizeZ\), not one picture.*bfconvert -z 0"),
        ("TYXS", (3, 512, 512, 3), "rgb", r"holds 3 points in time \(SizeT\), not one.*bfconvert -timepoint 0"),
        ("CYXS", (2, 512, 512, 3), "rgb", r"holds 2 channels \(SizeC\), not one picture in RGB"),
        ("CYX", (4, 512, 512), "minisblack", r"holds 4 channels \(SizeC\), not one picture in RGB"),
    ],
)
def test_a_stack_is_refused_by_name(
    tmp_path: Path, axes: str, shape: tuple[int, ...], colours: str, says: str, pyramid: bool
) -> None:
    path = _write(tmp_path / "a.ome.tif", axes, shape, pyramid=pyramid and colours == "rgb", photometric=colours)
    with pytest.raises(SlideError, match=says):
        Slide.open(path)
    with pytest.raises(SlideError, match=says):  # a size does not tell which picture is meant
        Slide.open(path, mpp=0.25)


def test_a_stack_without_xml_is_refused_too(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        for _ in range(3):
            tiff.write(_pixels(512, 512, 3), tile=(128, 128), metadata=None, **RGB)
    with pytest.raises(SlideError, match=r"holds 3 pictures of 512 x 512 pixels, not one.*tiffcp"):
        Slide.open(tmp_path / "a.tif", mpp=0.5)
    tifffile.imwrite(tmp_path / "b.tif", _pixels(4, 64, 64, 3), imagej=True, **RGB)
    with pytest.raises(SlideError, match="holds 4 pictures of 64 x 64 pixels"):
        Slide.open(tmp_path / "b.tif", mpp=0.5)


def test_a_file_with_the_tag_of_ndpi_that_openslide_does_not_know_is_read(tmp_path: Path) -> None:
    """Its directories are not walked, so there are none to compare."""
    tags: dict[str, Any] = {"extratags": [(65420, 4, 1, 1, True)], "byteorder": ">"}
    tifffile.imwrite(tmp_path / "a.tif", _pixels(512, 512, 3), tile=(128, 128), metadata=None, **RGB, **tags)
    with Slide.open(tmp_path / "a.tif", mpp=0.5) as slide:
        assert slide.vendor == "tiff"


def test_a_stack_costs_only_itself(tmp_path: Path) -> None:
    write_slide(tmp_path / "good.tiff", (1536, 1280), mpp=0.5, seed=1)
    _write(tmp_path / "stack.ome.tif", "ZYXS", (3, 512, 512, 3), **RGB)
    words = ("--store", tmp_path / "bags", "--encoder", "colour", "--magnifications", "5,20")
    done = marble("extract", tmp_path / "good.tiff", tmp_path / "stack.ome.tif", *words)
    assert done.code == 1
    assert done.err.count("failed: ") == 1, done.err
    assert "stack.ome.tif: holds 3 focal planes (SizeZ), not one picture" in done.err


@pytest.mark.parametrize("pyramid", [False, True])
def test_the_pixel_size_of_the_xml_counts_whoever_reads_the_file(tmp_path: Path, pyramid: bool) -> None:
    path = _write(tmp_path / "a.ome.tif", "YXS", (512, 512, 3), pyramid=pyramid, **RGB)
    with Slide.open(path) as slide:
        assert (slide.mpp, slide.mpp_origin) == (0.25, "OME PhysicalSizeX")
        assert slide.vendor == ("ome-tiff" if pyramid else "generic-tiff")


@pytest.mark.parametrize("pyramid", [False, True])
def test_xml_and_tags_that_contradict_each_other_are_refused(tmp_path: Path, pyramid: bool) -> None:
    def write(name: str, pixels_per_cm: float) -> Path:
        tags: dict[str, Any] = {"resolution": (pixels_per_cm,) * 2, "resolutionunit": "CENTIMETER"}
        return _write(tmp_path / name, "YXS", (512, 512, 3), pyramid=pyramid, **RGB, **tags)

    said = r"b\.ome\.tif: pixel size 0\.25 um \(OME PhysicalSizeX\) contradicts 0\.5 um \(tiff resolution tags\)"
    with pytest.raises(SlideError, match=said):
        Slide.open(write("b.ome.tif", 2e4))
    for name, agreeing in (("c.ome.tif", 4e4), ("print.ome.tif", 10)):  # the second as vips writes by default
        with Slide.open(write(name, agreeing)) as slide:
            assert slide.mpp == 0.25
    with Slide.open(tmp_path / "b.ome.tif", mpp=0.3) as slide:
        assert slide.mpp == 0.3


@pytest.mark.parametrize(
    ("attributes", "mpp"),
    [
        ('PhysicalSizeX="0.25" PhysicalSizeY="0.25"', 0.25),
        ("PhysicalSizeX='250' PhysicalSizeXUnit='nm' PhysicalSizeY='250' PhysicalSizeYUnit='nm'", 0.25),
        ('PhysicalSizeX = "0.25" PhysicalSizeXUnit="&#181;m" PhysicalSizeY="0.25" PhysicalSizeYUnit="&#xB5;m"', 0.25),
        ('PhysicalSizeXUnit="mm" PhysicalSizeX="0.00025" PhysicalSizeYUnit="mm" PhysicalSizeY="0.00025"', 0.25),
        ('PhysicalSizeX="0.25"', 0.25),
    ],
)
def test_units_are_read_as_they_are_written(attributes: str, mpp: float) -> None:
    ome = Ome.of(f'<OME><Image ID="Image:0"><Pixels ID="Pixels:0" SizeX="9" SizeY="9" {attributes}></Pixels></Image>')
    assert ome is not None
    ((_, x, y),) = ome.pixel_size()
    assert float(x) == float(y) == pytest.approx(mpp)


def test_a_unit_that_is_not_known_is_no_size() -> None:
    ome = Ome.of('<Pixels PhysicalSizeX="1" PhysicalSizeXUnit="pixel" PhysicalSizeY="1" PhysicalSizeYUnit="pixel"/>')
    assert ome is not None
    assert ome.pixel_size() == (("OME PhysicalSizeX", "nan", "nan"),)


def test_colours_that_are_not_said_to_be_samples_are_one_picture(tmp_path: Path) -> None:
    """As those write it who put the XML together by hand."""
    xml = '<OME><Image ID="Image:0"><Pixels SizeX="512" SizeY="512" SizeC="3" PhysicalSizeX="0.25"/></Image></OME>'
    tifffile.imwrite(tmp_path / "a.tif", _pixels(512, 512, 3), tile=(128, 128), description=xml, metadata=None, **RGB)
    with Slide.open(tmp_path / "a.tif") as slide:
        assert slide.mpp == 0.25


def test_without_a_size_the_objective_of_the_picture_tells(tmp_path: Path) -> None:
    xml = (
        '<OME><Instrument ID="I:0"><Objective ID="O:0" NominalMagnification="63"/>'
        '<Objective ID="O:1" NominalMagnification="20"/></Instrument>'
        '<Image ID="Image:0"><ObjectiveSettings ID="O:1"/>'
        '<Pixels SizeX="512" SizeY="512" SizeC="3" SizeZ="1" SizeT="1"><Channel SamplesPerPixel="3"/></Pixels></Image>'
        '<Image ID="Image:1"><ObjectiveSettings ID="O:0"/><Pixels SizeX="64" SizeY="64"/></Image></OME>'
    )
    pixels = _pixels(512, 512, 3)
    tifffile.imwrite(tmp_path / "a.tif", pixels, tile=(128, 128), description=xml, metadata=None, **RGB)
    with Slide.open(tmp_path / "a.tif") as slide:
        assert (slide.mpp, slide.mpp_origin) == (0.5, "objective power 20 (nominal)")


@pytest.mark.parametrize(
    ("other", "mpp", "scans"),
    [((512, 512), 0.25, 2), ((256, 512), 0.25, 2), ((256, 512), 4.0, 1), ((64, 64), 0.25, 1), ((1024, 512), 16.0, 2)],
)
def test_several_scans_in_one_file_are_refused(tmp_path: Path, other: tuple[int, int], mpp: float, scans: int) -> None:
    with tifffile.TiffWriter(tmp_path / "a.ome.tif", ome=True) as tiff:
        for k, (shape, size) in enumerate((((512, 512), 0.25), (other, mpp))):
            about = {"axes": "YXS", "PhysicalSizeX": size, "PhysicalSizeY": size}
            tiff.write(_pixels(*shape, 3), tile=(128, 128), metadata=about, subifds=int(k == 0), **RGB)
            if k == 0:
                tiff.write(_pixels(256, 256, 3), tile=(128, 128), subfiletype=1, **RGB)
    if scans == 1:
        Slide.open(tmp_path / "a.ome.tif").close()
        return
    with pytest.raises(SlideError, match=r"holds 2 scans \(OME images\), not one.*bfconvert -series 0"):
        Slide.open(tmp_path / "a.ome.tif")
