"""The command line: one short function per verb, heavy imports inside, so that `--help` answers at once."""

from __future__ import annotations

import sys

import typer

from marble.errors import MarbleError
from marble.version import VERSION

app = typer.Typer(
    name="marble",
    help="Multi-scale multiple-instance learning for whole-slide images.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"marble {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


def assemble() -> typer.Typer:
    """The app with every verb; a room's verbs import what they need when they are called."""
    from marble.cli import learn, look, prepare, system

    if not app.registered_commands:
        for room in (prepare, learn, look, system):
            room.register(app)
    return app


def main() -> None:
    """Entry point: our own errors are printed as one line without a traceback; anything else is a bug and shows it."""
    try:
        assemble()()
    except MarbleError as error:
        typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.secho("interrupted; start the same command again to go on", err=True)
        sys.exit(130)
