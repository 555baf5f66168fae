"""`marble`, and `python -m marble`: the command line of exactly this interpreter."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """`marble.cli.main`; a Ctrl-C that comes while even that is loaded is one line too."""
    try:
        from marble.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("stopped; start the same command again to go on\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
