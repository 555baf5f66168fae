"""What works on this machine, and what to do about the rest."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from marble.floors import FLOORS, how_to_install, installed, is_older


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    what: str
    state: Literal["ok", "note", "fault"]
    detail: str
    advice: str = ""
    group: str = ""  # checks of one group can be told in one line


def summarise(checks: list[Check]) -> list[Check]:
    """The same in few lines: of a group, one line for what works and one for what does not, faults each on its own."""
    lines: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        alone = not check.group or check.state == "fault"
        lines.setdefault((check.what if alone else check.group, check.state), []).append(check)
    return [
        found[0] if len(found) == 1 and found[0].what == what else _together(what, found)
        for (what, _), found in lines.items()
    ]


def _together(what: str, found: list[Check]) -> Check:
    names = [check.what.removeprefix(f"{what} ") for check in found]
    good = found[0].state == "ok"
    short = [
        f"{name} {check.detail}" if good and check.detail[:1].isdigit() else name for name, check in zip(names, found)
    ]
    advice = next((check.advice for check in found if check.advice), "")
    return Check(what, found[0].state, ", ".join(short), advice if good else "not usable as things are; see --all")


def examine() -> list[Check]:
    """Look at everything; looking never raises and never connects anywhere."""
    return [*_machine(), *_packages(), *_compute(), *_slides(), *_encoders(), *_viewer()]


def _machine() -> Iterator[Check]:
    ok = sys.version_info >= (3, 11)
    yield Check("python", "ok" if ok else "fault", platform.python_version(), "" if ok else "Use Python 3.11 or newer")
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    advice = "" if free > 10 else "A cohort's bags take about 2 KB per tile in float16; make room first"
    yield Check("disk here", "ok" if free > 10 else "note", f"{free:.0f} GiB free", advice)
    yield Check("cores", "ok", str(os.cpu_count()))


#: what MARBLE cannot do without, and the oldest that it works with; those with known holes are in :mod:`marble.floors`
NEEDED = {"openslide-python": "1.4", "pydantic": "2.10", "numpy": "2.0"}


def _packages() -> Iterator[Check]:
    needed = {name: FLOORS[name] for name in ("torch", "safetensors")} | NEEDED
    for name in [*needed, "starlette", "ray"]:
        floor, found = needed.get(name) or FLOORS[name], installed(name)
        if found is None:
            if name in needed:
                yield Check(name, "fault", "not installed", "Run `make setup`")
            continue
        old = is_older(found, floor)
        yield Check(name, "fault" if old else "ok", found, _newer(name, floor) if old else "", "packages")


def _newer(name: str, floor: str) -> str:
    return f"Needs {floor} or newer: " + (how_to_install(name) if name in FLOORS else "run `make setup`")


def _compute() -> Iterator[Check]:
    import torch

    from marble.models.ssm.ssd import backends

    device = "CPU only"
    if torch.cuda.is_available():
        device = f"CUDA: {torch.cuda.get_device_name(0)}"
    elif torch.backends.mps.is_available():
        device = "Apple MPS"
    yield Check("device", "ok", f"{device}, {torch.get_num_threads()} threads")
    for backend in backends():
        yield Check(f"scan backend {backend.name}", "ok" if backend.works else "note", backend.note, "", "scan backend")


def _slides() -> Iterator[Check]:
    try:
        from marble.slides.readers.openslide import library_version

        found = library_version()
        old = is_older(found, FLOORS["OpenSlide"])
        yield Check(
            "OpenSlide", "fault" if old else "ok", found, _newer("OpenSlide", FLOORS["OpenSlide"]) if old else ""
        )
    except (ImportError, OSError) as error:
        yield Check("OpenSlide", "fault", str(error), "Install openslide-bin: `pip install openslide-bin`")


def _encoders() -> Iterator[Check]:
    from marble.encoders import availability

    for name, usable, detail, advice in availability():
        yield Check(f"encoder {name}", "ok" if usable else "note", detail, advice or "", "encoder")


def _viewer() -> Iterator[Check]:
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        yield Check("viewer", "note", f"{', '.join(missing)} not installed", "pip install 'marble-wsi[viewer]'")
        return
    bundle = Path(__file__).parent / "viewer" / "static" / "vendor" / "openseadragon.min.js"
    if bundle.exists():
        yield Check("viewer", "ok", "FastAPI and OpenSeadragon are here")
    else:
        yield Check("viewer", "note", "OpenSeadragon is not built in", "Install Node.js (npm) and run `make setup`")
