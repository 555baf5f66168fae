"""Buffers that a model does not have when it is built: they are measured or solved later, or come with a file."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class LateBuffers(nn.Module):
    """A module whose buffers are None until they are set or loaded.

    Args:
        names: of the buffers.
    """

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._late = names
        for name in names:
            self.register_buffer(name, None)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """A file that holds them brings them along, whatever this module held before; torch alone would refuse."""
        for name in self._late:
            stored, like = state_dict.get(prefix + name), getattr(self, name)
            if stored is not None and (like is None or like.shape != stored.shape):
                setattr(self, name, torch.empty_like(stored))
        super()._load_from_state_dict(state_dict, prefix, *rest)
