"""What is installed, as a CycloneDX bill of materials, read from the packages themselves; no connection is made."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from marble import files
from marble.version import VERSION

SPEC_VERSION = "1.5"


def write_sbom(path: str | Path) -> Path:
    """Publish the bill of materials of this environment; the same packages give the same bytes."""
    return files.publish_json(path, bill_of_materials(distributions()))


def bill_of_materials(installed: Any) -> dict[str, Any]:
    """CycloneDX JSON of the installed distributions, by name."""
    known = {_name(found): found for found in installed if found.metadata["Name"]}
    components = [_component(name, known[name]) for name in sorted(known)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "marble-wsi", "version": VERSION}},
        "components": components,
        "dependencies": [
            {"ref": _purl(name, known[name]), "dependsOn": _needs(known[name], known)} for name in sorted(known)
        ],
    }


def _component(name: str, found: Distribution) -> dict[str, Any]:
    purl = _purl(name, found)
    body: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": found.version, "purl": purl}
    if licence := _licence(found):
        body["licenses"] = [licence]
    return body


def _licence(found: Distribution) -> dict[str, Any] | None:
    """What the package says of its licence: an expression, a classifier, or the first line of its text."""
    about = found.metadata.json
    if expression := about.get("license_expression"):
        return {"expression": expression}
    classified = [text.rpartition(" :: ")[2] for text in about.get("classifier", ()) if "License ::" in text]
    text = classified[0] if classified else str(about.get("license", "")).strip().partition("\n")[0]
    return {"license": {"name": text}} if text else None


def _needs(found: Distribution, known: dict[str, Distribution]) -> list[str]:
    """Those of its requirements that are installed; what only an extra asks for is not one."""
    names = {
        _normal(re.split(r"[\s;\[<>=!~(]", need, maxsplit=1)[0])
        for need in found.requires or ()
        if "extra ==" not in need.partition(";")[2]
    }
    return [_purl(name, known[name]) for name in sorted(names & set(known))]


def _name(found: Distribution) -> str:
    return _normal(found.metadata["Name"])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _purl(name: str, found: Distribution) -> str:
    return f"pkg:pypi/{name}@{found.version}"
