"""Neither the labels nor the bags of test patients have a say in weights, history or calibration."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from marble import files
from marble.bags.store import BagStore
from marble.errors import MarbleError
from marble.training.run import PlannedRun, execute
from marble.training.run_folder import RunFolder
from tests.reliability.scale import scaled
from tests.training.jobs import plan

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(3600)]
THRESHOLD = '[{ name = "abmil", hidden = 16, attention_dim = 8 }]'


def chosen(planned: PlannedRun) -> dict[str, bytes]:
    """Everything that is decided before the test patients are looked at."""
    return {name: (Path(planned.folder) / name).read_bytes() for name in ("model.safetensors", "history.csv")}


def noise_for_labels(planned: PlannedRun, seed: int) -> None:
    held_out = json.loads(Path(planned.test).read_text())
    rng = random.Random(seed)
    for case in held_out["cases"]:
        case["target"]["label"] = rng.choice(["negative", "positive"])
    files.publish_json(planned.test, held_out)


def without_bags(planned: PlannedRun) -> None:
    store = BagStore(planned.job.store)
    for case in json.loads(Path(planned.test).read_text())["cases"]:
        for slide in case["slides"]:
            store.bag_path(slide).unlink()
            store.record_path(slide).unlink()


def test_noise_for_test_labels_and_deleted_test_bags_change_nothing_that_is_chosen(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    times = scaled(5)
    honest = plan(tmp_path / "honest", models=THRESHOLD)[0]
    execute(honest)
    expected, record = chosen(honest), RunFolder.open(honest.folder).record
    for seed in range(times):
        noisy = plan(tmp_path / f"noisy-{seed}", models=THRESHOLD)[0]
        noise_for_labels(noisy, seed)
        execute(noisy)
        other = RunFolder.open(noisy.folder).record
        assert chosen(noisy) == expected
        assert (other["calibration"], other["fit"]) == (record["calibration"], record["fit"])

        bare = plan(tmp_path / f"bare-{seed}", models=THRESHOLD)[0]
        without_bags(bare)
        with pytest.raises(MarbleError, match="no bag of slide"):  # only when the test patients' turn comes
            execute(bare)
        assert chosen(bare) == expected
        assert not (Path(bare.folder) / "run.json").exists()
    record_property("cases", 2 * times)
