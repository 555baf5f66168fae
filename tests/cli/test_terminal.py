"""What the terminal shows: tables that fit, lines that stay sparse, lengths of time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from marble.cli import terminal
from marble.synthetic.slides import write_slide
from tests.cli.commands import marble as run

HEADER = ["Model", "AUC", "Accuracy", "p (AUC)", "Recipe", "Parameters"]
ROWS = [
    ["marble", "0.812 ± 0.050 [0.710, 0.901]", "0.755 ± 0.031 [0.700, 0.800]", "reference", "common", "1,234,567"],
    [
        "abmil, a long name of a model",
        "0.790 ± 0.050 [0.690, 0.880]",
        "0.744 ± 0.020 [0.690, 0.790]",
        "0.041",
        "authors",
        "9",
    ],
]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_results_table_fits_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    terminal.console.cache_clear()
    terminal.results(HEADER, ROWS)
    terminal.console.cache_clear()
    out = capsys.readouterr().out
    lines = out.splitlines()
    table = [line for line in lines if not line.startswith("Not shown")]
    assert max(map(len, table)) <= width
    assert "|" not in out  # not raw markdown
    assert "0.812 ± 0.050" in out
    assert "[0.710, 0.901]" in out
    assert any("abmil, a long name of a model" in line for line in table)  # no cell is folded
    hidden = [name for name in HEADER if not any(name.split(" (")[0] in line for line in table)]
    if hidden:
        assert f"Not shown for want of room: {', '.join(hidden)}" in out
    assert bool(hidden) == (width < 100)


def test_an_answer_of_many_columns_is_cut_not_squeezed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal.console.cache_clear()
    header = ["slide_id", "part", "risk", "survival_at_0.49045", "survival_at_0.6377", "survival_at_2.0912", "order_sd"]
    terminal.results(header, [["S1", "new", -0.61994, 0.87271, 0.66334, 0.4598, 0.02754]], rest="--out FILE.csv")
    terminal.console.cache_clear()
    heading, _, row, *_, rest = capsys.readouterr().out.strip().splitlines()
    assert heading.split() == header[:5]
    assert row.split() == ["S1", "new", "-0.6199", "0.8727", "0.6633"]
    assert rest == "Not shown for want of room: survival_at_2.0912, order_sd; --out FILE.csv"


def test_a_long_item_says_where_it_is_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    bar = terminal._Lines("extracting", 3, clock=lambda: now[0])
    for second in range(70):
        now[0] = float(second)
        bar.within(second, 70, f"a: {second} of 70 tiles")
    bar("a: ok")
    assert capsys.readouterr().out.splitlines() == [
        "[0/3] under way: a: 30 of 70 tiles",
        "[0/3] under way: a: 60 of 70 tiles",
        "[1/3] a: ok",
    ]


def test_extract_says_how_far_a_slide_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the command: what a worker tells of its tiles reaches the line of its slide."""
    monkeypatch.setattr(terminal, "QUIET_S", 0)
    write_slide(tmp_path / "a.tiff", (1536, 1280), mpp=0.5, seed=1)
    words = ("--magnifications", "5,20", "--encoder", "colour", "--batch", 8)
    ended = run("extract", tmp_path / "a.tiff", "--store", tmp_path / "bags", *words)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    done = [
        int(found[1]) for line in lines if (found := re.search(r"^\[0/1\] under way: a: (\d+) of \d+ tiles, ", line))
    ]
    assert len(done) > 2
    assert done == sorted(done)
    assert any(line.startswith("[1/1] a: ok, ") for line in lines)


def test_progress_says_what_is_kept_when_it_is_stopped() -> None:
    def stopped() -> None:
        with terminal.progress("extracting", 3) as bar:
            bar("a: ok")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="1 of 3 are done and kept"):
        stopped()


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(0, "0 s"), (59.4, "59 s"), (61, "1 min 01 s"), (3700, "1 h 01 min"), (float("inf"), "?"), (float("nan"), "?")],
)
def test_lengths_of_time(seconds: float, says: str) -> None:
    assert terminal.duration(seconds) == says


def test_an_item_is_named_once() -> None:
    assert terminal.blamed("a/b.svs", "a/b.svs: no\nsuch file") == "a/b.svs: no such file"
    assert terminal.blamed("a/b.svs", "no such file") == "a/b.svs: no such file"
    assert terminal.blamed("a/b.svs", "b.svs: no such file") == "a/b.svs: no such file"
    assert terminal.blamed("a/b.tif", "also that of a/b.tiff; rename it") == "a/b.tif: also that of a/b.tiff; rename it"
    assert terminal.blamed("a/b.tif", "cannot write a/b.tif. Choose another") == "cannot write a/b.tif. Choose another"
    assert terminal.blamed("8", "tokens are 8 wide") == "8: tokens are 8 wide"  # an id that is a word of the sentence
    assert terminal.blamed("a", "a: made in a store") == "a: made in a store"
    assert terminal.blamed("a", "no bag of slide 'a' here") == "no bag of slide 'a' here"


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "0.977 KiB"), (48_216, "47.1 KiB"), (5 << 20, "5 MiB"),
     (1000 << 20, "0.977 GiB"), (123 << 30, "123 GiB"), (5000 << 40, "5e+03 TiB")],
)  # fmt: skip
def test_sizes_have_the_unit_that_fits(count: int, said: str) -> None:
    assert terminal.size(count) == said


def test_colours_that_are_forced_draw_nothing_that_moves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    terminal.console.cache_clear()
    with terminal.progress("extracting", 2) as bar:
        bar("a: ok")
        bar("b: ok")
    terminal.console.cache_clear()
    assert capsys.readouterr().out.splitlines() == ["[1/2] a: ok", "[2/2] b: ok"]
