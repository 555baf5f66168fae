"""`marble import-checkpoint`: weights of an original repository to safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def import_checkpoint(
    checkpoint: Annotated[Path, typer.Argument(help="Weights (.pt, .pth, .ckpt) trained with the original code.")],
    model: Annotated[str, typer.Option(help="Name of the model.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE of the model's options.")] = None,
    dim: Annotated[int | None, typer.Option(help="Width of the tokens, if the weights do not show it.")] = None,
) -> None:
    """Weights trained with a model's original code -> safetensors that MARBLE's model of that name loads."""
    from marble.models.originals.checkpoint import import_checkpoint as convert

    done = convert(checkpoint, model, out, dim=dim, **_options(settings or []))
    if done.taken_off:
        typer.echo(f"taken off the names: {', '.join(done.taken_off)}")
    if done.left_out:
        typer.echo(f"not weights, left out: {', '.join(done.left_out)}")
    typer.echo(
        f"{model}: {done.tensors} tensors, {done.model.parameter_count():,} parameters, tokens {done.model.dim} wide, "
        f"{done.model.outputs} outputs; every tensor found its place"
    )
    typer.echo(f"wrote {done.path}")


def _options(settings: list[str]) -> dict[str, Any]:
    """KEY=VALUE of the command line; a value is what TOML makes of it, or a word."""
    import tomllib

    from marble.errors import InputError

    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"--set '{setting}' is not KEY=VALUE", hint="Write it like --set gated=false")
        try:
            found[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = text
    return found
