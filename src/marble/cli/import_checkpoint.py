"""`marble import-checkpoint`: weights of an original repository to safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths
from marble.cli.settings import key_values


def import_checkpoint(
    checkpoint: Annotated[Path, typer.Argument(help="Weights (.pt, .pth, .ckpt) trained with the original code.")],
    model: Annotated[str, typer.Option(help="Name of the model.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE of the model's options.")] = None,
    dim: Annotated[int | None, typer.Option(help="Width of the tokens, if the weights do not show it.")] = None,
) -> None:
    """Weights trained with a model's original code -> safetensors that MARBLE's model of that name loads."""
    paths.existing_file(checkpoint, "checkpoint")
    paths.output_file(out)
    options = key_values(settings or [])
    from marble.models.originals.checkpoint import import_checkpoint as convert

    done = convert(checkpoint, model, out, dim=dim, **options)
    if done.taken_off:
        typer.echo(f"taken off the names: {', '.join(done.taken_off)}")
    if done.left_out:
        typer.echo(f"not weights, left out: {', '.join(done.left_out)}")
    typer.echo(
        f"{model}: {done.tensors} tensors, {done.model.parameter_count():,} parameters, tokens {done.model.dim} wide, "
        f"{done.model.outputs} outputs; every tensor found its place"
    )
    typer.echo(f"wrote {done.path}")
