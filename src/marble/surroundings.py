"""Torch as a program of its own has it, whatever the caller's program has set, for as long as something lasts.

A notebook may have turned gradients off, made float64 or a GPU the default, or be inside of autocast. A training or an
answer would end in an error of torch's, or have other numbers than the same one from the command line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch


@contextmanager
def plain_torch() -> Iterator[None]:
    """Inside: float32 by default and to all its digits, on the CPU by default, gradients on, autocast off."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":  # asked, because being inside costs every call of torch
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(_SHARED.held())
        yield


class _Shared:
    """Settings that the threads of a program share: made by the first that needs them, set back by the last."""

    def __init__(self) -> None:
        self.lock, self.holders, self.undo = threading.Lock(), 0, ExitStack()

    @contextmanager
    def held(self) -> Iterator[None]:
        with self.lock:
            if self.holders == 0:
                self.undo.enter_context(_float32_by_default())
                self.undo.enter_context(_all_digits())
            self.holders += 1
        try:
            yield
        finally:
            with self.lock:
                self.holders -= 1
                if self.holders == 0:
                    self.undo.close()


_SHARED = _Shared()


@contextmanager
def _float32_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _all_digits() -> Iterator[None]:
    """Products of float32 numbers are rounded to nothing narrower.

    Torch has two ways to say how they are, an older one for everything and one by backend, and refuses to be asked in
    the older way (as training does) once the other was used. Inside, the two agree.
    """
    backends: Any = torch.backends
    by_backend = [backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    known = [(one, one.fp32_precision) for one in by_backend]
    products, convolutions = _told(torch.get_float32_matmul_precision), _told(lambda: backends.cudnn.allow_tf32)
    torch.set_float32_matmul_precision("highest")
    backends.cudnn.allow_tf32 = False
    for one in by_backend:  # which would otherwise take what was said for all of its kind
        one.fp32_precision = "ieee"
    try:
        yield
    finally:
        if products is not None:
            torch.set_float32_matmul_precision(products)
        if convolutions is not None:
            backends.cudnn.allow_tf32 = convolutions
        for one, precision in known:
            one.fp32_precision = precision


def _told(ask: Callable[[], Any]) -> Any:
    """The answer, or None where torch refuses one."""
    with suppress(RuntimeError):
        return ask()
    return None
