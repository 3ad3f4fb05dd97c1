"use strict";

for (const chart of document.querySelectorAll(".chart")) {
  const content = JSON.parse(chart.nextElementSibling.textContent);
  const clear = { paper_bgcolor: "transparent", plot_bgcolor: "transparent" };
  const layout = { ...content.layout, ...clear, modebar: { bgcolor: "transparent", color: "#888888" } };
  Plotly.newPlot(chart, content.data, layout, { responsive: true, displaylogo: false });
}

const filter = document.getElementById("filter");
filter.addEventListener("input", () => {
  const wanted = filter.value.trim().toLowerCase();
  let shown = 0;
  for (const row of document.querySelectorAll("tbody tr, details.run")) {
    const section = row.closest("section").querySelector("h2").textContent;
    row.hidden = !`${row.textContent} ${section}`.toLowerCase().includes(wanted);
    shown += !row.hidden;
  }
  document.getElementById("empty").hidden = shown > 0;
});

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
