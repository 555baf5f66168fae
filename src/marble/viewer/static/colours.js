// Colour scales, from the same tables as the pictures on disk.

export class Scale {
  constructor(table, limits) {
    this.table = table; // 768 numbers: red, green, blue of 256 steps
    [this.low, this.high] = limits;
  }

  of(value) {
    const share = (value - this.low) / (this.high - this.low || 1);
    const i = 3 * Math.round(255 * Math.min(1, Math.max(0, share)));
    return `rgb(${this.table[i]} ${this.table[i + 1]} ${this.table[i + 2]})`;
  }

  // how strongly a value covers the tissue: fully at the ends of the scale, faintly at 0
  weight(value, signed) {
    const share = signed ? Math.abs(value) / this.high : (value - this.low) / (this.high - this.low || 1);
    return 0.3 + 0.7 * Math.min(1, Math.max(0, share));
  }

  drawLegend(canvas) {
    const pen = canvas.getContext("2d");
    for (let x = 0; x < canvas.width; x += 1) {
      pen.fillStyle = this.of(this.low + ((this.high - this.low) * x) / (canvas.width - 1));
      pen.fillRect(x, 0, 1, canvas.height);
    }
  }
}

export function limitsOf(map, stretch) {
  if (!stretch || map.signed) return map.limits;
  const lowest = map.values.reduce((a, b) => Math.min(a, b), Infinity);
  return lowest < map.limits[1] ? [lowest, map.limits[1]] : map.limits;
}
