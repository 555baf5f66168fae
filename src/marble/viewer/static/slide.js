// The slide page: joins the controls, the panes, the prediction and the list of tiles.

import { ask } from "/static/api.js";
import { Branches } from "/static/branches.js";
import { Scale, limitsOf } from "/static/colours.js";
import { Lattice } from "/static/lattice.js";
import { startNote } from "/static/notes.js";
import { Pane, link } from "/static/pane.js";
import { showPrediction } from "/static/prediction.js";
import { offerMap, plain, saveView } from "/static/save.js";
import { followTheList } from "/static/steps.js";
import { Waiting } from "/static/waiting.js";

const stage = document.getElementById("slide");
const key = stage.dataset.slide;
const control = (id) => document.getElementById(id);
const panes = {};
const asked = { first: 0, second: 0 }; // counts questions, so that a late answer to an old one is not shown
const waiting = {};
const lattices = new Map();
const outlines = new Map();
let tables;
let branches;
let follow;
let chosen = null;

function complain(error) {
  document.querySelector(".panel > .notice")?.remove();
  const notice = document.createElement("p");
  notice.className = "notice";
  notice.setAttribute("role", "alert");
  notice.textContent = error.message;
  control("controls").before(notice);
}

function scaleOf(map) {
  const name = control("colours").value || (map.signed ? "RdBu_r" : "viridis");
  return new Scale(tables[name], limitsOf(map, control("stretch").checked), map.signed);
}

function look(pane) {
  return {
    scaleOf,
    chosenLevel: control("level").value === "" ? null : Number(control("level").value),
    opacity: Number(control("opacity").value) / 100,
    byValue: control("by-value").checked,
    threshold: Number(control("threshold").value) / 100,
    showMap: control("show-map").checked,
    showLattice: control("show-lattice").checked,
    rings: control("show-tissue").checked ? outlines.get(pane?.lattice.bag)?.rings : null,
    selected: chosen,
  };
}

function redraw() {
  for (const pane of Object.values(panes)) pane.show(look(pane));
  control("threshold-value").textContent = `${control("threshold").value} %`;
  const { maps, target } = panes.first.view;
  const level = panes.first.layer.level;
  const there = maps.some((one) => one.level === level);
  const mode = control("mode").value;
  const name = `${plain(panes.first.lattice.slide_id)}-${mode}-level${level}.geojson`;
  offerMap(control("save-map"), pathOf(control("run").value), there ? level : null, target ?? null, name);
}

function pathOf(run) {
  return `/api/slides/${key}/runs/${run}/${control("mode").value}`;
}

async function latticeOf(bag) {
  if (!lattices.has(bag)) lattices.set(bag, new Lattice(await ask(`/api/slides/${key}?bag=${bag}`)));
  return lattices.get(bag);
}

async function explainIn(name, run) {
  const box = control(`${name}-prediction`);
  const question = (asked[name] += 1);
  waiting[name]?.end();
  box.hidden = !run;
  panes[name]?.show({ maps: [] }); // never one model's or mode's map beside another's name
  panes[name]?.element.removeAttribute("data-run");
  if (!run) return;
  if (name === "first") branches.clear();
  redraw();
  const wait = (waiting[name] = new Waiting(box, pathOf(run), (busy) => panes[name].show({ busy })));
  try {
    const found = await ask(pathOf(run));
    const lattice = await latticeOf(found.bag);
    if (asked[name] !== question) return; // another model or mode was chosen meanwhile
    const select = control(name === "first" ? "run" : "compare");
    panes[name].useLattice(key, lattice);
    showPrediction(box, select.selectedOptions[0], found.prediction);
    panes[name].show({ maps: found.maps, meaning: found.meaning, target: found.target });
    panes[name].element.dataset.run = run;
    document.querySelector(".panel > .notice")?.remove();
    if (name === "first") showTiles(lattice, found.maps);
    if (control("show-tissue").checked) await toggleTissue();
    redraw();
  } catch (error) {
    if (asked[name] !== question) return; // nobody waits for this answer any more
    box.replaceChildren("No prediction.");
    throw error;
  } finally {
    wait.end();
  }
}

