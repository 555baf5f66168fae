"""The pixel size: where it comes from, and every way it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from marble.errors import SlideError, TableError
from marble.slides.mpp import PixelSizeClues, mpp_of, pixel_size, read_mpp_csv, tiff_resolution

SLIDE = Path("case-1.svs")


def test_order_of_trust() -> None:
    clues = PixelSizeClues((("openslide.mpp-x", "0.25", "0.252"), ("tiff resolution tags", "0.26", "0.26")), "40")
    size = pixel_size(clues, None, SLIDE)
    assert size.mpp == pytest.approx(0.251)
    assert size.origin == "openslide.mpp-x"
    assert pixel_size(PixelSizeClues(clues.fields[1:], "20"), None, SLIDE).origin == "tiff resolution tags"
    nominal = pixel_size(PixelSizeClues((), "20"), None, SLIDE)
    assert (nominal.mpp, nominal.origin) == (0.5, "objective power 20 (nominal)")
    given = pixel_size(clues, 0.3, SLIDE)
    assert (given.mpp, given.origin) == (0.3, "given by the user")


@pytest.mark.parametrize("value", ["0", "-0.25", "nan", "inf", "1e9", "0.01", "25", "", "abc"])
def test_absurd_values_are_refused_not_passed_over(value: str) -> None:
    clues = PixelSizeClues((("openslide.mpp-x", value, value), ("tiff resolution tags", "0.5", "0.5")), "20")
    with pytest.raises(SlideError, match=r"case-1\.svs: pixel size .* outside 0\.05 to 20.*--mpp-csv"):
        pixel_size(clues, None, SLIDE)


@pytest.mark.parametrize(
    ("clues", "reason"),
    [
        (PixelSizeClues(), "no pixel size"),
        (PixelSizeClues((("f", "0.5", "0.52"),)), "not square"),
        (PixelSizeClues((("f", "1.1", "1.1"),), "40"), "contradicts its objective power 40"),
        (PixelSizeClues((("f", "0.2", "0.2"),), "20"), "contradicts its objective power 20"),
        (PixelSizeClues((("f", "0.25", "0.25"), ("g", "0.5", "0.5"))), r"0.25 um \(f\) contradicts 0.5 um \(g\)"),
        (PixelSizeClues((), "0"), "objective's power is '0'"),
        (PixelSizeClues((), "-20"), "objective's power"),
        (PixelSizeClues((), "unknown"), "objective's power"),
        (PixelSizeClues((), "1000"), "outside"),
    ],
)
def test_refusals(clues: PixelSizeClues, reason: str) -> None:
    with pytest.raises(SlideError, match=reason):
        pixel_size(clues, None, SLIDE)
    assert pixel_size(clues, 0.5, SLIDE).mpp == 0.5  # given by the user overrides


def test_dots_per_inch_of_print_contradict_nothing() -> None:
    for tags in ("352.8", "0", "nan", "inf"):  # 72 dpi, and what is no length
        clues = PixelSizeClues((("f", "0.25", "0.25"), ("tiff resolution tags", tags, tags)))
        assert pixel_size(clues, None, SLIDE).mpp == 0.25


def test_limits_are_inside() -> None:
    assert pixel_size(PixelSizeClues((("f", "0.5", "0.509"),)), None, SLIDE).mpp == pytest.approx(0.5045)
    assert pixel_size(PixelSizeClues((("f", "0.5", "0.5"),), "40"), None, SLIDE).mpp == 0.5  # exactly 2x


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), 100.0])
def test_a_given_value_is_checked_too(value: float) -> None:
    with pytest.raises(SlideError, match="given by the user"):
        pixel_size(PixelSizeClues(), value, SLIDE)


def test_tiff_resolution() -> None:
    assert tiff_resolution("20000", "20000", "centimeter") == ("tiff resolution tags", "0.5", "0.5")
    inch = tiff_resolution("50800", "50800", "inch")
    assert inch is not None
    assert float(inch[1]) == pytest.approx(0.5)
    assert tiff_resolution("1", "1", "none") is None
    assert tiff_resolution(None, "1", "inch") is None
    zero = tiff_resolution("0", "0", "inch")
    assert zero is not None
    with pytest.raises(SlideError, match="inf um"):
        pixel_size(PixelSizeClues((zero,)), None, SLIDE)


def test_csv_matches_name_then_stem(tmp_path: Path) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text("\ufeffwsi,mpp,note\na.svs,0.25,x\na,0.5,y\n b ,1.0,\n", encoding="utf-8")
    sizes = read_mpp_csv(table)
    assert sizes == {"a.svs": 0.25, "a": 0.5, "b": 1.0}
    assert mpp_of("dir/a.svs", sizes) == 0.25
    assert mpp_of("dir/a.tiff", sizes) == 0.5
    assert mpp_of("dir/b.svs", sizes) == 1.0
    assert mpp_of("dir/c.svs", sizes) is None


@pytest.mark.parametrize("text", ["WSI;MPP\na.svs;0,25\nb;1\n", "sep=;\nwsi;mpp\na.svs;0,25\nb;1,0\n"])
def test_csv_with_semicolons_and_decimal_commas(tmp_path: Path, text: str) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text(text)
    assert read_mpp_csv(table) == {"a.svs": 0.25, "b": 1.0}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("wsi,size\na,1\n", "unknown column 'mpp'"),
        ("", "the file is empty"),
        ("wsi,mpp\na,\n", r"row 2, column 'mpp': mpp ''"),
        ("wsi,mpp\na,0.5\nb,nan\n", r"row 3, column 'mpp': mpp 'nan' of slide 'b'"),
        ("wsi,mpp\na,-1\n", "row 2"),
        ("wsi,mpp\na,50\n", "row 2"),
        ("wsi,mpp\na,0.5\na,0.5\n", r"row 3, column 'wsi': slide 'a' occurs twice"),
        ("wsi,mpp\n,0.5\n", r"row 2, column 'wsi': the slide's name is empty"),
    ],
)
def test_csv_faults_name_the_row(tmp_path: Path, text: str, reason: str) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text(text)
    with pytest.raises(TableError, match=reason):
        read_mpp_csv(table)


def test_csv_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no such file"):
        read_mpp_csv(tmp_path / "absent.csv")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableError, match="not whole UTF-16"):
        read_mpp_csv(tmp_path / "x.csv")
