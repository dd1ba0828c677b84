"use strict";
(function () {
  const dark = window.matchMedia && window.matchMedia("(prefers-color-scheme: dark)").matches;

  // Charts: specifications lie in the page as JSON; their neutral text colour is set for the theme.
  for (const holder of document.querySelectorAll("script[data-chart]")) {
    const target = document.getElementById(holder.dataset.chart);
    const text = holder.textContent.replaceAll(holder.dataset.text, dark ? "#b9c0ca" : "#4d545e");
    window
      .vegaEmbed(target, JSON.parse(text), {
        renderer: "svg",
        actions: { export: true, source: false, compiled: false, editor: false },
        downloadFileName: "rlprof-" + holder.dataset.chart,
      })
      .catch(function (error) {
        target.textContent = "This chart cannot be drawn here: " + error.message;
      });
  }

  // Tables: click a heading to sort, type to search, choose a device.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", function () {
        const number = head.classList.contains("n");
        const was = head.getAttribute("aria-sort");
        // numbers begin with the largest, ranks and names with the first
        const first = number && !head.dataset.up ? "descending" : "ascending";
        const now = was === null ? first : was === "ascending" ? "descending" : "ascending";
        heads.forEach((h) => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", now);
        const sign = now === "ascending" ? 1 : -1;
        const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
        rows
          .map((row) => [key(row), row])
          .sort(function ([a], [b]) {
            if (a === "" || b === "") return (a === "") - (b === ""); // unknown is last either way
            return sign * (number ? a - b : a.localeCompare(b));
          })
          .forEach(([, row]) => body.appendChild(row));
      });
    });

    const tools = document.querySelector('.tools[data-for="' + table.id + '"]');
    if (!tools) continue;
    const search = tools.querySelector("input[type=search]");
    const device = tools.querySelector("select");
    const leaves = tools.querySelector("input[type=checkbox]");
    const shown = tools.querySelector("output");
    const show = function () {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        const hit =
          words.every((w) => text.includes(w)) &&
          (!device || row.dataset.device === device.value) &&
          (!leaves.checked || row.dataset.leaf === "1");
        row.hidden = !hit;
        count += hit;
      }
      shown.textContent = count === rows.length ? count + " rows" : count + " of " + rows.length + " rows";
    };
    for (const control of [search, device, leaves]) if (control) control.addEventListener("input", show);
    show();
  }
})();
