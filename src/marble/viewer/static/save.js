// Saving what is on the screen: the view as a picture, the map as GeoJSON.

const INK = "#1c1f24";

export function saveView(panes, name) {
  const dots = window.devicePixelRatio || 1;
  const screens = panes.map((pane) => ({ pane, from: pane.viewer.drawer.canvas, over: pane.layer.canvas }));
  const foot = Math.round(74 * dots);
  const width = screens.reduce((sum, { over }) => sum + over.width, 0);
  const height = Math.max(...screens.map(({ over }) => over.height));
  const whole = Object.assign(document.createElement("canvas"), { width, height: height + foot });
  const pen = whole.getContext("2d");
  pen.fillStyle = "#ffffff";
  pen.fillRect(0, 0, whole.width, whole.height);
  let left = 0;
  for (const { pane, from, over } of screens) {
    pen.drawImage(from, left, 0, over.width, over.height);
    pen.drawImage(over, left, 0);
    writeFoot(pen, pane, left, height, dots);
    left += over.width;
  }
  whole.toBlob((blob) => download(URL.createObjectURL(blob), name), "image/png");
}

// name, colour bar and scale bar below the picture, as the page shows them beside it
function writeFoot(pen, pane, left, top, dots) {
  const line = (n) => top + (8 + 17 * n) * dots;
  pen.fillStyle = INK;
  pen.font = `${12 * dots}px system-ui, sans-serif`;
  pen.textBaseline = "top";
  pen.fillText([pane.lattice.slide_id, pane.status.textContent, pane.magnification.textContent].filter(Boolean).join("  |  "), left + 10 * dots, line(0));
  if (!pane.legend.hidden) {
    const bar = pane.legend.querySelector("canvas");
    const [low, , high] = [...pane.legend.querySelectorAll(".ends b")].map((one) => one.textContent);
    pen.fillText(`${low} to ${high}  ${pane.legend.querySelector("strong").textContent}: ${pane.legend.querySelector(".meaning").textContent}`, left + 10 * dots, line(1));
    pen.drawImage(bar, left + 10 * dots, line(2) + 3 * dots, 256 * dots, 10 * dots);
  }
  if (!pane.scale.hidden) {
    const long = pane.scale.getBoundingClientRect().width * dots;
    pen.fillRect(left + 290 * dots, line(2) + 9 * dots, long, 3 * dots);
    pen.fillText(pane.scale.textContent, left + (296 * dots + long), line(2) + 2 * dots);
  }
}

function download(address, name) {
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export function offerMap(link, path, level, target, name) {
  const query = target === null ? "" : `?target=${encodeURIComponent(target)}`;
  if (level === null) {
    link.removeAttribute("href");
    link.setAttribute("aria-disabled", "true");
    return;
  }
  link.removeAttribute("aria-disabled");
  link.href = `${path}/${level}/geojson${query}`;
  link.download = name;
}

export function plain(text) {
  return text.replace(/[^\p{L}\p{N}._-]+/gu, "_").slice(0, 80);
}
