"""`RunFolder`: a finished run, opened for use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marble import files, storage
from marble.bags.provenance import Provenance
from marble.devices import choose
from marble.errors import RunError
from marble.models import BagModel
from marble.models.committee import build_members
from marble.tasks.base import Task
from marble.training.fit import load_chosen
from marble.training.job import TaskSpec
from marble.training.membership import Members
from marble.training.results import read_run


@dataclass(frozen=True)
class RunFolder:
    """The folder of a finished run, its record checked."""

    folder: Path
    record: dict[str, Any]

    @staticmethod
    def open(folder: str | Path) -> RunFolder:
        root = storage.location(folder)
        storage.pull(root)
        return RunFolder(root, read_run(root))

    @property
    def task(self) -> Task:
        return TaskSpec.parse(self.record["task"], where=self.folder / "run.json").build()

    @property
    def calibration(self) -> dict[str, Any]:
        """What turns logits into readouts and decisions; never chosen on test patients."""
        found: dict[str, Any] = self.record["calibration"]
        return found

    @property
    def members(self) -> Members:
        """Which slides were in which part."""
        return Members(self.record["parts"])

    @property
    def provenance(self) -> Provenance:
        """How the bags were made that this run was trained on."""
        return Provenance.parse(self.record["bags"], where=self.folder / "run.json")

    def model(self, device: str = "cpu") -> BagModel:
        """The chosen model, in evaluation mode, on a device that `devices.choose` knows."""
        about = self.record["model"]
        members = about.get("members", 1)  # runs of before had one
        model = build_members(about["name"], about["dim"], self.task.outputs, about["options"], members)
        if files.read_json(self.folder / "fit.json")["model_sha256"] != self.record["sha256"]["model"]:
            raise RunError("fit.json belongs to another fit than run.json", where=self.folder, hint="Run it again")
        load_chosen(model, self.folder)
        return model.to(choose(device)).eval()
