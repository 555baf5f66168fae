// The slide page: joins the controls, the panes, the prediction and the list of tiles.

import { ask } from "/static/api.js";
import { Branches } from "/static/branches.js";
import { Scale, limitsOf } from "/static/colours.js";
import { Lattice } from "/static/lattice.js";
import { Pane, link } from "/static/pane.js";
import { showPrediction } from "/static/prediction.js";

const stage = document.getElementById("slide");
const key = stage.dataset.slide;
const control = (id) => document.getElementById(id);
const panes = {};
let lattice;
let tables;
let branches;
let follow;
let chosen = null;
let rings = null;

function complain(error) {
  const notice = document.createElement("p");
  notice.className = "notice";
  notice.setAttribute("role", "alert");
  notice.textContent = error.message;
  control("branches").before(notice);
}

function scaleOf(map) {
  const name = control("colours").value || (map.signed ? "RdBu_r" : "viridis");
  return new Scale(tables[name], limitsOf(map, control("stretch").checked));
}

function look() {
  return {
    scaleOf,
    chosenLevel: control("level").value === "" ? null : Number(control("level").value),
    opacity: Number(control("opacity").value) / 100,
    showMap: control("show-map").checked,
    showLattice: control("show-lattice").checked,
    rings: control("show-tissue").checked ? rings : null,
    selected: chosen,
  };
}

function redraw() {
  for (const pane of Object.values(panes)) pane.show(look());
  const maps = panes.first.view.maps;
  const map = maps.find((one) => one.level === panes.first.layer.level);
  control("legend").hidden = !map;
  if (map) {
    const scale = scaleOf(map);
    scale.drawLegend(control("legend").querySelector("canvas"));
    control("legend-low").textContent = scale.low.toPrecision(2);
    control("legend-high").textContent = scale.high.toPrecision(2);
  }
}

async function explainIn(name, run) {
  const box = control(`${name}-prediction`);
  box.hidden = !run;
  if (!run) {
    panes[name]?.show({ maps: [] });
    return;
  }
  panes[name].show({ maps: [] }); // never one model's or mode's map beside another's name
  box.replaceChildren(Object.assign(document.createElement("p"), { className: "soft", textContent: "thinking" }));
  const found = await ask(`/api/slides/${key}/runs/${run}/${control("mode").value}`);
  const select = control(name === "first" ? "run" : "compare");
  if (select.value !== run) return; // another model was chosen meanwhile
  showPrediction(box, select.selectedOptions[0].textContent, found.prediction);
  panes[name].show({ maps: found.maps });
  panes[name].element.dataset.run = run;
  if (name === "first") branches.show(found.maps, chosen);
  redraw();
}

function choose(tile) {
  const inner = tile && tile.level > 0 && tile.level === lattice.levels.length - 1;
  if (inner) {
    panes.first.goTo(tile.level, tile.index); // a finest tile has no children: show where it is
    chosen = tile;
  } else {
    chosen = tile;
    branches.show(panes.first.view.maps, chosen);
  }
  redraw();
}

function openPane(name) {
  panes[name] = new Pane(name, key, lattice, (x, y) => {
    const index = lattice.tileAt(0, x, y);
    choose(index === undefined ? null : { level: 0, index });
  });
  panes[name].show(look());
  panes[name].viewer.addHandler("animation-finish", redraw);
}

async function compare() {
  const run = control("compare").value;
  control("second").hidden = !run;
  if (run && !panes.second) {
    openPane("second");
    follow = link(panes.first, panes.second);
    panes.second.viewer.addOnceHandler("open", () => follow());
  }
  await explainIn("second", run);
}

async function toggleTissue() {
  if (control("show-tissue").checked && !rings && lattice.has_picture) rings = (await ask(`/api/slides/${key}/tissue`)).rings;
  redraw();
}

function guarded(work) {
  return () => Promise.resolve(work()).catch(complain);
}

async function start() {
  [lattice, tables] = await Promise.all([ask(`/api/slides/${key}`).then((body) => new Lattice(body)), ask("/api/colours")]);
  for (const level of lattice.levels) control("level").append(new Option(lattice.nameOf(level.level), level.level));
  control("show-tissue").disabled = !lattice.has_picture;
  if (!window.OpenSeadragon) return;
  branches = new Branches(key, lattice, choose);
  openPane("first");
  branches.show([], null);
  control("run").addEventListener("change", guarded(() => explainIn("first", control("run").value)));
  control("compare").addEventListener("change", guarded(compare));
  control("mode").addEventListener("change", guarded(() => Promise.all([explainIn("first", control("run").value), compare()])));
  control("show-tissue").addEventListener("change", guarded(toggleTissue));
  for (const id of ["level", "colours", "show-map", "show-lattice", "stretch"]) control(id).addEventListener("change", redraw);
  control("opacity").addEventListener("input", redraw);
  control("controls").addEventListener("submit", (event) => event.preventDefault());
  if (control("run").value) await explainIn("first", control("run").value);
  else control("first-prediction").replaceChildren("No runs here: the lattice alone is shown.");
}

start().catch(complain);
