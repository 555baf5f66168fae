"""Run the gates one by one and write `docs/reliability.md`: `make reliability`, `SMOKE=1`, `GATES=A1,B4`.

A gate that held is not run again, in this mode, until the package, its own tests or a library has changed: a run that
was stopped goes on where it was, and a change of pages costs nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from marble import files
from tests.docs.pages import ROOT
from tests.reliability import page, results
from tests.reliability.gates import GATES, Gate
from tests.reliability.sources import fingerprint


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a tenth of the cases")
    parser.add_argument("--gates", default="", help="only these, in this order, as A1,B4")
    parser.add_argument("--anew", action="store_true", help="also those that held already")
    parser.add_argument("--limit", type=float, default=60, help="minutes a gate may take")
    parser.add_argument("--page", action="store_true", help="only write the page")
    asked = parser.parse_args()
    wanted = [name.strip().upper() for name in asked.gates.split(",") if name.strip()]
    by_id = {gate.id: gate for gate in GATES}
    unknown = sorted(set(wanted) - set(by_id))
    if unknown:
        parser.error(f"no such gate: {', '.join(unknown)}; there are {', '.join(by_id)}")
    mode: results.Mode = "smoke" if asked.smoke else "full"
    lost = 0
    for gate in [] if asked.page else [by_id[name] for name in wanted] or GATES:
        if not gate.tests:
            continue
        if not asked.anew and results.still_holds(results.load().get((gate.id, mode)), fingerprint(gate)):
            print(f"{gate.id}: held already")
            continue
        result = run(gate, mode, asked.limit)
        results.keep(result)
        files.publish(page.PAGE, page.text())
        lost += result.outcome in ("failed", "stopped")
        print(f"{gate.id}: {result.outcome}, {result.survived} of {result.tried}, {result.minutes} min", flush=True)
        for name in (*result.failed, *result.skipped):
            print(f"    {name}")
    files.publish(page.PAGE, page.text())
    return 1 if lost else 0


def run(gate: Gate, mode: results.Mode, limit: float) -> results.Result:
    """One gate's tests in a process of their own."""
    at, sources = results.commit(), fingerprint(gate)
    environment = {**os.environ, "SMOKE": "1" if mode == "smoke" else "", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable, "-m", "pytest", "-n", "0", "-m", "", "-p", "tests.reliability.counting", "--tb", "short",
            "--timeout", "3600", f"--junitxml={report}", f"--basetemp={folder}/tmp", *gate.tests,
        ]  # fmt: skip
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
        try:
            process.wait(limit * 60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the session started here, nothing else
            process.wait()
        minutes = round((time.monotonic() - began) / 60, 1)
        counted = results.count(report) if report.exists() else results.Counted(0, 0, (), ())
    return results.Result(
        gate.id, mode, _outcome(counted, process.returncode), counted.reduced, counted.tried, counted.survived, minutes,
        datetime.now(UTC).date().isoformat(), at, results.versions(), counted.failed, counted.skipped, sources,
    )  # fmt: skip


def _outcome(counted: results.Counted, code: int) -> results.Outcome:
    if code < 0:
        return "stopped"
    if code != 0 or counted.failed:
        return "failed"
    return "held" if counted.tried else "skipped"


if __name__ == "__main__":
    sys.exit(main())