function showTiles(lattice, maps) {
  if (branches.lattice !== lattice) chosen = null;
  branches.lattice = lattice;
  fillLevels(lattice);
  branches.show(maps, chosen);
}

function fillLevels(lattice) {
  const select = control("level");
  if (select.options.length === lattice.levels.length + 1) return;
  select.replaceChildren(new Option("by zoom", ""), ...lattice.levels.map(({ level }) => new Option(lattice.nameOf(level), level)));
}

function choose(tile) {
  const inner = tile && tile.level > 0 && tile.level === branches.lattice.levels.length - 1;
  if (inner) {
    panes.first.goTo(tile.level, tile.index); // a finest tile has no children: show where it is
    chosen = tile;
  } else {
    chosen = tile;
    branches.show(panes.first.view.maps, chosen);
  }
  redraw();
}

function openPane(name, lattice) {
  panes[name] = new Pane(name, key, lattice, (x, y) => {
    const index = branches.lattice.tileAt(0, x, y);
    choose(index === undefined ? null : { level: 0, index });
  });
  panes[name].show(look(panes[name]));
  panes[name].viewer.addHandler("animation-finish", redraw);
}

async function compare() {
  const run = control("compare").value;
  const whole = panes.first.isHome();
  control("second").hidden = !run;
  if (whole) requestAnimationFrame(() => panes.first.zoom("home")); // half the width: the whole slide is smaller now
  if (run && !panes.second) {
    openPane("second", panes.first.lattice);
    follow = link(panes.first, panes.second);
    panes.second.viewer.addOnceHandler("open", () => follow());
  }
  await explainIn("second", run);
}

async function toggleTissue() {
  const box = control("show-tissue");
  if (box.checked) {
    box.checked = false; // until it is there
    for (const { lattice } of Object.values(panes)) {
      if (!outlines.has(lattice.bag)) outlines.set(lattice.bag, await ask(`/api/slides/${key}/tissue?bag=${lattice.bag}`));
    }
    const of = outlines.get(panes.first.lattice.bag).of;
    box.parentElement.lastChild.textContent = of === "tiles" ? "outline of the tiles" : "tissue";
    box.checked = true;
  }
  redraw();
}

function guarded(work) {
  return () => Promise.resolve(work()).catch(complain);
}

function listen() {
  control("run").addEventListener("change", guarded(() => explainIn("first", control("run").value)));
  control("compare").addEventListener("change", guarded(compare));
  control("mode").addEventListener("change", guarded(() => Promise.all([explainIn("first", control("run").value), compare()])));
  control("show-tissue").addEventListener("change", guarded(toggleTissue));
  for (const id of ["level", "colours", "show-map", "by-value", "show-lattice", "stretch"]) control(id).addEventListener("change", redraw);
  for (const id of ["opacity", "threshold"]) control(id).addEventListener("input", redraw);
  control("controls").addEventListener("submit", (event) => event.preventDefault());
  control("save-view").addEventListener("click", () => {
    const shown = Object.values(panes).filter((pane) => !pane.element.hidden);
    saveView(shown, `${plain(panes.first.lattice.slide_id)}.png`);
  });
}

async function start() {
  followTheList(key);
  startNote(key).catch(complain);
  const [body, colours] = await Promise.all([ask(`/api/slides/${key}`), ask("/api/colours")]);
  tables = colours;
  const lattice = new Lattice(body);
  lattices.set(lattice.bag, lattice);
  fillLevels(lattice);
  if (!window.OpenSeadragon) return;
  branches = new Branches(key, lattice, choose);
  openPane("first", lattice);
  branches.show([], null);
  listen();
  const named = [...control("run").options].find((one) => one.dataset.job === location.hash.slice(1));
  if (named) control("run").value = named.value; // a report links to the run it speaks of
  if (control("run").value) await explainIn("first", control("run").value);
  else control("first-prediction").replaceChildren("No runs here: the lattice alone is shown.");
}

start().catch(complain);
