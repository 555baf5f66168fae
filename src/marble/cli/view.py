"""`marble view`: the viewer in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths
from marble.cli.pseudonym_options import Pseudonyms, read
from marble.cli.run_options import Device


def view(
    source: Annotated[Path, typer.Argument(metavar="RUNS_OR_STORE", help="Folder of runs, a store, or one with both.")],
    slides: Annotated[Path | None, typer.Option(help="Folder with the slide files.")] = None,
    pseudonyms: Pseudonyms = None,
    store: Annotated[Path | None, typer.Option(help="Store with the runs' bags, if it is elsewhere.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs a token.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(envvar="MARBLE_VIEW_TOKEN", help="Ask every request for this secret.")
    ] = None,
    device: Device = "auto",
    notes: Annotated[bool, typer.Option("--notes", help="Let notes on slides be written, into notes.json.")] = False,
) -> None:
    """Look at slides, attention and results in the browser; nothing leaves this machine."""
    for folder in (source, slides, store):
        if folder is not None:
            paths.existing_folder(folder)
    read(pseudonyms)
    from marble.viewer.registry import Places
    from marble.viewer.serve import serve

    serve(
        Places(source, slides, store, pseudonyms),
        host=host,
        port=port,
        token=token,
        tell=typer.echo,
        notes=notes,
        device=device,
    )
