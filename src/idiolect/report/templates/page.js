// Click on a column's head to sort by it; again for the other direction. Cells without a value stay last.
document.querySelectorAll("table").forEach((table) => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const body = table.tBodies[0];
      const descending = head.getAttribute("aria-sort") === (head.dataset.first === "descending" ? null : "ascending");
      const sign = descending ? -1 : 1;
      const value = (row) => row.cells[column].dataset.value;
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const gap = Number(x) - Number(y);
        return sign * (Number.isNaN(gap) ? x.localeCompare(y, undefined, { numeric: true }) : gap);
      });
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      body.append(...rows);
    });
  });
});
// Closed parts are printed too.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
