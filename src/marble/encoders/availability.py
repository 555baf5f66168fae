"""Which encoders can run here as things are, and what to do about the others. Loads and downloads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from marble.encoders import lite0
from marble.encoders.catalogue import CATALOGUE, EncoderRow
from marble.encoders.weights import find_weights
from marble.errors import MarbleError


def availability() -> Iterator[tuple[str, bool, str, str | None]]:
    """(name, whether it can run, a detail, advice) for every catalogue row."""
    for row in CATALOGUE.values():
        yield row.name, *_one(row)


def _one(row: EncoderRow) -> tuple[bool, str, str | None]:
    if row.family == "colour":
        return True, "built in", None
    try:
        if row.family == "lite0":
            lite0.package_weights()
            fast = find_spec("onnxruntime") is not None and find_spec("onnx") is not None
            advice = None if fast else "pip install 'marble-wsi[onnx]' makes it two to three times as fast"
            return True, "ONNX Runtime" if fast else "torch", advice
        if find_spec("timm") is None:
            return False, "timm is not installed", "pip install 'marble-wsi[encoders]'"
        path = find_weights(row, None, allow_download=False)
    except MarbleError as error:
        return False, error.what, error.hint
    return True, f"weights in the Hugging Face cache ({path.stat().st_size / 1e9:.1f} GB)", None
