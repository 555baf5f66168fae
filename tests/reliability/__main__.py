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
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from marble import files
from tests.docs.pages import ROOT
from tests.reliability import page, results
from tests.reliability.counting import REPORT
from tests.reliability.gates import GATES, Gate
from tests.reliability.sources import fingerprint


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a tenth of the cases")
    parser.add_argument("--gates", default="", help="only these, in this order, as A1,B4")
    parser.add_argument("--together", action="store_true", help="in one process: faster where they are many and small")
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
    chosen = [] if asked.page else [by_id[name] for name in wanted] or GATES
    todo = []
    for gate in chosen:
        if not asked.anew and results.still_holds(results.load().get((gate.id, mode)), fingerprint(gate)):
            print(f"{gate.id}: held already")
        elif gate.tests:
            todo.append(gate)
    lost = 0
    for batch in [todo] if asked.together and todo else [[gate] for gate in todo]:
        for result in run(batch, mode, asked.limit):
            if result.outcome == "stopped" and not result.tried and len(batch) > 1:
                continue  # its turn did not come: what is known of it stays
            results.keep(result)
            lost += result.outcome in ("failed", "stopped")
            print(
                f"{result.gate}: {result.outcome}, {result.survived} of {result.tried}, {result.minutes} min",
                flush=True,
            )
            for name in (*result.failed, *result.skipped):
                print(f"    {name}")
        files.publish(page.PAGE, page.text())
    files.publish(page.PAGE, page.text())
    return 1 if lost else 0


def run(gates: Sequence[Gate], mode: results.Mode, limit: float) -> list[results.Result]:
    """The gates' tests in a process of their own, and what became of each gate."""
    at, of = results.commit(), {gate.id: fingerprint(gate) for gate in gates}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        environment = {
            **os.environ, "SMOKE": "1" if mode == "smoke" else "", "OMP_NUM_THREADS": "1", REPORT: str(report),
        }  # fmt: skip
        tests = dict.fromkeys(test for gate in gates for test in gate.tests)
        command = [
            sys.executable, "-m", "pytest", "-n", "0", "-m", "", "-p", "tests.reliability.counting", "--tb", "short",
            "--timeout", "3600", f"--basetemp={folder}/tmp", *tests,
        ]  # fmt: skip
        process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
        try:
            process.wait(limit * 60)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # what has ended until then counts
            os.killpg(process.pid, signal.SIGKILL)  # the session started here, nothing else
            process.wait()
        counts = {gate.id: results.count(report, gate.tests) for gate in gates}
    today, versions = datetime.now(UTC).date().isoformat(), results.versions()
    return [
        results.Result(
            gate.id, mode, _outcome(one), one.reduced, one.tried, one.survived, round(one.seconds / 60, 1), today, at,
            versions, one.failed, one.skipped, of[gate.id],
        )
        for gate in gates
        for one in [counts[gate.id]]
    ]  # fmt: skip


def _outcome(counted: results.Counted) -> results.Outcome:
    if counted.failed:
        return "failed"
    if counted.left or not (counted.tried or counted.skipped):  # not reached, or not even collected
        return "stopped"
    return "held" if counted.tried else "skipped"


if __name__ == "__main__":
    sys.exit(main())
