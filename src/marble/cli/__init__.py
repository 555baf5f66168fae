"""The command line: one short function per verb, heavy imports inside, so that `--help` and a typo answer at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from marble.cli.outcomes import ENDED, OK, STOPPED, Stopped, Terminated, outcome_of, wants_traceback
from marble.cli.outlet import outlast_the_reader
from marble.cli.repeated import refuse_repeated
from marble.pointers import pointed_at
from marble.version import VERSION

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
    "route": "marble.cli.route:route",
    "predict": "marble.cli.predict:predict",
    "heatmap": "marble.cli.heatmap:heatmap",
    "view": "marble.cli.view:view",
    "bench": "marble.cli.bench:bench",
}


class _Verbs(TyperGroup):
    """typer ends a Ctrl-C itself, and silently; ours first says what is kept."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise _stopped(stop) from None


class _Verb(TyperCommand):
    """typer takes the last of a flag given twice, silently; ours refuses it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        refuse_repeated(order)
        return super().parse_args(ctx, args)


def _stopped(stop: KeyboardInterrupt) -> Stopped:
    return Stopped(str(stop), ENDED if isinstance(stop, Terminated) else STOPPED)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"marble {VERSION}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Multi-scale multiple-instance learning for whole-slide images."""


def assemble(only: str | None = None) -> typer.Typer:
    """The app with every verb, or with one of them; a verb imports what it needs when it is called."""
    app = typer.Typer(
        name="marble",
        cls=_Verbs,
        callback=_options,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: quick, and the same in a terminal, a log and a manual
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for verb, place in VERBS.items():
        if only in (None, verb):
            app.command(name=verb, cls=_Verb)(pointed_at(place))
    return app


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point: whatever goes wrong is one line on stderr, and an exit code (:mod:`marble.cli.outcomes`)."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end)
    outlast_the_reader()
    verb = given[0] if given[0] in VERBS else None
    try:
        if verb not in (None, "doctor") and not {"-h", "--help"} & set(given):
            _refuse_old_packages()
        code = assemble(verb)(given, prog_name="marble", standalone_mode=False)
        if code == STOPPED:  # typer ends a Ctrl-C silently that comes while it reads the arguments
            raise Stopped
    except (Exception, KeyboardInterrupt) as error:
        line, code = outcome_of(_stopped(error) if isinstance(error, KeyboardInterrupt) else error, verb)
        if wants_traceback():
            import traceback

            traceback.print_exc()
        typer.secho(line, err=True, fg=typer.colors.RED)
        sys.exit(code)
    sys.exit(code if isinstance(code, int) else OK)


def _refuse_old_packages() -> None:
    """Those that every verb may need; the others are looked at where they are used."""
    from marble.floors import installed, refuse_older

    for name in ("torch", "safetensors"):
        refuse_older(name, installed(name))


def _end(*_: object) -> NoReturn:
    raise Terminated
