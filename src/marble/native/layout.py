"""What C++ and Python must agree on: the structures, the functions and the constants. Compared when the library loads.

Field by field as in `ssd.hpp`, `ssd_forward.cpp`, `ssd_backward.cpp`, `scan.cpp` and `scan2d.cpp`.
"""

from __future__ import annotations

import ctypes

#: tokens per chunk of the Mamba-2 scan
CHUNK = 64
#: bytes of a vector: the kernels take 8 float32 or 4 float64 at once, the wide ones twice as many
VECTOR_BYTES, WIDE_VECTOR_BYTES = 32, 64

Fields = list[tuple[str, type[ctypes._SimpleCData]]]  # type: ignore[type-arg]


def _numbers(*names: str) -> Fields:
    return [(name, ctypes.c_long) for name in names]


def _places(*names: str) -> Fields:
    return [(name, ctypes.c_void_p) for name in names]


class Segment(ctypes.Structure):
    """One segment of projected rows, and room for what its heads share."""

    _fields_ = [
        *_numbers("tokens", "conv", "heads", "groups", "headdim", "state", "row", "convolved"),
        *_places("rows", "taps", "conv_bias", "dt_bias", "A", "D"),
        *_places("dt", "u", "B", "C", "CB", "decay", "total"),
    ]


class Scanned(ctypes.Structure):
    """Where the way forward writes."""

    _fields_ = [*_places("state", "gated"), *_numbers("gated_row"), *_places("y", "starts")]


class SsdGradient(ctypes.Structure):
    """What the way back reads and writes beside the segment."""

    _fields_ = [
        *_places("y", "starts", "d_gated", "d_rows", "d_state", "d_B", "d_C", "d_step", "d_log_dt", "d_skip"),
        *_places("d_taps", "d_conv_bias", "next_du"),
    ]


class Scan(ctypes.Structure):
    """The inputs of the selective scan over tokens."""

    _fields_ = [*_numbers("tokens", "channels", "states"), *_places("x", "dt", "A", "B", "C")]


class Grid(ctypes.Structure):
    """The inputs of the selective scan over a grid."""

    _fields_ = [*_numbers("height", "width", "channels", "states", "band"), *_places("x", "dt", "A", "B", "C")]


class ScanGradient(ctypes.Structure):
    """What the way back of either scan reads and writes beside its inputs."""

    _fields_ = _places("starts", "gy", "gx", "gdt", "gA", "gB", "gC")


#: kernel -> what it is called with, before the number of threads; there is one for each precision
KERNELS: dict[str, tuple[object, ...]] = {
    "ssd_prepare": (ctypes.POINTER(Segment),),
    "ssd_forward": (ctypes.POINTER(Segment), ctypes.POINTER(Scanned)),
    "ssd_backward": (ctypes.POINTER(Segment), ctypes.POINTER(SsdGradient)),
    "scan_forward": (ctypes.POINTER(Scan), ctypes.c_void_p, ctypes.c_void_p),
    "scan_backward": (ctypes.POINTER(Scan), ctypes.POINTER(ScanGradient)),
    "scan2d_forward": (ctypes.POINTER(Grid), ctypes.c_void_p, ctypes.c_void_p),
    "scan2d_backward": (ctypes.POINTER(Grid), ctypes.POINTER(ScanGradient)),
}
#: function -> how many whole numbers it takes; it gives one
NUMBERS = {"ssd_blocks": 2, "scan_blocks": 0, "scan_segment": 0}
#: function without arguments -> what it must say
AGREED = {
    "ssd_chunk": CHUNK,
    "vector_bytes": VECTOR_BYTES,
    "ssd_segment_bytes": ctypes.sizeof(Segment),
    "ssd_scanned_bytes": ctypes.sizeof(Scanned),
    "ssd_gradient_bytes": ctypes.sizeof(SsdGradient),
    "scan_bytes": ctypes.sizeof(Scan),
    "scan_gradient_bytes": ctypes.sizeof(ScanGradient),
    "scan2d_bytes": ctypes.sizeof(Grid),
    "scan2d_gradient_bytes": ctypes.sizeof(ScanGradient),
}


def declare(library: ctypes.CDLL) -> None:
    """Tell ctypes what every function takes and gives; AttributeError if one is not there."""
    for kernel, arguments in KERNELS.items():
        for suffix in ("f32", "f64"):
            function = getattr(library, f"marble_{kernel}_{suffix}")
            function.argtypes, function.restype = [*arguments, ctypes.c_long], None
    for name, count in {**NUMBERS, **dict.fromkeys(AGREED, 0)}.items():
        function = getattr(library, f"marble_{name}")
        function.argtypes, function.restype = [ctypes.c_long] * count, ctypes.c_long
    library.marble_fingerprint.argtypes, library.marble_fingerprint.restype = [], ctypes.c_char_p


def disagreement(library: ctypes.CDLL, wide: bool = False) -> str | None:
    """Where a declared library and this file differ; None if nowhere."""
    agreed = AGREED | {"vector_bytes": WIDE_VECTOR_BYTES} if wide else AGREED
    for name, expected in agreed.items():
        said = getattr(library, f"marble_{name}")()
        if said != expected:
            return f"{name} is {said} in the library and {expected} in Python"
    return None
