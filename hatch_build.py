"""Compiles the kernels when the package is installed. Without a compiler the package installs all the same."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelBuildHook(BuildHookInterface):
    """Leaves `src/marble/native/kernels*.so` beside its sources; `marble doctor` says if they are there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        native = runpy.run_path(str(Path(self.root) / "src/marble/native/build.py"))
        reason = native["build"]()
        if reason is None:
            build_data["pure_python"] = False
            build_data["tag"] = native["wheel_tag"]()
            build_data["artifacts"].append("src/marble/native/kernels*.so")
        else:
            self.app.display_warning(f"kernels not compiled, the torch paths will be used: {reason}")
