// One zoomable slide with its layer: what is shown, and where.

import { Layer } from "/static/layer.js";
import { showLegend } from "/static/legend.js";

const TILE_PX = 256;

// OpenSeadragon would add an inline style sheet unless it finds its own; the page's policy forbids one, and the rule it
// holds is in style.css.
const found = document.createElementNS(null, "style");
found.setAttribute("data-openseadragon-mobile-css", "true");
document.head.append(found);

const LENGTHS_UM = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];

export class Pane {
  constructor(name, key, lattice, onSelect) {
    this.name = name;
    this.lattice = lattice;
    this.element = document.getElementById(name);
    this.status = document.getElementById(`${name}-status`);
    this.scale = document.getElementById(`${name}-scale`);
    this.magnification = document.getElementById(`${name}-magnification`);
    this.legend = document.getElementById(`${name}-legend`);
    this.view = { maps: [], meaning: null };
    this.viewer = OpenSeadragon({
      element: document.getElementById(`${name}-screen`),
      drawer: "canvas",
      showNavigationControl: false,
      showNavigator: lattice.has_picture && name === "first",
      navigatorPosition: "TOP_RIGHT",
      navigatorSizeRatio: 0.16,
      navigatorBackground: "#f4f4f6",
      navigatorBorderColor: "#9aa0a8",
      navigatorDisplayRegionColor: "#e65000",
      gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true },
      maxZoomPixelRatio: 4,
      visibilityRatio: 0.3,
      animationTime: 0.4,
      tileSources: source(key, lattice),
    });
    this.layer = new Layer(this.viewer, lattice);
    this.viewer.canvas.setAttribute("role", "application"); // it takes the arrow keys for itself
    this.viewer.canvas.setAttribute("aria-label", "Slide: arrow keys move, plus and minus zoom");
    this.viewer.addHandler("update-viewport", () => this.draw());
    this.viewer.addHandler("open", () => this.element.setAttribute("data-open", "1"));
    this.viewer.addHandler("canvas-click", (event) => {
      if (!event.quick) return;
      const image = this.viewer.world.getItemAt(0);
      const point = image.viewerElementToImageCoordinates(event.position);
      onSelect(point.x, point.y);
    });
    for (const button of this.element.querySelectorAll(".zoom")) {
      button.addEventListener("click", () => this.zoom(button.dataset.zoom));
    }
  }

  // Another bag of the slide: its own lattice, over the picture it was made from.
  useLattice(key, lattice) {
    if (lattice.bag === this.lattice.bag) return;
    const resized = lattice.width !== this.lattice.width || lattice.height !== this.lattice.height;
    this.lattice = lattice;
    this.layer.lattice = lattice;
    this.view.maps = [];
    if (resized) this.viewer.open(source(key, lattice));
  }

  show(changes) {
    Object.assign(this.view, changes);
    this.draw();
  }

  zoom(how) {
    if (how === "home") this.viewer.viewport.goHome();
    else this.viewer.viewport.zoomBy(how === "in" ? 2 : 0.5);
    this.viewer.viewport.applyConstraints();
  }

  isHome() {
    const { viewport } = this.viewer;
    return Math.abs(viewport.getZoom() / viewport.getHomeZoom() - 1) < 0.01;
  }

  goTo(k, i) {
    const [x, y] = this.lattice.corner(k, i);
    const extent = this.lattice.levels[k].extent;
    const image = this.viewer.world.getItemAt(0);
    const margin = extent * 0.35;
    const box = image.imageToViewportRectangle(x - margin, y - margin, extent + 2 * margin, extent + 2 * margin);
    this.viewer.viewport.fitBoundsWithConstraints(box);
  }

  draw() {
    this.layer.draw(this.view);
    const { level, drawn } = this.layer;
    const map = this.view.maps.find((one) => one.level === level);
    const words = this.view.busy || `${this.lattice.nameOf(level)}${map ? `, ${map.name}` : ""}, ${drawn} tiles in view`;
    this.element.dataset.level = String(level);
    if (this.status.textContent !== words) this.status.textContent = words; // else it would be read out again
    this.drawScale();
    this.drawLegend(map);
  }

  // redrawn only when something it shows has changed: the layer is drawn with every frame
  drawLegend(map) {
    const { scaleOf, showMap, threshold, meaning } = this.view;
    if (!scaleOf) return;
    const now = map ? [map.level, map.name, scaleOf(map).table, ...scaleOf(map).limits, showMap, threshold, meaning] : [null];
    if (this.shown && now.length === this.shown.length && now.every((one, n) => one === this.shown[n])) return;
    this.shown = now;
    showLegend(this.legend, map, meaning, this.view);
  }

  drawScale() {
    const place = this.layer.transform();
    if (place) this.element.dataset.place = JSON.stringify(place);
    this.scale.hidden = !place || !this.lattice.mpp;
    this.magnification.hidden = this.scale.hidden;
    this.scale.parentElement.hidden = this.scale.hidden; // else an empty box would stay
    if (this.scale.hidden) return;
    const umPerPx = this.lattice.mpp / place.scale;
    this.magnification.textContent = `${nominal(umPerPx)}x, ${umPerPx.toPrecision(3)} µm/px`;
    const perUm = place.scale / this.lattice.mpp;
    const um = LENGTHS_UM.findLast((length) => length * perUm <= 160) || LENGTHS_UM[0];
    this.scale.style.width = `${um * perUm}px`;
    this.scale.firstElementChild.textContent = um >= 1000 ? `${um / 1000} mm` : `${um} µm`;
  }
}

// The magnification as microscopes count it: 10x is 1 µm per pixel.
function nominal(umPerPx) {
  const power = 10 / umPerPx;
  return power >= 10 ? power.toFixed(0) : power.toPrecision(2);
}

function source(key, lattice) {
  return {
    width: lattice.width,
    height: lattice.height,
    tileSize: TILE_PX,
    minLevel: 0,
    maxLevel: lattice.top_zoom,
    getTileUrl: (zoom, column, row) => `/api/slides/${key}/pixels/${zoom}/${column}/${row}?bag=${lattice.bag}`,
  };
}

// Moving one pane moves the other.
export function link(one, other) {
  let busy = false;
  const follow = (from, to) => () => {
    if (busy || to.element.hidden) return;
    busy = true;
    to.viewer.viewport.zoomTo(from.viewer.viewport.getZoom(true), null, true);
    to.viewer.viewport.panTo(from.viewer.viewport.getCenter(true), true);
    busy = false;
  };
  one.viewer.addHandler("viewport-change", follow(one, other));
  other.viewer.addHandler("viewport-change", follow(other, one));
  return follow(one, other);
}
