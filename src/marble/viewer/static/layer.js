// Draws the map, the lattice and the tissue's outline over the slide: rectangles at exact places, never smoothed.

const FAINTEST = 0.08; // of a tile at 0, so that the tissue below it is seen as it is

export class Layer {
  constructor(viewer, lattice) {
    this.viewer = viewer;
    this.lattice = lattice;
    this.canvas = document.createElement("canvas");
    this.canvas.className = "layer";
    this.canvas.setAttribute("aria-hidden", "true");
    viewer.canvas.append(this.canvas);
    this.level = 0;
    this.drawn = 0;
  }

  // level-0 pixels to css pixels: scale and offset
  transform() {
    const image = this.viewer.world.getItemAt(0);
    if (!image) return null;
    const zero = image.imageToViewerElementCoordinates(new OpenSeadragon.Point(0, 0));
    const far = image.imageToViewerElementCoordinates(new OpenSeadragon.Point(this.lattice.width, 0));
    return { scale: (far.x - zero.x) / this.lattice.width, x: zero.x, y: zero.y };
  }

  draw({ maps, scaleOf, chosenLevel, opacity, byValue, threshold, showMap, showLattice, rings, selected }) {
    const place = this.transform();
    if (!place) return;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const dots = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * dots) || this.canvas.height !== Math.round(height * dots)) {
      this.canvas.width = Math.round(width * dots);
      this.canvas.height = Math.round(height * dots);
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const available = maps.length ? maps.map((map) => map.level) : this.lattice.levels.map((_, k) => k);
    this.level = available.includes(chosenLevel) ? chosenLevel : this.lattice.levelFor(place.scale, available);
    const map = maps.find((one) => one.level === this.level);
    this.drawn = 0;
    const boxes = this.visible(this.level, place, dots);
    if (map && showMap) {
      const scale = scaleOf(map);
      for (const [i, left, top, right, bottom] of boxes) {
        const share = scale.share(map.values[i]);
        if (share < threshold) continue;
        pen.globalAlpha = opacity * (byValue ? FAINTEST + (1 - FAINTEST) * share : 1);
        pen.fillStyle = scale.of(map.values[i]);
        pen.fillRect(left, top, right - left, bottom - top);
        this.drawn += 1;
      }
      pen.globalAlpha = 1;
    }
    if (showLattice) this.outline(pen, boxes, "rgb(20 20 30 / 55%)", 1);
    if (rings) this.trace(pen, rings, place, dots);
    if (selected) this.outline(pen, [this.box(selected.level, selected.index, place, dots)], "#e65000", 3 * dots);
  }

  // a tile's edges in canvas pixels; coarse tiles end where the slide ends
  box(k, i, place, dots) {
    const [x, y] = this.lattice.corner(k, i);
    const { width, height, levels } = this.lattice;
    const within = (value, most) => Math.min(most, Math.max(0, value));
    const at = (value, offset) => Math.round((offset + value * place.scale) * dots);
    return [
      i,
      at(within(x, width), place.x),
      at(within(y, height), place.y),
      at(within(x + levels[k].extent, width), place.x),
      at(within(y + levels[k].extent, height), place.y),
    ];
  }

  visible(k, place, dots) {
    const boxes = [];
    for (let i = 0; i < this.lattice.levels[k].count; i += 1) {
      const box = this.box(k, i, place, dots);
      if (box[3] >= 0 && box[4] >= 0 && box[1] <= this.canvas.width && box[2] <= this.canvas.height) boxes.push(box);
    }
    return boxes;
  }

  outline(pen, boxes, colour, width) {
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    for (const [, left, top, right, bottom] of boxes) pen.strokeRect(left, top, right - left, bottom - top);
  }

  trace(pen, rings, place, dots) {
    pen.strokeStyle = "#009e73";
    pen.lineWidth = 2 * dots;
    pen.beginPath();
    for (const ring of rings) {
      ring.forEach(([x, y], n) => {
        const at = [(place.x + x * place.scale) * dots, (place.y + y * place.scale) * dots];
        if (n === 0) pen.moveTo(...at);
        else pen.lineTo(...at);
      });
      pen.closePath();
    }
    pen.stroke();
  }
}
