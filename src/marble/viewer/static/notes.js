// The notes on a slide: read when the page opens; one's own is written when asked to, those of others are shown below.

import { ask } from "/static/api.js";

export async function startNote(key) {
  const form = document.getElementById("note");
  if (!form) return;
  const text = document.getElementById("note-text");
  const button = form.querySelector("button");
  const said = document.getElementById("note-said");
  const path = `/api/slides/${key}/note`;
  let seen = await ask(path);
  text.value = seen.text;
  said.textContent = when(seen);
  showOthers(seen);
  text.disabled = button.disabled = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      seen = await ask(path, {
        method: "POST",
        headers: { "content-type": "application/json", "x-marble-note": "1" },
        body: JSON.stringify({ text: text.value, seen: seen.text }),
      });
      text.value = seen.text;
      said.textContent = when(seen) || "removed";
      showOthers(seen);
    } catch (error) {
      said.textContent = `not saved: ${error.message}`;
    }
    button.disabled = false;
  });
}

function when(note) {
  return note.at ? `saved ${new Date(note.at).toLocaleString()}${note.by ? ` as ${note.by}` : ""}` : "";
}

function showOthers(seen) {
  const list = document.getElementById("note-others");
  list.replaceChildren(...seen.others.map((note) => {
    const item = document.createElement("li");
    const head = document.createElement("b");
    head.textContent = `${note.by || "without a name"}, ${new Date(note.at).toLocaleString()}`;
    const body = document.createElement("p");
    body.textContent = note.text;
    item.append(head, body);
    return item;
  }));
  list.hidden = !seen.others.length;
}
