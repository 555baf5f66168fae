// The list of slides: search, filters and sorting, all in the browser.

const table = document.getElementById("cases");
const body = table.tBodies[0];
const heads = document.getElementById("heads");
const rows = [...body.rows];
const value = (id) => document.getElementById(id)?.value ?? "";
const FIRST_MODEL = 4;

// whether any of the models asked for said what the filters ask for: a class, with that outcome and that confidence, or a
// number that is so far off
function saidSo(row) {
  const wanted = { said: value("prediction"), error: value("outcome"), sure: value("confidence"), miss: value("miss") };
  const ofClasses = wanted.said || wanted.error || wanted.sure;
  if (!ofClasses && !wanted.miss) return true;
  const [least, most] = wanted.sure ? wanted.sure.split(" ").map(Number) : [0, 1];
  const cells = value("model") ? [row.cells[FIRST_MODEL + Number(value("model"))]] : [...row.cells].slice(FIRST_MODEL, -1);
  return cells.some(
    ({ dataset }) =>
      (!ofClasses || dataset.said) &&
      (!wanted.said || dataset.said === wanted.said) &&
      (!wanted.error || dataset.error === wanted.error) &&
      (!wanted.sure || (Number(dataset.sure) >= least && Number(dataset.sure) <= most)) &&
      (!wanted.miss || Number(dataset.miss ?? -1) >= Number(wanted.miss)),
  );
}

// a slide has a class of each experiment that asks for one
const hasLabel = (row) => !value("truth") || row.dataset.labels.split("\n").includes(value("truth"));

function filter() {
  const words = value("search").toLowerCase();
  let shown = 0;
  for (const row of rows) {
    const text = `${row.cells[1].textContent} ${row.cells[2].textContent}`.toLowerCase();
    const fits = text.includes(words) && hasLabel(row) && saidSo(row);
    row.hidden = !fits;
    shown += fits ? 1 : 0;
  }
  document.getElementById("count").textContent = `${shown} of ${rows.length} slides`;
  remember();
}

// numbers by size (risks may be negative), words by the reader's alphabet; what is empty comes last either way
function order(a, b, down) {
  const sign = down ? -1 : 1;
  const [one, other] = [a.dataset.number, b.dataset.number];
  if (one !== undefined && other !== undefined) return sign * (Number(one) - Number(other));
  const [left, right] = [a, b].map((cell) => (cell.dataset.number ?? cell.dataset.sort ?? cell.textContent).trim());
  if (!left || !right) return Number(!left) - Number(!right);
  return sign * left.localeCompare(right, undefined, { numeric: true });
}

function sort(header, column) {
  const down = header.getAttribute("aria-sort") === "ascending";
  rows.sort((a, b) => order(a.cells[column], b.cells[column], down));
  for (const one of heads.cells) one.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
  remember();
}

// "previous" and "next" on a slide's page follow this list as it stands
function remember() {
  const keys = rows.filter((row) => !row.hidden).map((row) => row.dataset.key);
  sessionStorage.setItem("marble-slides", JSON.stringify(keys));
}

for (const button of heads.querySelectorAll("button")) {
  button.addEventListener("click", () => sort(button.closest("th"), Number(button.dataset.column)));
}
const form = document.getElementById("filters");
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
filter(); // what the browser filled in again after "back" counts
