"""Whatever is wrong, the user gets one line that says what, where and what next, and an exit code that scripts know."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import marble.cli
from marble.cli.outcomes import Stopped, outcome_of
from marble.errors import InputError
from tests.cli import running
from tests.cli.commands import READS, WRITES, arguments, loaded_by
from tests.cli.commands import marble as run

HEAVY = {"torch", "matplotlib", "sklearn", "scipy", "cv2", "numpy", "rich.markdown", "rich.progress"}


def _one_line(text: str) -> str:
    assert "Traceback" not in text
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    return lines[0]


def test_a_missing_path_is_one_line_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    ended, modules = loaded_by([arguments(verb, tmp_path / "none", tmp_path / "out") for verb in READS])
    for verb, done in zip(READS, ended, strict=True):
        assert done.code == 2, verb
        line = _one_line(done.err)
        assert line.startswith(f"error: {tmp_path / 'none'}: no such "), line
        assert line.count(str(tmp_path / "none")) == 1  # said once
    assert not modules & HEAVY
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_is_one_line_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "given").write_text("a = 1\n")
    (tmp_path / "folder").mkdir()
    reads_files = ("split", "run", "import-checkpoint", "bench")
    commands = [
        arguments(verb, tmp_path / ("given" if verb in reads_files else "folder"), tmp_path / "file" / "out")
        for verb in WRITES
    ]
    ended, modules = loaded_by(commands)
    for verb, done in zip(WRITES, ended, strict=True):
        assert done.code == 2, verb
        line = _one_line(done.err)
        assert f"{tmp_path / 'file'}: this is a file, not a folder" in line
        assert "Choose another --" in line
    assert not modules & HEAVY


@pytest.mark.parametrize("verb", READS)
def test_an_empty_file_is_one_line(verb: str, tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_bytes(b"")
    done = run(*arguments(verb, tmp_path / "empty.toml", tmp_path / "out"))
    assert done.code in (1, 2)
    line = _one_line(done.err)
    assert "empty.toml" in line
    assert not line.startswith("this is a bug")


@pytest.mark.parametrize("verb", READS)
def test_an_empty_folder_is_one_line(verb: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    done = run(*arguments(verb, tmp_path / "folder", tmp_path / "out"))
    assert done.code == 2
    assert _one_line(done.err).startswith("error: ")


@pytest.mark.parametrize("verb", READS)
def test_a_file_of_the_wrong_kind_is_one_line(verb: str, tmp_path: Path) -> None:
    (tmp_path / "noise.bin").write_bytes(bytes(range(256)) * 8)
    done = run(*arguments(verb, tmp_path / "noise.bin", tmp_path / "out"))
    assert done.code in (1, 2)
    line = _one_line(done.err)
    assert not line.startswith("this is a bug")
    assert "noise.bin" in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("extrat",), "No such command 'extrat'"),
        (("extrat",), "'export'? See `marble --help`"),
        (("extract",), "Missing argument 'sources'. See `marble extract --help`"),
        (("extract", ".", "--store", "s", "--workers", "two"), "Invalid value for '--workers'"),
        (("extract", ".", "--store", "s", "--wrokers", "2"), "No such option: --wrokers"),
        (("extract", ".", "--store", "s", "--magnifications", "0,10"), "magnifications and mpps must be positive"),
        (("extract", ".", "--store", "s", "--magnifications", "nan"), "finite number"),
        (("extract", ".", "--store", "s", "--magnifications", "5,20", "--set", "tisue.x=1"), "did you mean 'tissue'?"),
        (("extract", ".", "--store", "s", "--magnifications", "5,20", "--set", "batch"), "is not KEY=VALUE"),
        (("extract", ".", "--store", "s", "--magnifications", "5", "--weights", "a"), "is not ENCODER=FILE"),
        (("extract", ".", "--store", "s", "--magnifications", "5", "--mpp", "2"), "and not both"),
        (("import", "--level", "ten", "--store", "s"), "ten"),
        (("bench", "modle"), "did you mean 'model'?"),
        (("bench", "recipe", "--no-peers"), "`bench recipe` does not look at --no-peers"),
        (("bench", "recipe", "--strengths", "weak"), "`bench recipe` does not look at --strengths"),
        (("bench", "orders", "--seeds", "0"), "`bench orders` does not look at --seeds"),
        (("bench", "model", "--data", "."), "`bench model` does not look at --data"),
        (("bench", "train", "--out", "o"), "`bench train` does not look at --out"),
        (("bench", "zoo", "--slide", "slide.svs"), "`bench zoo` does not look at --slide"),
        (("bench", "mixers", "--signals", "survival"), "`bench mixers` does not look at --signals"),
    ],
)
def test_arguments_of_the_wrong_kind(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.code == 2
    assert says in _one_line(done.err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "no space left on this disk"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.ENOTDIR, "is a file, not a folder"),
        (errno.EISDIR, "this is a folder"),
    ],
)
def test_what_the_system_refuses_names_the_file_and_the_next_step(
    number: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "bags"))

    monkeypatch.setattr("marble.verify.verify_path", refuse)
    done = run("verify", tmp_path)
    assert done.code == 2
    line = _one_line(done.err)
    assert line.startswith(f"error: {tmp_path / 'bags'}: ")
    assert says in line
    assert not line.endswith(says)  # a next step follows


def test_no_memory_and_bugs_are_one_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: BaseException) -> None:
        def raising(*_: object) -> None:
            raise error

        monkeypatch.setattr("marble.verify.verify_path", raising)

    fail(MemoryError())
    assert _one_line(run("verify", tmp_path).err).startswith("error: not enough memory. Use fewer workers")
    fail(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried\n1000 bytes"))
    assert _one_line(run("verify", tmp_path).err).startswith("error: not enough memory")
    fail(ZeroDivisionError("division\nby zero"))
    done = run("verify", tmp_path)
    assert done.code == 3
    assert _one_line(done.err).startswith("this is a bug in MARBLE: ZeroDivisionError: division by zero. Please report")
    assert "MARBLE_DEBUG=1" in done.err
    monkeypatch.setenv("MARBLE_DEBUG", "1")
    assert "Traceback" in run("verify", tmp_path).err


def test_stopping_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("3 of 5 are done and kept")

    monkeypatch.setattr("marble.verify.verify_path", stop)
    done = run("verify", tmp_path)
    assert done.code == 130
    assert _one_line(done.err) == "stopped; 3 of 5 are done and kept; start the same command again to go on"
    assert outcome_of(Stopped()) == ("stopped; start the same command again to go on", 130)


@pytest.mark.parametrize("place", ["marble.cli._refuse_old_packages", "marble.cli._Verbs.make_context"])
def test_stopping_before_the_verb_begins_is_one_line_too(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, stop)
    done = run("verify", tmp_path)
    assert (done.code, _one_line(done.err)) == (130, "stopped; start the same command again to go on")


STOPPED_WHILE_LOADED = """
import runpy, sys
class Stop:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
runpy.run_module("marble", run_name="__main__", alter_sys=True)
"""


def test_stopping_while_the_command_line_is_loaded_is_one_line_too() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED_WHILE_LOADED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "stopped; start the same command again to go on\n")


# Children of a shell's background job are deaf to SIGINT, and so would be what the tests start.
WAITS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from marble.cli import main, paths
def wait(path):
    print("waiting", flush=True)
    time.sleep(600)
paths.existing_folder = wait
main(["verify", sys.argv[1]])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_with_one_line(number: int, code: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == code
    assert _one_line(err) == "stopped; start the same command again to go on"


def test_help_loads_nothing_heavy_and_lists_every_verb() -> None:
    ended, modules = loaded_by([["--help"], [], *([verb, "--help"] for verb in marble.cli.VERBS)])
    assert all((done.code, done.err) == (0, "") for done in ended)
    assert not modules & HEAVY
    assert all(verb in run("--help").out for verb in marble.cli.VERBS)


def test_our_own_errors_keep_their_text() -> None:
    line, code = outcome_of(InputError("two\nlines", where="a.csv, row 3", hint="Mend it"))
    assert (line, code) == ("error: a.csv, row 3: two lines. Mend it", 2)


#: flags that say something only beside another one
LONELY = [
    (("doctor", "--json", "figures.json"), "--json", "--gpu"),
    (("doctor", "--device", "cuda"), "--device", "--gpu"),
    (("doctor", "--quick"), "--quick", "--gpu"),
    (("plan", ".", "--magnifications", "10", "--core-hour", "3"), "--core-hour", "--ray"),
    (("plan", ".", "--magnifications", "10", "--workers", "2"), "--workers", "--ray"),
    (("extract", ".", "--store", "s", "--magnifications", "10", "--worker-gpus", "1"), "--worker-gpus", "--ray"),
    (("predict", ".", ".", "--worker-cpus", "2"), "--worker-cpus", "--ray"),
    (("import", "--level", "10:.", "--store", "s", "--worker-cpus", "2"), "--worker-cpus", "--ray"),
    (("split", "--check", ".", "--label", "stage"), "--label", "a cohort table"),
    (("split", "--check", ".", "--scored-by", "slide"), "--scored-by", "a cohort table"),
]
#: flags about slides, asked about a bag
UNPREPARED = [
    (("--weights", "lite0=."), "--weights"),
    (("--mpp", "0.5"), "--mpp"),
    (("--outlines", "."), "--outlines"),
    (("--spec", "extract.toml"), "--spec"),
]
#: flags that say something only without another one
BESIDE = [
    (("split", "--check", ".", "--out", "splits"), "--out", "--check"),
    (("split", "--check", ".", "--folds", "4"), "--folds", "--check"),
    (("split", "--check", ".", "--seed", "1"), "--seed", "--check"),
    (("heatmap", ".", "S1", "--store", ".", "--mpp", "0.5"), "--mpp", "--store"),
    (("heatmap", ".", "S1", "--store", ".", "--spec", "extract.toml"), "--spec", "--store"),
]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(
            (given, f"{flag} says nothing without {other}. Give {other} too, or leave {flag} out")
            for given, flag, other in LONELY
        ),
        *(
            (given, f"{flag} says nothing beside {other}. Leave out one of {flag} and {other}")
            for given, flag, other in BESIDE
        ),
    ],
)
def test_a_flag_that_would_not_be_heard_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = running.marble(*given)
    assert (ended.code, ended.output) == (2, f"error: {said}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("verb", "flags", "flag"),
    [
        *((verb, flags, flag) for verb in ("predict", "heatmap") for flags, flag in UNPREPARED),
        ("predict", ("--pseudonyms", "map.csv"), "--pseudonyms"),
    ],
)
@pytest.mark.parametrize("source", ["S1.safetensors", "store", "stores"])
def test_a_flag_about_slides_is_refused_where_there_are_bags_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, flags: tuple[str, ...], flag: str, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "S1.safetensors").write_bytes(b"bag")
    for store in ("store", "stores/one"):
        (tmp_path / store).mkdir(parents=True)
        (tmp_path / store / "store.json").write_text("{}")
    ended = running.marble(verb, ".", source, *flags)
    said = f"error: {flag} says nothing without a slide file. Give a slide file too, or leave {flag} out\n"
    assert (ended.code, ended.output) == (2, said)
    assert not (tmp_path / "map.csv").exists()
