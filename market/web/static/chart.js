// Draws the table of losses as a curve. The table is the source: chart and table never differ.
(() => {
  "use strict";
  const HEIGHT = 260;
  const WHOLE = [0, 1, 2, 3, 4, 5, 6].flatMap((n) => [1, 2, 5].map((k) => k * 10 ** n));
  let chart = null;

  const number = (cell) => {
    const data = cell.querySelector("data");
    return data ? Number(data.value) / 1e6 : null;
  };
  const rows = () => {
    const steps = [], losses = [], validations = [];
    for (const row of document.querySelectorAll("#losses tbody tr")) {
      if (row.cells.length < 5) continue;
      steps.push(Number(row.cells[0].textContent));
      losses.push(number(row.cells[1]));
      validations.push(number(row.cells[2]));
    }
    return [steps, losses, validations];
  };
  // custom properties with light-dark() are resolved only where they are used
  const resolved = (name) => {
    const probe = document.getElementById("loss-chart");
    probe.classList.add(name);
    const value = getComputedStyle(probe).color;
    probe.classList.remove(name);
    return value;
  };
  const axis = (label, more = {}) => ({
    ...more, label, stroke: resolved("ink"), grid: { stroke: resolved("rule"), width: 1 },
    ticks: { stroke: resolved("rule"), width: 1 }, font: "12px system-ui", labelFont: "12px system-ui",
  });
  const options = (place) => ({
    width: place.clientWidth, height: HEIGHT, scales: { x: { time: false } },
    axes: [axis("step", { incrs: WHOLE }), axis("loss")],
    series: [
      { label: "step" },
      { label: "loss", stroke: resolved("line"), width: 2, points: { show: false } },
      { label: "validation", stroke: resolved("line2"), width: 2, dash: [6, 4], spanGaps: true,
        points: { show: true, size: 5 } },
    ],
  });
  const make = () => {
    const place = document.getElementById("loss-chart");
    const data = rows();
    if (chart) chart.destroy();
    chart = null;
    place.hidden = data[0].length < 2;
    if (!place.hidden) chart = new uPlot(options(place), data, place);
  };
  const update = () => {
    const data = rows();
    if (!chart) make();
    else chart.setData(data);
  };

  document.addEventListener("DOMContentLoaded", () => {
    make();
    document.addEventListener("themechange", make);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", make);
    document.body.addEventListener("htmx:oobAfterSwap", update);
    new ResizeObserver(() => {
      const place = document.getElementById("loss-chart");
      if (chart && place.clientWidth) chart.setSize({ width: place.clientWidth, height: HEIGHT });
    }).observe(document.getElementById("loss-chart"));
  });
})();
