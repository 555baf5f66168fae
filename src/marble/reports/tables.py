"""The results table as CSV, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from marble.cohorts.again import drawn_again
from marble.reports.collect import ModelResults, Repeat, Results
from marble.reports.compare import Cell, Comparison, ModelRow
from marble.reports.statistics import UNDEFINED_LIMIT
from marble.tabular import csv_text, markdown_cell, safe_cell
from marble.tasks.metric import Undefined

#: characters that LaTeX takes for commands, or shows as others in text
_TEX = {
    "\\": "\\textbackslash{}", "&": "\\&", "%": "\\%", "_": "\\_", "#": "\\#", "$": "\\$", "{": "\\{", "}": "\\}",
    "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "<": "$<$", ">": "$>$",
}  # fmt: skip

NAMED = 8  # runs of earlier settings that are named one by one
MENTIONED = 0.05  # share of repeats without a value in the samples behind an interval


def rows_csv(rows: Sequence[dict[str, Any]]) -> str:
    """CSV of all keys; floats keep every digit, and no cell can start a spreadsheet formula."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return csv_text(keys, [[_cell(row.get(key, "")) for key in keys] for row in rows])


def _cell(value: Any) -> str:
    return repr(value) if isinstance(value, float) else safe_cell(str(value))


def table_csv(comparison: Comparison) -> str:
    """All figures, one model per row."""
    rows = []
    for row in comparison.rows:
        record = row.model.record
        body: dict[str, Any] = {
            "model": row.model.key,
            "recipe": record["model"]["recipe"],
            "parameters": record["model"]["parameters"],
            "runs": len(row.model.repeats),
        }
        for name, cell in row.cells.items():
            body |= {name: _plain(cell.mean), f"{name}_sd": "" if cell.sd is None else cell.sd}
            body |= {f"{name}_low": "", f"{name}_high": ""}
            if cell.interval is not None:
                body |= {f"{name}_low": cell.interval.low, f"{name}_high": cell.interval.high}
        for name in comparison.tested:
            paired = row.tests.get(name)
            body |= {
                f"{name}_minus_reference": "" if paired is None else -paired.difference,
                f"{name}_p": "" if paired is None else paired.p,
                f"{name}_p_holm": "" if paired is None else row.corrected[name],
                f"{name}_test": "" if paired is None else paired.test,
            }
        for name, value in record["about"]["paper"].items():
            body[f"{name}_in_paper"] = value
        if leaks(comparison):
            body["leaks"] = "LEAKY"
        body["run_ids"] = " ".join(repeat.record["job"] for repeat in row.model.repeats)
        rows.append(body)
    return rows_csv(rows)


def table_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Header and cells as a reader wants them: mean ± SD [95 % interval], p against the reference."""
    results = comparison.results
    names = results.task.metric_names
    shown = [name for name in results.metric_names if name in names]
    paper = [name for name in shown if any(name in row.model.record["about"]["paper"] for row in comparison.rows)]
    header = ["Model", *(names[name] for name in shown)]
    header += [f"p ({names[name]})" for name in comparison.tested]
    header += [f"{names[name]} in paper (quoted)" for name in paper] + ["Recipe", "Parameters"]
    body = []
    for row in comparison.rows:
        cells = [cell_text(row.cells[name]) for name in shown]
        tests = [_p_text(row, name, results.reference) for name in comparison.tested]
        quoted = [f"{row.model.record['about']['paper'][name]:g}" if name in row.model.record["about"]["paper"] else ""
                  for name in paper]  # fmt: skip
        model = row.model.record["model"]
        body.append([row.model.key, *cells, *tests, *quoted, _recipe(model), f"{model['parameters']:,}"])
    return header, body


def _recipe(model: dict[str, Any]) -> str:
    """How a model was trained: the recipe's name, and what it saw or had beside it that a reader should know."""
    also = {"standardised": "standardised", "linear_term": "linear term"}
    members = [f"{model['members']} networks"] if model.get("members", 1) > 1 else []
    return ", ".join([str(model["recipe"]), *(words for key, words in also.items() if model.get(key)), *members])


