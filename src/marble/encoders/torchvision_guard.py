"""Let timm be imported where torchvision is a CUDA build and torch is not.

timm imports torchvision, whose CUDA build registers fake kernels for operators that its own library would have
defined; beside a CPU torch that library does not load, and the import fails with `operator torchvision::nms does not
exist`. No encoder uses those operators. Declaring them (without any implementation) before the first import is enough.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from marble.errors import UnavailableError

_DECLARED: list[Any] = []  # a torch.library.Library undeclares its operators when it is collected
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def import_timm() -> Any:
    """The timm package; an error that names the extra where it is not installed."""
    try:
        _declare_missing_operators()
        import timm
    except ImportError as error:
        raise UnavailableError(
            f"encoders other than 'lite0' and 'colour' need timm ({error})",
            hint="Run `pip install 'marble-wsi[encoders]'`",
        ) from None
    return timm


def _declare_missing_operators() -> None:
    if _DECLARED or "torchvision" in sys.modules or torch.version.cuda is not None:
        return
    if not _is_cuda_build_of_torchvision():
        return
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in _OPERATORS:
        library.define(operator)
    _DECLARED.append(library)


def _is_cuda_build_of_torchvision() -> bool:
    """Whether the installed torchvision was built for CUDA, read without importing it."""
    version_file = metadata.distribution("torchvision").locate_file("torchvision/version.py")
    return "+cu" in Path(str(version_file)).read_text(encoding="utf-8")
