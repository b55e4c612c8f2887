// Replaces drawings that have data by uPlot charts: drag to zoom in, double-click to zoom out, one
// cursor for all charts with the same axis. Without it, and on paper, the drawings stay.
"use strict";
(() => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dashes = [[], [6, 3], [2, 2]];
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const number = (v) => v == null ? "–" : String(Number(v.toPrecision(5)));
  const hint = "drag to zoom in, double-click to zoom out";
  const sizes = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]];

  // Same as psrt.views.page.scale.tick_text.
  function tick(v) {
    if (v == null) return "";
    for (const [size, letter] of sizes) {
      if (Math.abs(v) >= size) return Number((v / (letter === "k" ? 1e3 : size)).toPrecision(6)) + letter;
    }
    return number(v);
  }
  let live = [];

  function joined(series) {
    if (series.length === 1) return [series[0].x, series[0].y];
    const nulls = series.map(() => [0, 0]); // points that only other series have
    return uPlot.join(series.map((it) => [it.x, it.y]), nulls);
  }

  function options(it, width, readout) {
    const axis = {
      stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 },
      ticks: { stroke: colour("--rule"), width: 1, size: 4 }, font: "11px system-ui, sans-serif",
      labelFont: "11px system-ui, sans-serif", labelSize: 18,
    };
    return {
      width, height: 270,
      cursor: { sync: { key: it.x_name }, drag: { x: true, y: false }, points: { size: 7 } },
      legend: { show: false },
      scales: { x: { time: false }, y: it.log ? { distr: 3 } : it.zero ? { range: (u, low, high) => [Math.min(0, low), 1.05 * high || 1] } : {} },
      axes: [
        { ...axis, label: it.x_name, size: 32, values: (u, ticks) => ticks.map(tick) },
        { ...axis, label: it.y_name, size: 58, values: (u, ticks) => ticks.map(tick) },
      ],
      series: [{}].concat(it.series.map((one) => ({
        label: one.name, stroke: colour("--s" + one.style % 7), dash: dashes[Math.floor(one.style / 7) % 3],
        width: 1.6, spanGaps: true, points: { show: one.x.length <= 40, size: 5 },
      }))),
      hooks: { setCursor: [(u) => read(u, it, readout)] },
    };
  }

  // The values of the series at the cursor, or just before it.
  function read(u, it, readout) {
    const at = u.cursor.idx;
    if (at == null) { readout.textContent = hint; return; }
    const values = it.series.map((one, i) => {
      let k = at;
      while (k > 0 && u.data[i + 1][k] == null) k--;
      return (one.name ? one.name + " " : "") + number(u.data[i + 1][k]);
    });
    readout.textContent = it.x_name + " " + number(u.data[0][at]) + ": " + values.join(" · ");
  }

  function draw() {
    live.forEach((plot) => plot.destroy());
    live = [];
    document.querySelectorAll(".live, .readout").forEach((it) => it.remove());
    for (const box of document.querySelectorAll("[data-chart]")) {
      const it = charts[Number(box.dataset.chart)];
      const host = document.createElement("div");
      host.className = "live";
      const readout = document.createElement("p");
      readout.className = "readout";
      readout.textContent = hint;
      const picture = box.querySelector("svg");
      picture.style.display = "";
      const width = box.clientWidth;
      live.push(new uPlot(options(it, width, readout), joined(it.series), host));
      box.append(host, readout);
      picture.style.display = "none";
    }
    root.dataset.charts = String(live.length);
  }

  function start() {
    try {
      draw();
    } catch (error) { // keep the drawings
      root.dataset.error = String(error);
      console.error(error);
    }
  }

  start();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", start);
  let wide = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== wide) { wide = innerWidth; start(); }
  });
})();
