// A colour bar with its words: what the values are, in which unit, and what either end stands for.

export function showLegend(box, map, meaning, look) {
  box.hidden = !map || !look.showMap;
  if (box.hidden) return;
  const scale = look.scaleOf(map);
  const canvas = box.querySelector("canvas");
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  for (let x = 0; x < canvas.width; x += 1) {
    const value = scale.low + ((scale.high - scale.low) * x) / (canvas.width - 1);
    pen.globalAlpha = scale.share(value) < look.threshold ? 0.15 : 1; // what is not painted on the slide is faint here
    pen.fillStyle = scale.of(value);
    pen.fillRect(x, 0, 1, canvas.height);
  }
  const [low, middle, high] = box.querySelectorAll(".ends b");
  low.textContent = short(scale.low);
  middle.textContent = map.signed ? "0" : "";
  high.textContent = (map.signed ? "+" : "") + short(scale.high);
  const [left, right] = box.querySelectorAll(".words span");
  left.textContent = meaning.low;
  right.textContent = meaning.high;
  box.querySelector("strong").textContent = `${map.name} (${meaning.unit})`;
  box.querySelector(".meaning").textContent = meaning.text;
  box.setAttribute("aria-label", `${map.name}: ${meaning.text}; from ${low.textContent} (${meaning.low}) to ${high.textContent} (${meaning.high}), ${meaning.unit}`);
}

export function short(value) {
  return value === 0 ? "0" : value.toPrecision(2);
}
