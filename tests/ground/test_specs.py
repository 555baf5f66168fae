"""Specs: strict, frozen, fingerprinted over every field, TOML both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from marble.errors import SpecError
from marble.specs import Spec, canonical_json, unknown_choice


class Inner(Spec):
    size: int = 3


class Needs(Spec):
    name: str


class Outer(Spec):
    name: str = "x"
    ratio: float = 0.5
    on: bool = True
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()
    maybe: float | None = None
    either: str | Inner = "x"
    needs: tuple[Needs, ...] = ()


def test_every_field_changes_the_fingerprint() -> None:
    base = Outer()
    others = [
        Outer(name="y"),
        Outer(ratio=0.25),
        Outer(on=False),
        Outer(inner=Inner(size=4)),
        Outer(many=(Inner(),)),
        Outer(maybe=1.0),
        Outer(either="y"),
        Outer(needs=(Needs(name="x"),)),
    ]
    prints = {spec.fingerprint() for spec in [base, *others]}
    assert len(prints) == len(others) + 1
    assert base.fingerprint() == Outer().fingerprint()


def test_specs_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Outer().name = "other"


@settings(max_examples=50, deadline=None)
@given(
    name=st.text(max_size=20),
    ratio=st.floats(allow_nan=False, allow_infinity=False),
    on=st.booleans(),
    sizes=st.lists(st.integers(-(2**40), 2**40), max_size=3),
)
def test_toml_round_trip(
    tmp_path_factory: pytest.TempPathFactory, name: str, ratio: float, on: bool, sizes: list[int]
) -> None:
    spec = Outer(name=name, ratio=ratio, on=on, many=tuple(Inner(size=size) for size in sizes))
    path = tmp_path_factory.mktemp("toml") / "a.toml"
    path.write_bytes(spec.to_toml().encode())
    assert Outer.from_toml(path) == spec


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "nam = 'x'",
            r"unknown key 'nam'; did you mean 'name'\? Valid: either, inner, many, maybe, name, needs, on, ratio",
        ),
        ("[inner]\nsiz = 1", r"inner\.siz: unknown key 'siz'; did you mean 'size'\? Valid: size"),
        ("[[many]]\nsiz = 1", r"many\.0\.siz: unknown key 'siz'"),
        ("ratio = 'high'", r"field 'ratio': .* \(got 'high'\)"),
        ("ratio = nan", r"field 'ratio'"),
        ("on = true\nratio = !", r"not valid TOML: .*line 2"),
        ("either = { siz = 1 }", r"either\.siz: unknown key 'siz'; did you mean 'size'\? Valid: size$"),
        ("either = 3", r"field 'either': .* \(got 3\)$"),
        ("ratio = [1, 2, 3]", r"\(got a list of 3\)$"),
        ("ratio = { a = 1 }", r"\(got a table\)$"),
        (f"ratio = '{'x' * 500}'", r"\(got 'x{56}\.\.\.\)$"),
        ("[[needs]]\nnam = 1", r"needs\.0\.nam: unknown key 'nam'; did you mean 'name'\?"),
        ("[[needs]]", r"key 'needs\.0\.name' is missing$"),
    ],
)
def test_faults_name_file_and_field(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=says) as caught:
        Outer.from_toml(path)
    assert str(path) in str(caught.value)


def test_a_misspelt_key_is_named_before_the_one_it_was_meant_to_be(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^unknown key 'nmae'; did you mean 'name'\? Valid: name$"):
        Needs.parse({"nmae": "x"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.toml: no such file"):
        Outer.from_toml(tmp_path / "none.toml")


def test_canonical_json_refuses_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))


def test_unknown_choice_without_a_near_match() -> None:
    assert unknown_choice("model", "zzz", ["abmil", "clam-sb"]) == "unknown model 'zzz'. Valid: abmil, clam-sb"
