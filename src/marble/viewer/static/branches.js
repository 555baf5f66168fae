// Tiles as a ranked list with thumbnails: the coarse ones first, and the children of the one that was chosen.

const SHOWN = 30;

// three digits, however small the number is
function brief(value) {
  return value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : value.toPrecision(3);
}

export class Branches {
  constructor(key, lattice, onChoose) {
    this.key = key;
    this.lattice = lattice;
    this.onChoose = onChoose;
    this.list = document.getElementById("tiles");
    this.title = document.getElementById("branches-title");
    this.hint = document.getElementById("branches-hint");
    this.section = document.getElementById("branches");
  }

  clear() {
    this.section.querySelector(".back")?.remove();
    this.list.replaceChildren();
    this.hint.textContent = "Waiting for the map.";
  }

  show(maps, chosen) {
    this.section.querySelector(".back")?.remove();
    if (!chosen) {
      this.title.textContent = "Coarse tiles";
      this.hint.textContent = "Click a coarse tile on the slide, or choose one here.";
      this.fill(0, this.lattice.levels[0].cells.flatMap((_, n) => (n % 2 ? [] : [n / 2])), maps);
      this.section.dataset.children = "";
      return;
    }
    const { level, index } = chosen;
    const children = this.lattice.children(level, index);
    this.title.textContent = `Children of tile ${index + 1}, ${this.lattice.nameOf(level)}`;
    this.hint.textContent = children.length ? `${children.length} tiles of ${this.lattice.nameOf(level + 1)}, ranked` : "This tile has no finer tiles.";
    const back = document.createElement("button");
    back.type = "button";
    back.className = "back";
    back.textContent = "All coarse tiles";
    back.addEventListener("click", () => this.onChoose(null));
    this.list.before(back);
    this.fill(level + 1, children, maps);
    this.section.dataset.children = String(children.length);
  }

  fill(level, tiles, maps) {
    const map = maps.find((one) => one.level === level);
    const weight = (i) => (map ? map.values[i] : 0);
    const ranked = [...tiles].sort((a, b) => weight(b) - weight(a)).slice(0, SHOWN);
    this.list.replaceChildren(...ranked.map((i, n) => this.item(level, i, n + 1, map ? weight(i) : null)));
  }

  item(level, i, rank, weight) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.tile = String(i);
    const picture = document.createElement("img");
    picture.src = `/api/slides/${this.key}/crops/${level}/${i}?bag=${this.lattice.bag}`;
    picture.loading = "lazy";
    picture.alt = `Tile of ${this.lattice.nameOf(level)}, rank and value:`;
    const words = document.createElement("span");
    const value = weight === null ? "" : brief(weight);
    for (const part of [`#${rank}`, value]) {
      const piece = document.createElement("b");
      piece.textContent = part;
      words.append(piece);
    }
    button.append(picture, words);
    button.addEventListener("click", () => this.onChoose({ level, index: i }));
    const row = document.createElement("li");
    row.append(button);
    return row;
  }
}
