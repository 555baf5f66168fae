"""Every verb of a small pipeline with the network forbidden; the viewer listens to this machine alone."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from marble.cli import VERBS
from marble.synthetic.slides import write_slide
from tests.interchange.making import truth, write_trident

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(3600)]

#: in every process of ours and in those it starts: whatever leaves by a socket of the internet is noted and refused
GUARD = """
import os, socket, sys

def guard(event, args):
    if event == "socket.getaddrinfo":
        what = f"{event} {args[0]}"
    elif event in ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"):
        if args[0].family not in (socket.AF_INET, socket.AF_INET6):
            return
        what = f"{event} {args[1][0] if args[1] else args[1]}"
    else:
        return
    with open(os.environ["NOTED"], "a") as file:
        file.write(what + "\\n")
    if event != "socket.bind" and "127.0.0.1" not in what:
        raise OSError("no network in this test")

sys.addaudithook(guard)
"""
COMMANDS = """
import json, sys
from tests.cli.commands import marble
for words in json.loads(sys.argv[1]):
    ended = marble(*words)
    print(json.dumps([words[0], ended.code, (ended.out + ended.err)[-600:]]), flush=True)
"""
EXPERIMENT = """
cohort = { path = "synthetic:burden", patients = 24 }
task = "classification"
split = { scheme = "kfold", folds = 3, repeats = 1 }
train = { recipe = "common", epochs = 1, warmup = 0, lr = 2e-3, orders = 1, val_orders = 1 }
models = [{ name = "abmil", hidden = 8, label = "abmil" }]
"""
NOT_HERE = {
    "demo": "made of the other verbs",
    "bench": "compares speeds",
    "import-checkpoint": "reads one file, as `import` does",
    "route": "learns from a run, as `run` does",
    "view": "has a test of its own",
}


@pytest.fixture
def guarded(tmp_path: Path) -> dict[str, str]:
    """An environment in which no process reaches the network, with the file that tells who tried."""
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard" / "sitecustomize.py").write_text(GUARD)
    (tmp_path / "noted").touch()
    paths = [str(tmp_path / "guard"), *filter(None, sys.path)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "NOTED": str(tmp_path / "noted"),
        "OMP_NUM_THREADS": "1",
    }


def test_the_guard_sees_what_it_should(guarded: dict[str, str], tmp_path: Path) -> None:
    code = "import urllib.request; urllib.request.urlopen('http://example.org')"
    assert subprocess.run([sys.executable, "-c", code], env=guarded, capture_output=True, check=False).returncode != 0
    assert "example.org" in (tmp_path / "noted").read_text()


def test_no_verb_asks_for_the_network(
    guarded: dict[str, str], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    slides = tmp_path / "slides"
    for number in range(2):
        write_slide(slides / f"s{number}.tiff", (512, 384), mpp=0.5, seed=number, pieces=1)
    made = truth(tiles=12)
    write_trident(tmp_path / "features" / "a.h5", made.coarse, made.coarse_xy, made.extents[0], 10)
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)
    runs, small = tmp_path / "out" / "tiny", ("--magnifications", "5,20", "--tile-px", "64", "--encoder", "colour")
    run, bags = runs / "abmil" / "0", runs / "cohort" / "bags"
    commands: list[tuple[object, ...]] = [
        ("doctor",),
        ("tile", slides, "--out", tmp_path / "previews", "--magnifications", "5,20", "--tile-px", "64"),
        ("plan", slides, *small),
        ("extract", slides, "--store", tmp_path / "bags", "--workers", "2", *small),
        ("import", "--level", f"10:{tmp_path / 'features'}", "--store", tmp_path / "imported"),
        ("export", tmp_path / "bags", "--out", tmp_path / "exported"),
        ("verify", tmp_path / "bags"),
        ("run", tmp_path / "tiny.toml", "--out", tmp_path / "out"),
        ("split", runs / "cohort" / "cohort.csv", "--out", tmp_path / "splits", "--repeats", "1"),
        ("report", runs, "--out", tmp_path / "report"),
        ("predict", run, bags, "--allow-training-slides", "--out", tmp_path / "answers.csv"),
        ("heatmap", run, "P0000-S0", "--store", bags, "--out", tmp_path / "maps", "--size", "64"),
    ]
    assert {str(words[0]) for words in commands} | set(NOT_HERE) == set(VERBS)
    words = json.dumps([[str(word) for word in command] for command in commands])
    ended = subprocess.run(
        [sys.executable, "-c", COMMANDS, words], env=guarded, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    said = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('["')]
    assert [one[:2] for one in said] == [[str(command[0]), 0] for command in commands], said
    assert (tmp_path / "noted").read_text() == ""
    record_property("cases", len(commands))


def test_the_viewer_listens_to_this_machine_alone(guarded: dict[str, str], tmp_path: Path) -> None:
    from marble.synthetic.cohort import write_cohort

    _, store = write_cohort(tmp_path, "burden", 4)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "marble", "view", str(store.root), "--port", str(port)]
    server = subprocess.Popen(command, env=guarded, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while server.poll() is None and not _answers(port):
            time.sleep(0.1)
        assert server.poll() is None
    finally:
        server.terminate()
        server.wait(60)
    noted = set((tmp_path / "noted").read_text().split("\n")) - {""}
    assert noted
    assert all(line.endswith(" 127.0.0.1") for line in noted), noted


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
