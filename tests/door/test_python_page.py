"""The page for users of Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from marble.bags.store import BagStore
from tests.door.making import two_classes

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "python.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bags, labels = two_classes(18)
    rows = ["slide_id,case_id,label"]
    for number, (bag, label) in enumerate(zip(bags, labels, strict=True)):
        BagStore("bags").save(bag)
        rows.append(f"{bag.slide_id},P{number:02d},{label}")
    Path("cohort.csv").write_text("\n".join(rows))
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["answer"].label in ("benign", "tumour")
    assert list(names["tiles"]) == ["level", "row", "col", "x", "y", "size", "attention"]
    assert Path("why.png").stat().st_size > 1000
    assert Path("my-run").is_dir()
    assert set(names["search"].best_params_) == {"drop_rate"}
