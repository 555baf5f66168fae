"""`marble view`: the viewer in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marble.cli import paths
from marble.cli.companions import goes_with
from marble.cli.pseudonym_options import Pseudonyms, read
from marble.cli.run_options import Device
from marble.errors import InputError

_WHO = "Who may come in"
_OTHERS = "Letting others connect"


def view(
    source: Annotated[
        Path | None, typer.Argument(metavar="RUNS_OR_STORE", help="Folder of runs, a store, or one with both.")
    ] = None,
    slides: Annotated[Path | None, typer.Option(help="Folder with the slide files.")] = None,
    pseudonyms: Pseudonyms = None,
    store: Annotated[Path | None, typer.Option(help="Store with the runs' bags, if it is elsewhere.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8765,
    device: Device = "auto",
    notes: Annotated[bool, typer.Option("--notes", help="Let notes on slides be written, into notes.json.")] = False,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="MARBLE_VIEW_TOKEN", help="Ask for this secret, on this machine too.", rich_help_panel=_WHO
        ),
    ] = None,
    token_hours: Annotated[
        int | None,
        typer.Option(
            min=1, max=8784, help="Ask for a secret (made up without --token) that ends then.", rich_help_panel=_WHO
        ),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="Table of users with tokens of their own.", rich_help_panel=_WHO)
    ] = None,
    new_token: Annotated[
        str | None, typer.Option(help="Make a token for this user, write it into --tokens, end.", rich_help_panel=_WHO)
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=0, max=3650, help="How long it is good for; default 30.", rich_help_panel=_WHO)
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but loopback needs TLS.", rich_help_panel=_OTHERS)
    ] = "127.0.0.1",
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file of the server's certificate, for TLS.", rich_help_panel=_OTHERS)
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="PEM file of the certificate's private key.", rich_help_panel=_OTHERS)
    ] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy before the viewer gives TLS.", rich_help_panel=_OTHERS)
    ] = False,
) -> None:
    """Look at slides, attention and results in the browser; nothing leaves this machine."""
    if new_token is not None:
        _make_token(new_token, tokens, days, source)
        return
    goes_with("--new-token", {"--days": days is not None})
    if tokens is not None:
        goes_with("--token", {"--token-hours": token_hours is not None})
    if source is None:
        raise InputError("give a folder of runs or a store", hint="See `marble view --help`")
    for folder in (source, slides, store):
        if folder is not None:
            paths.existing_folder(folder)
    for file in (tokens, certificate, key):
        if file is not None:
            paths.existing_file(file)
    read(pseudonyms)
    from marble.viewer.listening import Listening
    from marble.viewer.registry import Places
    from marble.viewer.serve import serve

    listening = Listening(
        host=host, port=port, token=token, token_hours=token_hours, tokens=tokens,
        certificate=certificate, key=key, behind_proxy=behind_proxy,
    )  # fmt: skip
    places = Places(source, slides, store, pseudonyms)
    serve(places, listening, tell=typer.echo, notes=notes, device=device)


def _make_token(name: str, tokens: Path | None, days: int | None, source: Path | None) -> None:
    """Write a new token's hash into the table and show the token, this once."""
    if tokens is None:
        raise InputError("--new-token says nothing without --tokens", hint="Give --tokens FILE, the table to write to")
    if source is not None:
        raise InputError("--new-token makes a token and shows nothing", hint=f"Leave out {source}")
    paths.output_file(tokens, "--tokens")
    from marble.viewer.token_file import add_token

    token, last_day, replaced = add_token(tokens, name, 30 if days is None else days)
    typer.echo(f"token of {name}, good through {last_day} (UTC){', in place of the one before' if replaced else ''}:")
    typer.echo(token)
    typer.echo(f"it is not kept and not shown again; its hash is in {tokens}")
