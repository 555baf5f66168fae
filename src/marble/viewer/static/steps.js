// Previous and next slide, in the order and with the filters the list was left with.

export function followTheList(key) {
  let keys = [];
  try {
    keys = JSON.parse(sessionStorage.getItem("marble-slides") || "[]");
  } catch {
    return;
  }
  const place = keys.indexOf(key);
  if (place < 0) return;
  point("previous", keys[place - 1]);
  point("following", keys[place + 1]);
  document.getElementById("place").textContent = `${place + 1} of ${keys.length}`;
}

function point(id, key) {
  const link = document.getElementById(id);
  if (/^[0-9a-f]{16}$/.test(key ?? "")) {
    link.href = `/slide/${key}`;
    link.removeAttribute("aria-disabled");
  } else {
    link.removeAttribute("href");
    link.setAttribute("aria-disabled", "true");
  }
}
