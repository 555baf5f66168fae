"""Where tensors live: the one place that knows which devices there are, which is taken, and how tensors get there.

Bags live on the CPU. Who computes with one moves it to the model's device (`to_device`), and hands back CPU tensors.
"""

from __future__ import annotations

import os
import re

import torch
from torch import Tensor

from marble.errors import InputError, UnavailableError

ASKED = re.compile(r"(auto|cpu|mps|cuda(:\d+)?)$")
CHOICES = "auto, cpu, cuda, cuda:N or mps"


def choose(asked: str | torch.device = "auto") -> torch.device:
    """The device for `asked`: one of auto, cpu, cuda, cuda:N, mps, or torch's own; with auto the best there is."""
    asked = str(asked)
    if not ASKED.match(asked):
        raise InputError(f"no device is called '{asked}'", where="device", hint=f"Use {CHOICES}")
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, _, number = asked.partition(":")
    if kind == "cuda":
        _check_cuda(asked, int(number or 0))
        # cuBLAS repeats its sums bit for bit only with a workspace of its own; read when it first starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # float32 is float32: cuDNN would round to TF32 by default, and tokens of one name would differ by 1e-3
        torch.backends.cudnn.allow_tf32 = False
        return torch.device("cuda", int(number or 0))
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UnavailableError(
            "there is no Apple GPU that torch can use here",
            where="device mps",
            hint="Use auto, which takes what is here",
        )
    return torch.device(kind)


def choose_several(asked: str) -> list[torch.device]:
    """Several devices, comma-separated; each at most once, and the CPU only alone: its numbers round otherwise."""
    found = [choose(name.strip()) for name in asked.split(",")]
    if len(set(found)) < len(found):
        raise InputError(f"'{asked}' names a device twice", where="device")
    if len(found) > 1 and torch.device("cpu") in found:
        raise InputError(f"'{asked}': the CPU cannot share with an accelerator", where="device", hint="Leave cpu out")
    return found


def no_gpu_because() -> str:
    """Why torch finds no GPU, as far as it can tell."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this build of torch ({torch.__version__}) is for CPUs"
    return f"this build of torch ({torch.__version__}) looks for one, and the driver shows none"


def _check_cuda(asked: str, number: int) -> None:
    if not torch.cuda.is_available():
        raise UnavailableError(
            f"there is no CUDA device that torch can use here; {no_gpu_because()}",
            where=f"device {asked}",
            hint="Use auto, which takes what is here, or install torch for your CUDA version",
        )
    if number >= (there := torch.cuda.device_count()):
        raise UnavailableError(
            f"there are {there} CUDA devices, numbered from 0", where=f"device {asked}", hint="Take one of those"
        )


def describe(device: torch.device) -> str:
    """The device in words, with its name where it has one."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return "mps (Apple GPU)" if device.type == "mps" else "cpu"


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; to CUDA through pinned memory, so that the thread that asks need not wait for it."""
    if tensor.device == device:
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
