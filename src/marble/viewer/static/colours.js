// Colour scales, from the same tables as the pictures on disk.

export class Scale {
  constructor(table, limits, signed) {
    this.table = table; // 768 numbers: red, green, blue of 256 steps
    this.limits = limits;
    [this.low, this.high] = limits;
    this.signed = signed;
  }

  of(value) {
    const share = (value - this.low) / (this.high - this.low || 1);
    const i = 3 * Math.round(255 * Math.min(1, Math.max(0, share)));
    return `rgb(${this.table[i]} ${this.table[i + 1]} ${this.table[i + 2]})`;
  }

  // how far a value is along the scale, from 0 (nothing) to 1 (an end of it)
  share(value) {
    const share = this.signed ? Math.abs(value) / this.high : (value - this.low) / (this.high - this.low || 1);
    return Math.min(1, Math.max(0, share));
  }

  // the value at a share of the scale
  at(share) {
    return this.signed ? share * this.high : this.low + share * (this.high - this.low);
  }
}

export function limitsOf(map, stretch) {
  if (!stretch || map.signed) return map.limits;
  const lowest = map.values.reduce((a, b) => Math.min(a, b), Infinity);
  return lowest < map.limits[1] ? [lowest, map.limits[1]] : map.limits;
}
