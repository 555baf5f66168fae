"""A file that is called like something else is said to be that, before anybody looks for pixels in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from marble.errors import InputError
from marble.identifiers import SLIDE_EXTENSIONS
from marble.slides.endings import refuse_other_kinds


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("labels.XLSX", "a table, not a slide"),
        ("experiment.toml", "settings, not a slide"),
        ("run.json", "a file of JSON, not a slide"),
        ("S1.h5", "a file of arrays, not a slide. .*marble import"),
        ("slides.tar.gz", "an archive, not a slide. Unpack it first"),
    ],
)
def test_what_cannot_be_a_slide_is_named(name: str, said: str) -> None:
    with pytest.raises(InputError, match=f"{name}: {said}"):
        refuse_other_kinds(Path("folder") / name)


@pytest.mark.parametrize("ending", [*SLIDE_EXTENSIONS, "", ".unheard-of"])
def test_whatever_else_may_be_one(ending: str) -> None:
    refuse_other_kinds(Path(f"S1{ending}"))
    refuse_other_kinds(Path(f"S1{ending.upper()}"))
