"""The slide page's questions to a model, answered late or not at all, without a browser: its own lines, run by node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import marble.viewer

STATIC = Path(marble.viewer.__file__).parent / "static"
#: a page on which everything can be asked for, and a server that answers when it is told to
STUBS = """
const held = {};
const ask = (path) => new Promise((answer, fail) => { held[path] = { answer, fail }; });
const said = { notices: [], busy: "", box: "" };
const element = () => ({
  dataset: { slide: "S" }, value: "attention", checked: false, options: [], addEventListener() {}, setAttribute() {},
  removeAttribute() {}, before() {}, remove() {}, replaceChildren(...all) { said.box = all.at(-1); },
});
const elements = {};
globalThis.document = {
  getElementById: (id) => (elements[id] ??= element()), createElement: element, querySelector: () => null,
};
globalThis.window = {};
const location = { hash: "" };
const followTheList = () => {}, startNote = async () => {}, offerMap = () => {}, plain = String;
class Lattice {}
"""
#: two questions; the one that is no longer asked fails, then the other
PLAY = """
const there = { lattice: { slide_id: "S" }, layer: { level: 0 }, view: { maps: [] }, element: element() };
panes.first = { ...there, show(look) { if ("busy" in look) said.busy = look.busy; } };
branches = { clear() {} };
complain = (error) => said.notices.push(error.message);
const questions = ["old", "new"].map((run) => guarded(() => explainIn("first", run))());
const seen = [];
for (const [n, run] of ["old", "new"].entries()) {
  held[`/api/slides/S/runs/${run}/attention`].fail(new Error(`the ${run} one failed`));
  await questions[n];
  seen.push({ ...said, notices: [...said.notices], box: String(said.box) });
}
console.log(JSON.stringify(seen));
process.exit(0);
"""


def lines_of(name: str) -> str:
    """A file of the page without what it takes from others."""
    text = (STATIC / name).read_text()
    return re.sub(r"^import .*$|^export |^start\(\).*$", "", text, flags=re.MULTILINE)


def test_a_failure_of_what_is_no_longer_asked_is_not_heard(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    script = tmp_path / "page.mjs"
    script.write_text("\n".join((STUBS, lines_of("waiting.js"), lines_of("slide.js"), PLAY)))
    ended = subprocess.run([node, script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    while_asked, after = json.loads(ended.stdout)
    assert (while_asked["notices"], while_asked["busy"]) == ([], "computing")
    assert while_asked["box"] == "[object Object]"  # the bar of what is still computed
    assert after == {"notices": ["the new one failed"], "busy": "", "box": "No prediction."}
