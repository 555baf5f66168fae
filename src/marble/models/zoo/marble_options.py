"""What the options of MARBLE may be: refused before any weight is made, with what to choose instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marble.errors import InputError
from marble.specs import unknown_choice

CHOICES = {
    "block": ["literal", "prenorm"],
    "mixer": ["mamba2", "set", "mlp"],
    "fusion": ["parent", "none", "shuffled"],
    "start": ["default", "even", "fine", "residual"],
    "readout": ["finest", "all"],
}


def check_choices(chosen: Mapping[str, str]) -> None:
    """Refuse what is not in `CHOICES`."""
    for option, value in chosen.items():
        if value not in CHOICES[option]:
            raise InputError(unknown_choice(option, str(value), CHOICES[option]), where="model 'marble'")


def check_numbers(levels: int, level: int, depth: int, drop_rate: float, project: int | None, dropout: float) -> None:
    """Refuse sizes and rates that no model has."""
    if levels < 1 or depth < 1:
        raise InputError(f"levels and depth must be at least 1, got {levels} and {depth}", where="model 'marble'")
    if levels > 1 and level != -1:
        raise InputError(
            f"level={level} picks the one level to read, but levels={levels}",
            where="model 'marble'",
            hint="Set levels=1",
        )
    if not 0 <= drop_rate < 1:
        raise InputError(f"drop_rate must be in [0, 1), got {drop_rate}", where="model 'marble'")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must be in [0, 1), got {dropout}", where="model 'marble'")
    if project is not None and project < 1:
        raise InputError(f"project must be a positive width, got {project}", where="model 'marble'")


def check_traversal(mixer: str, orders: Sequence[str], directions: int) -> None:
    """Refuse an order of reading for a mixer that knows none."""
    if directions not in (1, 2):
        raise InputError(f"directions must be 1 or 2, got {directions}", where="model 'marble'")
    if mixer != "mamba2" and (directions == 2 or set(orders) != {"shuffle"}):
        raise InputError(
            f"order and directions are those of a scan, and mixer '{mixer}' has none",
            where="model 'marble'",
            hint='Leave them out, or set mixer="mamba2"',
        )
