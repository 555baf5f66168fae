"""A flag of one value that is given again is refused by name, in every verb; flags that take many take many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from marble.cli import VERBS, assemble
from tests.cli.commands import arguments, marble


def _flags_of_one_value() -> Iterator[tuple[str, str, bool]]:
    """(verb, flag, whether a value follows) of every option that does not take many."""
    group = typer.main.get_command(assemble())
    for verb, command in group.commands.items():  # type: ignore[attr-defined]
        for option in command.params:
            if option.param_type_name == "option" and not option.multiple and not option.is_eager:
                yield verb, option.opts[0], not option.is_flag


FLAGS = list(_flags_of_one_value())
assert {verb for verb, _, _ in FLAGS} == set(VERBS) - {"verify"}


@pytest.mark.parametrize(("verb", "flag", "takes_value"), FLAGS)
def test_a_flag_given_twice_is_refused_by_name(
    verb: str, flag: str, takes_value: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = arguments(verb, tmp_path, tmp_path / "out")
    at = [place for place, word in enumerate(words) if word == flag]
    given = [flag, "1"] if takes_value else [flag]  # even the same value: nobody means to say it twice
    done = marble(*words, *given * (2 - len(at)))
    assert done.code == 2
    assert done.err.startswith(f"error: {flag}"), done.err
    assert done.err.endswith(" is given twice. Give it once\n"), done.err
    assert not (tmp_path / "out").exists()


def test_two_spellings_of_one_flag_are_the_same_flag(tmp_path: Path) -> None:
    done = marble("bench", "model", "--peers", "--no-peers")
    assert done.err == "error: --peers / --no-peers is given twice. Give it once\n"
    done = marble("split", "--seed", 1, "--seed=2", "--seed", 3, tmp_path / "c.csv")
    assert done.err == "error: --seed is given 3 times. Give it once\n"


def test_help_answers_whatever_stands_beside_it() -> None:
    assert marble("split", "--seed", 1, "--seed", 2, "--help").code == 0


@pytest.mark.parametrize(
    "pairs",
    [
        ("batch=8", "batch=16"),
        ("batch=8", "batch=8"),
        ("pyramid.tile_px=64", "pyramid={tile_px=128}"),
        ("pyramid={tile_px=128, edge='pad'}", "pyramid.tile_px=128"),
    ],
)
def test_a_key_is_set_once(pairs: tuple[str, str], tmp_path: Path) -> None:
    words = ["extract", tmp_path, "--store", tmp_path / "bags", "--magnifications", "5,20"]
    done = marble(*words, *(word for pair in pairs for word in ("--set", pair)))
    key = "batch" if "batch" in pairs[0] else "pyramid.tile_px"
    assert (done.code, done.err) == (2, f"error: --set '{key}' is given twice. Give it once\n")


@pytest.mark.parametrize("pairs", [("pyramid=8", "pyramid.tile_px=64"), ("pyramid.tile_px=64", "pyramid=8")])
def test_a_key_is_not_set_whole_and_in_part(pairs: tuple[str, str], tmp_path: Path) -> None:
    words = ["extract", tmp_path, "--store", tmp_path / "bags", "--magnifications", "5,20"]
    done = marble(*words, *(word for pair in pairs for word in ("--set", pair)))
    said = "error: --set 'pyramid' and --set 'pyramid.tile_px' cannot both be. Give one of them\n"
    assert (done.code, done.err) == (2, said)


def test_weights_are_given_once_for_each_encoder(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"x")
    weights = ["--weights", f"lite0={tmp_path / 'w.safetensors'}"]
    done = marble("extract", tmp_path, "--store", tmp_path / "b", "--magnifications", "5,20", *weights, *weights)
    assert done.err == "error: --weights 'lite0' is given twice. Give it once\n"


def test_flags_that_take_many_take_many(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(
        "case_id,slide_id,label\n" + "".join(f"P{n},S{n},{'ab'[n % 2] if n < 40 else ''}\n" for n in range(44))
    )
    words = ["split", tmp_path / "c.csv", "--out", tmp_path / "splits", "--repeats", 1]
    done = marble(*words, "--drop", "missing", "--drop", "other", "--classes", "a,b")
    assert done.code == 0, done.err
