// Draws tables as curves. The table is the source: chart and table never differ.
//
// An element with `data-chart` names a table. There, the head's `data-x` is the column of steps,
// each `data-line` is a curve of its `data` elements, and with `data-group` the one `data-line` is a
// curve for each value of that column. `data-scale` of the table is what a value is multiplied with.
// Of several `data-x` an element whose `data-axis` names the chart's place chooses one.
(() => {
  "use strict";
  const HEIGHT = 260;
  const MAX_LINES = 4; // as many as have a colour and a dash of their own
  const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];
  const WHOLE = [...Array(13).keys()].flatMap((n) => [1, 2, 5].map((k) => k * 10 ** n));
  const charts = new Map(); // by the id of their place: { chart, names }

  const heads = (table, name) => [...table.tHead.rows[0].cells].filter((cell) => name in cell.dataset);
  const number = (cell, scale) => {
    const data = cell.querySelector("data");
    return data ? Number(data.value) * scale : null;
  };
  const choiceOf = (place) => document.querySelector(`[data-axis="${place.id}"]`);
  const xOf = (place, table) => heads(table, "x")[choiceOf(place)?.value ?? 0];
  const rowsOf = (place, table) => [...table.tBodies[0].rows]
    .filter((row) => row.cells.length === table.tHead.rows[0].cells.length)
    .map((row) => [Number(row.cells[xOf(place, table).cellIndex].textContent.replaceAll(",", "")), row])
    .filter(([x]) => Number.isFinite(x))
    .sort(([a], [b]) => a - b);
  const curves = (place, table) => {
    const scale = Number(table.dataset.scale ?? 1e-6);
    const rows = rowsOf(place, table), [group] = heads(table, "group"), lines = heads(table, "line");
    const steps = rows.map(([step]) => step);
    const values = (line) => rows.map(([, row]) => number(row.cells[line.cellIndex], scale));
    if (!group) return { steps, lines: lines.map((line) => [line.textContent, values(line)]) };
    const groups = rows.map(([, row]) => row.cells[group.cellIndex].textContent);
    const all = values(lines[0]);
    const names = [...new Set(groups.filter((_, i) => all[i] !== null))].slice(0, MAX_LINES);
    return { steps, lines: names.map((name) => [name, all.map((v, i) => (groups[i] === name ? v : null))]) };
  };
  // custom properties with light-dark() are resolved only where they are used
  const resolved = (place, name) => {
    place.classList.add(name);
    const value = getComputedStyle(place).color;
    place.classList.remove(name);
    return value;
  };
  const axis = (place, label, more = {}) => ({
    ...more, label, stroke: resolved(place, "ink"), grid: { stroke: resolved(place, "rule"), width: 1 },
    ticks: { stroke: resolved(place, "rule"), width: 1 }, font: "12px system-ui", labelFont: "12px system-ui",
  });
  const options = (place, table, names) => ({
    width: place.clientWidth, height: HEIGHT, scales: { x: { time: false } },
    axes: [
      axis(place, xOf(place, table).textContent, { incrs: WHOLE }),
      axis(place, heads(table, "line")[0].textContent, { size: 84 }),
    ],
    series: [{ label: xOf(place, table).textContent }, ...names.map((label, i) => ({
      label, stroke: resolved(place, `line${i}`), width: 2, dash: DASHES[i], spanGaps: true,
      points: { show: i > 0 || heads(table, "group").length > 0, size: 5 },
    }))],
  });
  const make = (place) => {
    const table = document.getElementById(place.dataset.chart);
    const { steps, lines } = curves(place, table), names = lines.map(([name]) => name);
    charts.get(place.id)?.chart.destroy();
    charts.delete(place.id);
    place.hidden = steps.length < 2 || lines.length === 0;
    if (choiceOf(place)) choiceOf(place).parentElement.hidden = place.hidden;
    if (place.hidden) return;
    const chart = new uPlot(options(place, table, names), [steps, ...lines.map(([, v]) => v)], place);
    charts.set(place.id, { chart, names });
  };
  const update = (place) => {
    const { steps, lines } = curves(place, document.getElementById(place.dataset.chart));
    const held = charts.get(place.id), names = lines.map(([name]) => name);
    if (held?.names.join() !== names.join()) make(place);
    else held.chart.setData([steps, ...lines.map(([, v]) => v)]);
  };
  const places = () => document.querySelectorAll("[data-chart]");
  const each = (act) => () => places().forEach(act);

  document.addEventListener("DOMContentLoaded", () => {
    each(make)();
    document.addEventListener("themechange", each(make));
    document.querySelectorAll("[data-axis]").forEach((choice) =>
      choice.addEventListener("change", () => make(document.getElementById(choice.dataset.axis))));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", each(make));
    document.body.addEventListener("htmx:afterSettle", each(update));
    const resized = new ResizeObserver((seen) => seen.forEach(({ target }) => {
      const { chart } = charts.get(target.id) ?? {};
      if (chart && target.clientWidth) chart.setSize({ width: target.clientWidth, height: HEIGHT });
    }));
    places().forEach((place) => resized.observe(place));
  });
})();
