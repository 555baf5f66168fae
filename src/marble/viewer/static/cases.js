// The list of slides: search, filters and sorting, all in the browser.

const table = document.getElementById("cases");
const body = table.tBodies[0];
const rows = [...body.rows];
const value = (id) => document.getElementById(id)?.value ?? "";

function filter() {
  const words = value("search").toLowerCase();
  const wrong = document.getElementById("wrong")?.checked ?? false;
  let shown = 0;
  for (const row of rows) {
    const text = `${row.cells[0].textContent} ${row.cells[1].textContent}`.toLowerCase();
    const fits =
      text.includes(words) &&
      (!value("truth") || row.dataset.truth === value("truth")) &&
      (!value("prediction") || row.dataset.predictions.split("|").includes(value("prediction"))) &&
      (!wrong || row.dataset.wrong === "1");
    row.hidden = !fits;
    shown += fits ? 1 : 0;
  }
  document.getElementById("count").textContent = `${shown} of ${rows.length} slides`;
}

function sort(header, column) {
  const down = header.getAttribute("aria-sort") === "ascending";
  const order = new Intl.Collator(undefined, { numeric: true });
  const keyOf = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
  rows.sort((a, b) => (down ? -1 : 1) * order.compare(keyOf(a), keyOf(b)));
  for (const one of table.tHead.rows[0].cells) one.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
}

for (const button of table.tHead.querySelectorAll("button")) {
  button.addEventListener("click", () => sort(button.closest("th"), Number(button.dataset.column)));
}
const form = document.getElementById("filters");
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
