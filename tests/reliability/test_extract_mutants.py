"""Two hundred damaged slides among ten good ones: the batch ends, each has a status, the good bags are untouched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from marble.compute import Processes
from marble.extract import BatchFacts, Machine, extract_many
from marble.files import sha256_file
from marble.synthetic.slides import write_slide
from tests.extract.making import spec_of, tree
from tests.extract.mutants import mutated
from tests.reliability.scale import scaled

ONE_THREAD = Machine(threads=1)
EACH = scaled(200) // 10  # of every good slide


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    folder = tmp_path_factory.mktemp("mutants")
    good = [write_slide(folder / f"good-{i}.tiff", (1024, 768), mpp=0.5, seed=i, pieces=1) for i in range(10)]
    bad = [path for i in range(10) for path in mutated(good[i], folder / f"bad{i}", count=EACH, seed=i)]
    renamed = [path.rename(path.with_name(f"{path.parent.name}-{path.name}")) for path in bad]
    return good, renamed


@pytest.mark.reliability
@pytest.mark.timeout(3600)
def test_two_hundred_mutants_and_ten_good_slides(
    slides: tuple[list[Path], list[Path]], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    good, bad = slides
    assert len(bad) == 10 * EACH
    assert extract_many(good, spec_of(), tmp_path / "clean", machine=ONE_THREAD).ok
    mixed = [path for i, one in enumerate(good) for path in (*bad[EACH * i : EACH * i + EACH], one)]
    summary = extract_many(
        mixed, spec_of(), tmp_path / "mixed", executor=Processes(2, timeout_s=60), machine=ONE_THREAD
    )
    assert len(summary.outcomes) == len(mixed) == len(bad) + 10
    assert not summary.ok
    for outcome in summary.outcomes:
        assert outcome.status == "ok" or (outcome.stage and outcome.reason), outcome
    after = {name: digest for name, digest in tree(tmp_path / "mixed").items() if "bad" not in name}
    assert after == tree(tmp_path / "clean")
    record_property("cases", len(bad))


@pytest.mark.reliability
@pytest.mark.timeout(3600)
def test_a_manifest_refuses_every_mutant_before_it_is_decoded(
    slides: tuple[list[Path], list[Path]], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    good, bad = slides
    manifest = tmp_path / "manifest.csv"
    originals = {f"bad{i}": sha256_file(one) for i, one in enumerate(good)}
    lines = [f"{originals[path.name.split('-')[0]]},{path.name}" for path in bad]
    manifest.write_text("sha256,file\n" + "\n".join(lines) + "\n")
    summary = extract_many(bad, spec_of(), tmp_path / "bags", facts=BatchFacts(manifest=manifest))
    changed = [path for path in bad if sha256_file(path) != originals[path.name.split("-")[0]]]
    refused = [outcome.path for outcome in summary.outcomes if outcome.stage == "verify" and outcome.status == "failed"]
    assert refused == changed
    assert len(changed) >= 0.9 * len(bad)  # a zeroed block may have been zero before
    record_property("cases", len(changed))
