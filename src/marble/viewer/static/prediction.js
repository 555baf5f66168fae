// The prediction panel: probabilities, a predicted number or a survival curve, and how sure the model is of its order.

export function showPrediction(box, option, said) {
  const heading = text("h3", option.textContent);
  if (option.dataset.part === "train") heading.append(text("span", "training slide", "mark"));
  box.replaceChildren(heading);
  const chances = Object.entries(said.readout).filter(([key]) => key.startsWith("p_"));
  for (const [key, value] of chances) box.append(chance(key.slice(2), value, key.slice(2) === said.label));
  if (said.label !== null) box.append(text("p", `predicted ${said.label} (${said.rule})`));
  if (said.facts.length) box.append(facts(said.facts));
  else if (!chances.length) box.append(text("p", said.sentence));
  if (said.curve.length) box.append(curve(said.curve));
  const orders = said.orders > 1 ? `SD of the logit over ${said.orders} orders: ${said.order_sd.toPrecision(2)}` : "does not depend on the order of tiles";
  box.append(text("p", orders, "soft"));
  for (const warning of said.warnings) box.append(text("p", warning, "warning"));
  box.dataset.readout = JSON.stringify(said.readout);
}

function facts(rows) {
  const list = document.createElement("dl");
  list.className = "facts";
  for (const [name, words] of rows) list.append(text("dt", name), text("dd", words));
  return list;
}

function chance(name, value, chosen) {
  const row = document.createElement("div");
  row.className = chosen ? "chance chosen" : "chance";
  const bar = document.createElement("progress");
  bar.max = 1;
  bar.value = value;
  bar.setAttribute("aria-label", `probability of ${name}`);
  row.append(text("span", name), text("span", value.toFixed(4)), bar);
  return row;
}

function curve(points) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 300 120");
  svg.setAttribute("class", "curve");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", points.map(([t, s]) => `survival at ${t.toPrecision(3)}: ${s.toFixed(3)}`).join("; "));
  const last = points[points.length - 1][0];
  const x = (time) => 30 + (248 * time) / last;
  const y = (share) => 100 - 90 * share;
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", `M${x(0)} ${y(1)}` + points.map(([t, s]) => `L${x(t)} ${y(s)}`).join(""));
  for (const share of [0, 0.5, 1]) {
    const line = document.createElementNS(space, "line");
    for (const [key, value] of [["x1", 30], ["x2", 290], ["y1", y(share)], ["y2", y(share)]]) line.setAttribute(key, value);
    svg.append(line, label(space, 4, y(share) + 3, String(share)));
  }
  for (const [time] of points) svg.append(label(space, x(time) - 10, 115, time.toPrecision(3)));
  svg.append(path);
  return svg;
}

function label(space, x, y, words) {
  const node = document.createElementNS(space, "text");
  node.setAttribute("x", x);
  node.setAttribute("y", y);
  node.textContent = words;
  return node;
}

function text(tag, words, kind) {
  const node = document.createElement(tag);
  node.textContent = words;
  if (kind) node.className = kind;
  return node;
}