def table_markdown(comparison: Comparison) -> str:
    header, body = table_rows(comparison)
    lines = [header, ["---"] * len(header), *body]
    escaped = ["| " + " | ".join(map(markdown_cell, line)) + " |" for line in lines]
    return "\n".join(escaped) + "\n\n" + caption(comparison) + "\n"


def table_latex(comparison: Comparison) -> str:
    """A booktabs table, laid out like the paper's: a model per row, metrics in columns."""
    header, body = table_rows(comparison)
    lines = [
        "\\begin{table}[t]",
        "\\centering",
        f"\\caption{{{_tex(caption(comparison))}}}",
        f"\\begin{{tabular}}{{l{'c' * (len(header) - 1)}}}",
        "\\toprule",
        " & ".join(_tex(cell) for cell in header) + " \\\\",
        "\\midrule",
        *(" & ".join(_tex(cell) for cell in line) + " \\\\" for line in body),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def caption(comparison: Comparison) -> str:
    """What the table is made of: runs, patients, slides in = used + excluded, which test."""
    results = comparison.results
    counts = results.accounting()
    repeats = results.models[0].repeats
    sizes = sorted({len(repeat.test.patients) for repeat in repeats})
    tested = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    unit = "slides" if repeats[0].record["about"]["scored_by"] == "slide" else "patients"
    times = "1 repeat" if len(repeats) == 1 else f"{len(repeats)} repeats"
    text = (
        f"{results.experiment}: mean ± SD over {times} ({repeats[0].record['about']['scheme']}), "
        f"{tested} test {unit} each; [95 % interval by bootstrap over patients]. {accounted(counts)}."
    )
    if again := drawn_again([repeat.record["parts"] for repeat in repeats]):
        text += f" {len(again)} of {times} divide the patients as earlier ones do: there only the training differs."
    if leaky := leaks(comparison):
        text = f"LEAKY: {'; '.join(leaky)}. {text}"
    if earlier := made_before(results):
        text = f"CAUTION: {earlier}. {text}"
    if counts.get("patients_without_slides"):
        text += f" Patients without a slide: {counts['patients_without_slides']}."
    if counts.get("unverified"):
        text += f" Not checked against a manifest of hashes: {counts['unverified']} of the slides used."
    text += _undrawn(comparison) + _unfinished(comparison) + _sites(repeats)
    said = results.task.caption([repeat.calibration for model in results.models for repeat in model.repeats])
    text += f" {said}" if said else ""
    if comparison.tested and results.reference is not None:
        text += f" p: paired test against {results.reference.key}, Holm-corrected over the models of the table."
    if any(repeat.record["fit"]["drift"] for model in results.models for repeat in model.repeats):
        text += " DRIFT: some runs were resumed by another version than started them."
    return text


def leaks(comparison: Comparison) -> list[str]:
    """What the parts of the splits share although they must not, as the runs were told to allow."""
    repeats = [repeat for model in comparison.results.models for repeat in model.repeats]
    return list(dict.fromkeys(line for repeat in repeats for line in repeat.record["about"].get("leaks", ())))


def made_before(results: Results) -> str:
    """What must be said where runs are shown that the experiment could not make again; empty if there are none."""
    if not results.not_asked_for:
        return ""
    few, more = results.not_asked_for[:NAMED], len(results.not_asked_for) - NAMED
    rest = f" and {more} more" if more > 0 else ""
    return (
        "these runs are shown as earlier settings made them, the experiment file asks for others or none: "
        f"{', '.join(few)}{rest}"
    )


def accounted(counts: Mapping[str, Any]) -> str:
    """Slides in = used + excluded by reason, as one line says it."""
    excluded = "; ".join(f"{count} {reason}" for reason, count in counts["excluded"].items()) or "none"
    return f"Slides in: {counts['in']}, used: {counts['used']}, excluded: {excluded}"


def _sites(repeats: Sequence[Repeat]) -> str:
    """How many hospitals each part has, and what the hospital alone would score."""
    found = [repeat.record["about"]["sites"] for repeat in repeats if repeat.record["about"].get("sites")]
    if not any(report["sites"]["train"] for report in found):
        return " Sites: not known."
    parts = ", ".join(f"{part} {_range(len(one['sites'][part]) for one in found)}" for part in found[0]["sites"])
    scores = [report["score"] for report in found if report["score"] is not None]
    alone = f"{sum(scores) / len(scores):.3f}" if scores else "undefined"
    shared = _range(len(one["shared"]) for one in found)
    return (
        f" Sites: {parts}, in both train and test {shared}; the site alone predicts "
        f"{found[0]['metric']} {alone} (chance {found[0]['chance']:g})."
    )


def _range(counts: Iterable[int]) -> str:
    low, *_, high = sorted([*counts] * 2)
    return str(low) if low == high else f"{low} to {high}"


def _unfinished(comparison: Comparison) -> str:
    """Which repeats are not in the table because some model has not finished them."""
    numbers = comparison.results.left_out
    if not numbers:
        return ""
    return f" MISSING: repeats {', '.join(map(str, numbers))}, which not every model has finished."


def _undrawn(comparison: Comparison) -> str:
    """How often a sample of patients had no value, if that was more than rare."""
    shares = {
        label: max(row.cells[name].left_out for row in comparison.rows)
        for name, label in comparison.results.task.metric_names.items()
        if name in comparison.results.metric_names
    }
    named = ", ".join(f"{100 * share:.0f} % for {name}" for name, share in shares.items() if share >= MENTIONED)
    skipped = (
        f" Samples of patients skip repeats that they leave without a value, as where a class is missing ({named})."
    )
    return (skipped if named else "") + _unjudged(comparison)


def _unjudged(comparison: Comparison) -> str:
    """Which metrics have no interval, or no p, because too few of the samples have a value."""
    names, reference = comparison.results.task.metric_names, comparison.results.reference
    scarce = {name for row in comparison.rows for name, cell in row.cells.items() if cell.left_out > 0}
    bare = [name for name in names if name in scarce
            and any(_lacks_interval(row.cells[name]) for row in comparison.rows)]  # fmt: skip
    untested = [name for name in comparison.tested if name in scarce and any(
        name not in row.corrected and row.model is not reference for row in comparison.rows)]  # fmt: skip
    lacking = [f"{what} for {', '.join(names[name] for name in those)}"
               for what, those in (("no interval", bare), ("no p", untested)) if those]  # fmt: skip
    if not lacking:
        return ""
    said = " and ".join(lacking)
    return f" {said[0].upper()}{said[1:]}: more than {100 * UNDEFINED_LIMIT:.0f} % of the samples have no value at all."


def _lacks_interval(cell: Cell) -> bool:
    return cell.left_out > 0 and cell.interval is None


def cell_text(cell: Cell) -> str:
    if isinstance(cell.mean, Undefined):
        return str(cell.mean)
    text = f"{cell.mean:.3f}"
    if cell.sd is not None:
        text += f" ± {cell.sd:.3f}"
    if cell.interval is not None:
        text += f" [{cell.interval.low:.3f}, {cell.interval.high:.3f}]"
    return text


def _p_text(row: ModelRow, name: str, reference: ModelResults | None) -> str:
    """The corrected p; "-" where no test could be made."""
    if name not in row.corrected:
        return "reference" if row.model is reference else "-"
    p = row.corrected[name]
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _plain(value: float | Undefined) -> float | str:
    return str(value) if isinstance(value, Undefined) else value


def _tex(text: str) -> str:
    return "".join(_TEX.get(each, each) for each in text)
