"""Small bags whose target is planted, for tests of the Python door."""

from __future__ import annotations

import torch

from marble.bags.bag import Bag, Level


def planted_bag(name: str, amount: float, dim: int = 6) -> Bag:
    """Two levels; the first feature of a few fine tiles is `amount`."""
    rng = torch.Generator().manual_seed(int.from_bytes(name.encode()) % 2**32)  # another for every name
    coarse = torch.randn(4, dim, generator=rng)
    fine = torch.randn(16, dim, generator=rng)
    fine[:8, 0] = amount + 0.1 * fine[:8, 0]
    cells = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"), -1).reshape(-1, 2)
    parent = (cells[:, 0] // 2) * 2 + cells[:, 1] // 2
    above = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij"), -1).reshape(-1, 2)
    return Bag(name, [Level(coarse, above), Level(fine, cells, parent)])


def two_classes(count: int = 24) -> tuple[list[Bag], list[str]]:
    labels = ["tumour" if k % 2 else "benign" for k in range(count)]
    return [planted_bag(f"s{k:02d}", 3.0 if label == "tumour" else -3.0) for k, label in enumerate(labels)], labels
