"""The command line: one short function per verb, heavy imports inside, so that `--help` answers at once."""

from __future__ import annotations

import sys
from importlib import import_module

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


#: every verb and the function that does it, in the order of `marble --help`; a verb's file is named like the verb
VERBS = {
    "demo": "marble.cli.demo:demo",
    "doctor": "marble.cli.doctor:doctor",
    "tile": "marble.cli.tile:tile",
    "plan": "marble.cli.plan:plan",
    "extract": "marble.cli.extract:extract",
    "import": "marble.cli.import_:import_",
    "import-checkpoint": "marble.cli.import_checkpoint:import_checkpoint",
    "export": "marble.cli.export:export",
    "verify": "marble.cli.verify:verify",
    "split": "marble.cli.split:split",
    "run": "marble.cli.run:run",
    "report": "marble.cli.report:report",
    "predict": "marble.cli.predict:predict",
    "heatmap": "marble.cli.heatmap:heatmap",
    "view": "marble.cli.view:view",
    "bench": "marble.cli.bench:bench",
}


def assemble() -> typer.Typer:
    """The app with every verb; a verb imports what it needs when it is called."""
    if not app.registered_commands:
        for verb, place in VERBS.items():
            module, _, function = place.partition(":")
            app.command(name=verb)(getattr(import_module(module), function))
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
