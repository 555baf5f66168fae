"""What a reader must know before the numbers: data, features, splits, recipes, software, hours."""

from __future__ import annotations

from typing import Any

from marble.magnification import mpp_at
from marble.reports.collect import Results


def setup_rows(results: Results) -> list[tuple[str, str]]:
    """(what, value), from the runs' own records."""
    records = [repeat.record for model in results.models for repeat in model.repeats]
    first = records[0]
    counts = results.accounting()
    rows = [
        ("Task", _task(results)),
        ("Slides", f"{counts['used']} used of {counts['in']}"),
        ("Encoder", ", ".join(dict.fromkeys(_encoder(one) for one in first["bags"].get("encoders", ()))) or "unknown"),
        ("Levels", ", ".join(_level(one) for one in first["bags"].get("levels", ())) or "unknown"),
        ("Features made by", str(first["bags"].get("source", "unknown"))),
        ("Splits", _splits(results)),
        ("Recipes", "; ".join(f"{model.key}: {model.record['model']['recipe']}" for model in results.models)),
        ("Versions", "; ".join(dict.fromkeys(_versions(record) for record in records))),
        ("Training time", _hours(sum(float(record["seconds"]) for record in records), len(records))),
    ]
    return [(name, text) for name, text in rows if text]


def _task(results: Results) -> str:
    names = results.task.class_names
    return results.task.name + (f" of {', '.join(names)}" if names else "")


def _encoder(encoder: dict[str, Any]) -> str:
    sha = encoder.get("weights_sha256")
    weights = f", weights {sha[:12]}" if sha else ""
    return f"{encoder['name']} ({encoder['dim']} numbers per tile, {encoder['input_px']} px{weights})"


def _level(level: dict[str, Any]) -> str:
    return f"{level['magnification']:g}x ({mpp_at(level['magnification']):g} µm/px, tiles of {level['tile_px']} px)"


def _splits(results: Results) -> str:
    repeats = results.models[0].repeats
    count = f"{len(repeats)} repeat{'' if len(repeats) == 1 else 's'}"
    return f"{repeats[0].record['about']['scheme']}, {count}, by patient; {_sizes(results)}"


def _sizes(results: Results) -> str:
    """How many cases each part has, over the repeats."""
    words = []
    for part, name in (("train", "training"), ("val", "validation"), ("test", "test")):
        found = {_cases(repeat.record["parts"].get(part, {})) for repeat in results.models[0].repeats}
        low, high = min(found), max(found)
        words.append(f"{low if low == high else f'{low} to {high}'} {name}")
    return ", ".join(words) + " cases"


def _cases(slides: dict[str, dict[str, Any]]) -> int:
    return len({entry["case_id"] for entry in slides.values()})


def _versions(record: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in record["versions"].items())


def _hours(seconds: float, runs: int) -> str:
    text = f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.1f} minutes"
    return f"{text} for {runs} run{'' if runs == 1 else 's'}"
