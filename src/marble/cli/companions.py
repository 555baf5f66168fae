"""Flags that say something only beside another one, or only without it: refused, so that nobody believes they count."""

from __future__ import annotations

from collections.abc import Mapping

from marble.errors import InputError


def goes_with(other: str, given: Mapping[str, bool]) -> None:
    """Refuse the first flag of `given` that was given, since `other` was not."""
    for flag, was_given in given.items():
        if was_given:
            raise InputError(f"{flag} says nothing without {other}", hint=f"Give {other} too, or leave {flag} out")


def goes_without(other: str, given: Mapping[str, bool]) -> None:
    """Refuse the first flag of `given` that was given, since `other` was too."""
    for flag, was_given in given.items():
        if was_given:
            raise InputError(f"{flag} says nothing beside {other}", hint=f"Leave out one of {flag} and {other}")


def workers_go_with_ray(ray: str | None, cpus: float, gpus: float = 0) -> None:
    """What a worker takes is asked of a cluster; processes of this machine share what there is."""
    if ray is None:
        goes_with("--ray", {"--worker-cpus": cpus != 1, "--worker-gpus": gpus != 0})
