// Sorting, hiding, asking for values, and on a live page looking again. Names are data: they are compared and written as
// text, and never become markup.
"use strict";
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const hidden = new Set(), sorted = new Map();

// -- tables: a click on a head sorts by it, another one turns it around; cells without a value stay last -----------------
function sort(table, column, descending) {
  const heads = [...table.tHead.rows[0].cells], sign = descending ? -1 : 1;
  const value = (row) => row.cells[column].dataset.value;
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    const gap = Number(x) - Number(y);
    return sign * (Number.isNaN(gap) ? x.localeCompare(y, undefined, { numeric: true }) : gap);
  }));
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  sorted.set(table.id, [column, descending]);
}

// -- legends: a click on a name hides its line everywhere ----------------------------------------------------------------
function show() {
  for (const each of all("[data-line]")) {
    const off = hidden.has(each.dataset.line);
    if (each.tagName === "BUTTON") each.setAttribute("aria-pressed", String(!off));
    else each.toggleAttribute("data-hidden", off);
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const head = button.closest("th");
  if (head) {
    const first = head.dataset.first === "descending" ? null : "ascending";
    sort(head.closest("table"), head.cellIndex, head.getAttribute("aria-sort") === first);
  } else if ("line" in button.dataset) {
    const name = button.dataset.line;
    if (!hidden.delete(name)) hidden.add(name);
    show();
  }
});

// -- charts: the values at the pointer, or at a place that the arrow keys move -------------------------------------------
const tip = document.getElementById("tip");

function points(chart) {
  return JSON.parse(chart.dataset.points).filter((line) => !hidden.has(line.name))
    .flatMap((line) => line.points.map(([x, y, at, value]) => ({ name: line.name, x, y, at, value })));
}

function tell(chart, nearest, known) {
  const svg = chart.querySelector("svg"), cursor = chart.querySelector(".cursor");
  const there = known.filter((point) => point.at === nearest.at).sort((a, b) => Math.abs(a.y - nearest.y) - Math.abs(b.y - nearest.y));
  const rows = there.slice(0, 12).sort((a, b) => a.y - b.y);
  const title = document.createElement("strong");
  title.textContent = `${chart.dataset.across} ${nearest.at}`;
  tip.replaceChildren(title, ...rows.map((point) => {
    const row = document.createElement("span");
    row.textContent = `${point.name}: ${point.value}`;
    if (point.name === nearest.name) row.className = "near";
    return row;
  }));
  if (there.length > rows.length) tip.append(`and ${there.length - rows.length} more`);
  cursor.setAttribute("visibility", "visible");
  cursor.setAttribute("transform", `translate(${nearest.x} 0)`);
  chart.dataset.at = nearest.at;
  tip.hidden = false;
  const place = new DOMPoint(nearest.x, Math.min(nearest.y, 240)).matrixTransform(svg.getScreenCTM());
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  const left = place.x + 14 + tip.offsetWidth < room ? place.x + 14 : place.x - 14 - tip.offsetWidth;
  tip.style.left = `${Math.max(8, Math.min(left, room)) + scrollX}px`;
  tip.style.top = `${Math.max(8, place.y - tip.offsetHeight / 2) + scrollY}px`;
}

function quiet() {
  tip.hidden = true;
  all(".cursor").forEach((cursor) => cursor.setAttribute("visibility", "hidden"));
}

document.addEventListener("pointermove", (event) => {
  const svg = event.target.closest(".chart svg");
  if (!svg) return quiet();
  const chart = svg.closest(".chart"), known = points(chart);
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const far = (point) => (("apart" in chart.dataset ? 1 : 9) * (point.x - at.x) ** 2) + (point.y - at.y) ** 2;
  if (known.length) tell(chart, known.reduce((best, point) => (far(point) < far(best) ? point : best)), known);
});
document.addEventListener("focusout", quiet);
document.addEventListener("keydown", (event) => {
  const chart = event.target.closest(".chart"), step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === "Escape") quiet();
  if (!chart || !step || event.target.tagName !== "svg") return;
  event.preventDefault();
  const known = points(chart), places = [...new Map(known.map((point) => [point.at, point.x]))].sort((a, b) => a[1] - b[1]);
  if (!places.length) return;
  const before = places.findIndex(([at]) => at === chart.dataset.at);
  const place = places[Math.max(0, Math.min(places.length - 1, before < 0 ? 0 : before + step))];
  tell(chart, known.find((point) => point.at === place[0]), known);
});

// -- paper: what is folded is printed too, and folded again ----------------------------------------------------------------
let closed = [];
addEventListener("beforeprint", () => {
  closed = all("details:not([open])");
  closed.forEach((each) => { each.open = true; });
});
addEventListener("afterprint", () => closed.forEach((each) => { each.open = false; }));

// -- a live page looks again, and keeps what its reader chose ---------------------------------------------------------------
const every = 1000 * Number(document.body.dataset.every), main = document.getElementById("main");

function replace(text) {
  const open = all("details", main).map((each) => [each.id, each.open]);
  const scrolled = all(".scroll", main).map((each) => [each.firstElementChild.id, each.scrollLeft]);
  const focus = document.activeElement, line = focus.dataset.line, id = focus.closest(".chart")?.id;
  const table = focus.closest("table")?.id, column = focus.closest("th")?.cellIndex;
  main.innerHTML = text;
  for (const [id, state] of open) if (document.getElementById(id)) document.getElementById(id).open = state;
  for (const [id, left] of scrolled) if (document.getElementById(id)) document.getElementById(id).parentElement.scrollLeft = left;
  for (const [id, [column, descending]] of sorted) if (document.getElementById(id)) sort(document.getElementById(id), column, descending);
  show();
  if (line !== undefined) all("button[data-line]").find((each) => each.dataset.line === line)?.focus();
  else if (table) document.getElementById(table)?.tHead.rows[0].cells[column]?.querySelector("button").focus();
  else if (id) document.getElementById(id)?.querySelector("svg").focus();
}

async function look(before) {
  const lost = document.getElementById("lost");
  let text = before;
  try {
    const answer = await fetch("now", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    text = await answer.text();
    if (text !== before) replace(text);
    lost.hidden = true;
  } catch {
    lost.hidden = false;
  }
  setTimeout(look, every, text);
}
if (every) setTimeout(look, every, null);
