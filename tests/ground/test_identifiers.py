"""Every name has one form, whatever bytes a program wrote it in."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.identifiers import EXTENSIONS, normal, slide_id_of, spelling_key

COMPOSED, DECOMPOSED = unicodedata.normalize("NFC", "Jos\u00e9"), unicodedata.normalize("NFD", "Jos\u00e9")


@pytest.mark.parametrize(
    "written",
    [
        DECOMPOSED, f" {COMPOSED}\t", f"\u00a0{COMPOSED}", f"\ufeff{COMPOSED}", "Jo\u200bs\u00e9", f"\u202e{COMPOSED}",
        f"{DECOMPOSED}\u200d", "Jos\u00ad\u00e9", f"{COMPOSED}\u2003",
    ],
)  # fmt: skip
def test_one_form_for_one_name(written: str) -> None:
    assert normal(written) == COMPOSED


def test_a_blank_inside_is_kept_and_plain() -> None:
    assert normal("Doe,\u00a0J") == "Doe, J"
    assert normal("NA") == "NA"
    assert normal("001") == "001"


@given(st.text(max_size=30))
@settings(max_examples=300, derandomize=True)
def test_the_normal_form_is_normal(text: str) -> None:
    assert normal(normal(text)) == normal(text)
    assert spelling_key(normal(text)) == spelling_key(text)
    assert slide_id_of(f"{text}x.svs") == slide_id_of(f"{text}x.SVS")


@pytest.mark.parametrize("ending", EXTENSIONS)
def test_every_known_extension_is_taken_off_whole(ending: str) -> None:
    for name in (f"a.b{ending}", f"folder/a.b{ending.upper()}", Path("folder") / f"a.b{ending}", f"C:\\x\\a.b{ending}"):
        assert slide_id_of(name) == "a.b"
    assert slide_id_of(ending)  # a name is never empty


def test_extensions_stand_longest_first() -> None:
    for i, ending in enumerate(EXTENSIONS):
        assert not any(ending.endswith(before) for before in EXTENSIONS[:i])


@pytest.mark.parametrize(
    ("one", "other"),
    [("P\u20131", "p-1"), ("Pat  1", "PAT 1"), (COMPOSED.upper(), DECOMPOSED), ("\uff301", "P1"), ("a.svs", "A")],
)
def test_spellings_of_one_patient(one: str, other: str) -> None:
    assert spelling_key(one) == spelling_key(other)


@pytest.mark.parametrize(("one", "other"), [("001", "1"), ("P1", "P10"), ("P-1", "P1"), ("a b", "ab")])
def test_names_of_two_patients(one: str, other: str) -> None:
    assert spelling_key(one) != spelling_key(other)
