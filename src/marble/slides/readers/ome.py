"""What OME-XML says of a TIFF's pictures: pixel size, objective, and whether there is one picture of the slide at all.

Searched as text on purpose: an XML parser can be made to expand entities without end.

Decision: of a stack (focal planes, points in time, channels) or of several scans in one file one picture would be read
and the others passed over, so such a file is refused. Nobody but its user knows which picture is meant.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from pathlib import Path

from marble.errors import SlideError
from marble.slides.mpp import Clue

MAX_TEXT = 1 << 20
_TAG = r"<(?:\w+:)?{}\b([^<>]*)>"
_IMAGE, _PIXELS, _CHANNEL, _OBJECTIVE, _USED = (
    re.compile(_TAG.format(name)) for name in ("Image", "Pixels", "Channel", "Objective", "ObjectiveSettings")
)
_ATTRIBUTE = re.compile(r"""([\w:]+)\s*=\s*(?:"([^"<>]{0,99})"|'([^'<>]{0,99})')""")
_UM_PER_UNIT = {"µm": 1.0, "μm": 1.0, "um": 1.0, "nm": 1e-3, "Å": 1e-4, "mm": 1e3, "cm": 1e4, "m": 1e6}
_SAME_SCAN = 1.5  # pixel sizes further apart are of a scan and its overview
_SCAN_SHARE = 0.1  # of the first picture's area: smaller ones are labels and overviews
_EXPORT = "Export it as 8-bit RGB"
#: what a stack is made of, and how one picture of it is taken out
_STACKS = (
    ("SizeZ", "focal planes", "-z"),
    ("SizeT", "points in time", "-timepoint"),
)


@dataclass(frozen=True)
class Ome:
    """The OME-XML of one file, as text."""

    text: str

    @classmethod
    def of(cls, description: str) -> Ome | None:
        """None for a description of another kind."""
        text = description[:MAX_TEXT]
        return cls(text) if _PIXELS.search(text) is not None else None

    def pixel_size(self) -> tuple[Clue, ...]:
        """Of the first picture; the others (label, macro) have sizes of their own."""
        first = self._pictures()[0]
        known = [axis for axis in "XY" if f"PhysicalSize{axis}" in first]
        if not known:
            return ()
        sizes = [_in_um(first[f"PhysicalSize{axis}"], first.get(f"PhysicalSize{axis}Unit", "µm")) for axis in known]
        return (("OME PhysicalSizeX", sizes[0], sizes[-1]),)

    def objective(self) -> str | None:
        """The nominal magnification of the objective that the first picture was taken with."""
        opening = _IMAGE.search(self.text)
        begins = 0 if opening is None else opening.start()
        ends = self.text.find("Image>", begins)
        used = _USED.search(self.text, begins, len(self.text) if ends < 0 else ends)
        wanted = None if used is None else _attributes(used[1]).get("ID")
        for found in _OBJECTIVE.finditer(self.text):
            objective = _attributes(found[1])
            if wanted is not None and objective.get("ID") == wanted:
                return objective.get("NominalMagnification")
        return None

    def require_one_picture(self, path: Path) -> None:
        """Refuse a stack, and a file of several scans, by name."""
        first, *others = self._pictures()
        for size, what, flag in _STACKS:
            if (count := _whole(first.get(size))) > 1:
                hint = f"Save the one you want as a file of its own, for example `bfconvert {flag} 0 IN OUT.ome.tiff`"
                raise SlideError(f"holds {count} {what} ({size}), not one picture", where=path, hint=hint)
        channel = _CHANNEL.search(self.text)
        samples = None if channel is None else _attributes(channel[1]).get("SamplesPerPixel")
        # Where it is not said whether they are the samples of a pixel, the pages tell: grey ones are refused there.
        if samples is not None and (channels := _whole(first.get("SizeC")) // _whole(samples)) > 1:
            raise SlideError(f"holds {channels} channels (SizeC), not one picture in RGB", where=path, hint=_EXPORT)
        scans = 1 + sum(_is_scan_beside(first, other) for other in others)
        if scans > 1:
            hint = "Save each as a file of its own, for example `bfconvert -series 0 IN OUT.ome.tiff`"
            raise SlideError(f"holds {scans} scans (OME images), not one", where=path, hint=hint)

    def _pictures(self) -> list[dict[str, str]]:
        return [_attributes(found[1]) for found in _PIXELS.finditer(self.text)]


def _is_scan_beside(first: dict[str, str], other: dict[str, str]) -> bool:
    """Whether a further picture is another scan: larger than the first, or as fine and not much smaller."""
    ours, theirs = (_whole(one.get("SizeX")) * _whole(one.get("SizeY")) for one in (first, other))
    sizes = [_in_um(one.get("PhysicalSizeX", ""), one.get("PhysicalSizeXUnit", "µm")) for one in (first, other)]
    apart = float(sizes[1]) / float(sizes[0]) if float(sizes[0]) else 0.0
    return theirs > ours or (1 / _SAME_SCAN < apart < _SAME_SCAN and theirs >= _SCAN_SHARE * ours)


def _attributes(text: str) -> dict[str, str]:
    return {name: html.unescape(double or single) for name, double, single in _ATTRIBUTE.findall(text)}


def _whole(text: str | None) -> int:
    """A count; 1 where none is said."""
    return max(1, int(text)) if text is not None and text.isascii() and text.isdigit() else 1


def _in_um(text: str, unit: str) -> str:
    try:
        return repr(float(text) * _UM_PER_UNIT[unit])
    except (ValueError, KeyError):
        return "nan"
