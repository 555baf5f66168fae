// The nested lattice: where tiles lie, which tile a point is in, and which level suits a zoom.

const LEAST_SCREEN_PX = 40; // a tile smaller than this on screen is shown by its parent

export class Lattice {
  constructor(body) {
    Object.assign(this, body);
    for (const level of this.levels) {
      level.count = level.cells.length / 2;
      level.index = new Map();
      for (let i = 0; i < level.count; i += 1) {
        level.index.set(`${level.cells[2 * i]},${level.cells[2 * i + 1]}`, i);
      }
    }
  }

  // x and y of a tile's upper left corner, in level-0 pixels
  corner(k, i) {
    const level = this.levels[k];
    return [level.origin[0] + level.cells[2 * i + 1] * level.extent, level.origin[1] + level.cells[2 * i] * level.extent];
  }

  tileAt(k, x, y) {
    const level = this.levels[k];
    const column = Math.floor((x - level.origin[0]) / level.extent);
    const row = Math.floor((y - level.origin[1]) / level.extent);
    return level.index.get(`${row},${column}`);
  }

  children(k, i) {
    const finer = this.levels[k + 1];
    if (!finer) return [];
    return finer.parent.flatMap((parent, child) => (parent === i ? [child] : []));
  }

  // the finest of these levels whose tiles are large enough on screen
  levelFor(screenPerL0, available) {
    const fitting = available.filter((k) => this.levels[k].extent * screenPerL0 >= LEAST_SCREEN_PX);
    return fitting.length ? Math.max(...fitting) : Math.min(...available);
  }

  nameOf(k) {
    const scale = this.levels[k].magnification;
    return scale ? `level ${k} (${scale}x)` : `level ${k}`;
  }
}
