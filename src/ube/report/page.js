"use strict";
// Draws the charts and maps of #data, sorts tables, changes the theme. Everything a file said is set as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function draw(tag, attributes = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
}

/** Three digits, whole from 1,000 on; ticks `step` apart get as many as tell them apart. */
function written(value, step = Infinity) {
  if (value === null || !Number.isFinite(value)) return "…";
  const size = Math.abs(value);
  if (step < 0.01 * size) return value.toLocaleString("en", { maximumFractionDigits: Math.max(0, 1 - Math.floor(Math.log10(step))) });
  if (size >= 1e6) return String(+(value / 1e6).toPrecision(4)) + "M";
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(+value.toPrecision(3));
}

// --- theme -----------------------------------------------------------------------------------------------------------------
const root = document.documentElement;
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
});

// --- sortable tables -------------------------------------------------------------------------------------------------------
const UNKNOWN = ["", "…", "not run"];

function key(text) {
  if (text === "never") return Infinity;
  const number = parseFloat(text.replace(/,/g, ""));
  return Number.isNaN(number) ? text : number;
}

function compare(a, b) {
  if (typeof a === "string" && typeof b === "string") return a.localeCompare(b, "en", { numeric: true });
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = make("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => ({ row, text: row.cells[column]?.textContent.trim() ?? "" }));
      const known = rows.filter(({ text }) => !UNKNOWN.includes(text));
      known.sort((a, b) => sign * compare(key(a.text), key(b.text)));
      const unknown = rows.filter(({ text }) => UNKNOWN.includes(text)); // last, whichever way
      body.append(...[...known, ...unknown].map(({ row }) => row));
    });
  });
}
document.querySelectorAll("table.sortable").forEach(sortable);

// --- charts ----------------------------------------------------------------------------------------------------------------
const HEIGHT = 380, LEFT = 64, RIGHT = 28, TOP = 10, BOTTOM = 42, MOST_LINES = 15;

/** Mean over a window of 2 k + 1 points, those that are missing left out. */
function smoothed(values, k) {
  if (!values || k === 0) return values;
  return values.map((value, i) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, i - k), i + k + 1).filter((v) => v !== null);
    return near.reduce((sum, v) => sum + v, 0) / near.length;
  });
}

function axis(values, log, from, to) {
  const used = values.filter((v) => v !== null && Number.isFinite(v) && (!log || v > 0));
  let low = used.reduce((a, b) => Math.min(a, b), Infinity), high = used.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!used.length) [low, high] = log ? [1, 10] : [0, 1];
  const large = Math.max(Math.abs(low), Math.abs(high));
  if (high - low <= 1e-9 * large || low === high) {
    const around = large > 0 ? 0.5 * large : 0.5;
    [low, high] = log ? [low / 2, high * 2] : [low - around, high + around];
  }
  const f = log ? Math.log10 : (v) => v;
  if (!log && low > 0 && low < 0.4 * high) low = 0;
  const scale = (v) => from + ((f(v) - f(low)) / (f(high) - f(low))) * (to - from);
  let ticks = [], step = Infinity;
  if (log) {
    for (let e = Math.floor(f(low)); e <= Math.ceil(f(high)); e++)
      for (const m of f(high) - f(low) > 3 ? [1] : [1, 2, 5]) ticks.push(m * 10 ** e);
    ticks = ticks.filter((t) => t >= low * 0.999 && t <= high * 1.001);
  }
  if (ticks.length < 2) {
    const rough = (high - low) / 6, power = 10 ** Math.floor(Math.log10(rough));
    step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
    const first = Math.ceil(low / step), count = Math.min(20, Math.floor(high / step + 1e-9) - first + 1);
    ticks = Array.from({ length: Math.max(0, count) }, (_, k) => (first + k) * step);
  }
  ticks = ticks.map((t) => ({ at: scale(t), text: written(t, step) }));
  return { scale, ticks, fits: (v) => v !== null && (!log || v > 0) };
}

function chartWidget(place, charts) {
  const state = { chart: 0, smoothing: 0, hidden: new Set() };
  const select = make("select", { "aria-label": "which" }, ...charts.map((c, i) => make("option", { value: i }, c.title)));
  const smoothing = make("input", { type: "range", min: 0, max: 10, value: 0, "aria-label": "smoothing" });
  const logX = make("input", { type: "checkbox", "aria-label": "log x" });
  const logY = make("input", { type: "checkbox", "aria-label": "log y" });
  const controls = make("div", { class: "controls" });
  controls.append(charts.length > 1 ? make("label", {}, select) : charts[0].title);
  controls.append(
    make("label", {}, "smoothing", smoothing), make("label", {}, logX, "log x"), make("label", {}, logY, "log y"),
  );
  const svg = draw("svg", { role: "img" });
  const legend = make("div", { class: "legend" });
  const tip = make("div", { class: "tip", hidden: "" });
  place.append(controls, svg, legend, tip);
  let shown = [], xAxis = null, yAxis = null, cursor = null, width = 0;

  function choose(index) {
    state.chart = index;
    tip.hidden = true;
    logX.checked = charts[index].log_x;
    logY.checked = charts[index].log_y;
    legend.replaceChildren(...charts[index].series.map((series) => {
      const line = draw("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: series.colour, "stroke-width": 2, "stroke-dasharray": series.dash });
      const mark = draw("svg", { viewBox: "0 0 26 8" });
      mark.append(line);
      const button = make("button", { type: "button", "aria-pressed": !state.hidden.has(series.name) }, mark, series.name);
      button.addEventListener("click", () => {
        if (!state.hidden.delete(series.name)) state.hidden.add(series.name);
        button.setAttribute("aria-pressed", !state.hidden.has(series.name));
        render();
      });
      return button;
    }));
    render();
  }

  function path(x, y) {
    let text = "", pen = "M";
    x.forEach((at, i) => {
      if (!xAxis.fits(at) || !yAxis.fits(y[i])) { pen = "M"; return; }
      text += `${pen}${xAxis.scale(at).toFixed(1)} ${yAxis.scale(y[i]).toFixed(1)}`;
      pen = "L";
    });
    return text;
  }

  function band(series) {
    const there = series.x.map((_, i) => i).filter((i) =>
      xAxis.fits(series.x[i]) && yAxis.fits(series.y[i]) && series.low[i] !== null && series.high[i] !== null);
    const edge = (values) => there.map((i) =>
      `${xAxis.scale(series.x[i]).toFixed(1)} ${yAxis.scale(yAxis.fits(values[i]) ? values[i] : series.y[i]).toFixed(1)}`);
    return there.length ? `M${[...edge(series.high), ...edge(series.low).reverse()].join("L")}Z` : "";
  }

  function render() {
    const chart = charts[state.chart];
    width = Math.max(300, svg.clientWidth); // a unit is a pixel, so that text can be read on a phone
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    shown = chart.series.filter((s) => !state.hidden.has(s.name)).map((s) => ({
      ...s, y: smoothed(s.y, state.smoothing), low: smoothed(s.low, state.smoothing), high: smoothed(s.high, state.smoothing),
    }));
    xAxis = axis(shown.flatMap((s) => s.x), logX.checked, LEFT, width - RIGHT);
    yAxis = axis(shown.flatMap((s) => [...s.y, ...(s.low ?? []), ...(s.high ?? [])]), logY.checked, HEIGHT - BOTTOM, TOP);
    const parts = [];
    for (const { at: x, text } of xAxis.ticks) {
      parts.push(draw("line", { class: "grid", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
      parts.push(draw("text", { x, y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, text));
    }
    for (const { at: y, text } of yAxis.ticks) {
      parts.push(draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }));
      parts.push(draw("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, text));
    }
    parts.push(draw("text", { x: (LEFT + width) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, chart.x_label));
    const middle = (TOP + HEIGHT - BOTTOM) / 2;
    parts.push(draw("text", { x: 13, y: middle, "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` }, chart.y_label));
    for (const s of shown)
      if (s.low && s.high) parts.push(draw("path", { d: band(s), fill: s.colour, opacity: 0.13 }));
    for (const s of shown) {
      const line = draw("path", { class: "line", d: path(s.x, s.y), fill: "none", stroke: s.colour, "stroke-width": 2, "stroke-dasharray": s.dash });
      line.dataset.name = s.name;
      parts.push(line);
      const there = (i) => xAxis.fits(s.x[i] ?? null) && yAxis.fits(s.y[i] ?? null);
      if (!s.name.includes("(paper"))
        s.x.forEach((at, i) => { // few points, or one that no line leads to
          if (there(i) && (s.x.length <= 12 || !(there(i - 1) || there(i + 1)))) parts.push(draw("circle", { cx: xAxis.scale(at), cy: yAxis.scale(s.y[i]), r: 3.5, fill: s.colour }));
        });
    }
    cursor = draw("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    svg.replaceChildren(...parts, cursor);
  }

  function point(event) {
    const box = svg.getBoundingClientRect(), outer = place.getBoundingClientRect();
    const pointer = event.clientX - box.left;
    const distance = (x) => Math.abs(xAxis.scale(x) - pointer);
    const found = shown.map((s) => {
      const there = s.x.map((_, i) => i).filter((i) => xAxis.fits(s.x[i]) && s.y[i] !== null);
      return there.length ? { s, i: there.reduce((best, i) => (distance(s.x[i]) < distance(s.x[best]) ? i : best)) } : null;
    }).filter((one) => one !== null);
    if (!found.length) return;
    const nearest = found.reduce((best, one) => (distance(one.s.x[one.i]) < distance(best.s.x[best.i]) ? one : best));
    const at = nearest.s.x[nearest.i];
    found.sort((a, b) => b.s.y[b.i] - a.s.y[a.i]);
    const lines = found.map(({ s, i }) =>
      `${s.name}: ${written(s.y[i])}` + (s.low && s.high ? ` (${written(s.low[i])} to ${written(s.high[i])})` : "") +
      (s.x[i] !== at && !s.name.includes("(paper") ? ` at ${written(s.x[i])}` : ""));
    const more = lines.length > MOST_LINES ? [`… and ${lines.length - MOST_LINES} more`] : [];
    tip.textContent = [`${charts[state.chart].x_label} ${written(at)}`, ...lines.slice(0, MOST_LINES), ...more].join("\n");
    tip.hidden = false;
    const x = xAxis.scale(at) + box.left - outer.left;
    const left = x < outer.width / 2 ? x + 12 : x - tip.offsetWidth - 12;
    tip.style.left = `${Math.max(0, Math.min(left, outer.width - tip.offsetWidth))}px`;
    tip.style.top = `${box.top - outer.top + 14}px`;
    for (const [name, value] of [["x1", xAxis.scale(at)], ["x2", xAxis.scale(at)], ["visibility", "visible"]]) cursor.setAttribute(name, value);
  }

  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "touch") return; // a finger has no other way to look
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  });
  new ResizeObserver(() => { if (svg.clientWidth && svg.clientWidth !== width) render(); }).observe(svg);
  select.addEventListener("change", () => choose(+select.value));
  smoothing.addEventListener("input", () => { state.smoothing = +smoothing.value; render(); });
  logX.addEventListener("change", render);
  logY.addEventListener("change", render);
  choose(0);
}

document.querySelectorAll(".chart").forEach((place) => chartWidget(place, data.charts[place.dataset.charts]));

// --- maps ------------------------------------------------------------------------------------------------------------------
const VIRIDIS = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37]];

function colour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1), i = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[i].map((c, k) => Math.round(c + (at - i) * (VIRIDIS[i + 1][k] - c)));
}

function mapsWidget(place, maps) {
  const slider = make("input", { type: "range", min: 0, max: maps.looks.length - 1, value: 0, "aria-label": "training" });
  const when = make("output");
  const grids = make("div", { class: "grids" });
  place.append(make("p", { class: "meta" }, maps.title), make("div", { class: "controls" }, make("label", {}, "training"), slider, when), grids);
  const size = maps.size;
  const tops = {};
  for (const name of Object.keys(maps.labels)) {
    const scale = maps.same_colours.includes(name) ? maps.same_colours[0] : name;
    for (const look of maps.looks)
      look[name].forEach((row, r) => row.forEach((value, c) => { if (c <= r) tops[scale] = Math.max(tops[scale] ?? 0, value); }));
  }
  const drawn = Object.entries(maps.labels).map(([name, label]) => {
    const canvas = make("canvas", { width: size, height: size, "data-map": name });
    const read = make("div", { class: "meta" });
    const top = tops[maps.same_colours.includes(name) ? maps.same_colours[0] : name];
    grids.append(make("div", {}, make("div", {}, label), canvas, read));
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.min(size - 1, Math.floor(((event.clientX - box.left) / box.width) * size));
      const row = Math.min(size - 1, Math.floor(((event.clientY - box.top) / box.height) * size));
      read.textContent = column > row ? "out of reach" : `row ${row}, column ${column}: ${written(maps.looks[+slider.value][name][row][column])}`;
    });
    const legend = () => { read.textContent = `0 (dark) to ${written(top)} (bright)`; };
    canvas.addEventListener("pointerleave", legend);
    legend();
    return { name, canvas, top };
  });
  function render() {
    const look = maps.looks[+slider.value];
    when.textContent = `after ${look.episode.toLocaleString("en")} episodes`;
    for (const { name, canvas, top } of drawn) {
      const context = canvas.getContext("2d", { willReadFrequently: true }), image = context.createImageData(size, size);
      const share = name === "visits" ? (v) => Math.log1p(v) / Math.log1p(top) : (v) => v / top;
      look[name].forEach((row, r) => row.forEach((value, c) => {
        if (c <= r) image.data.set([...colour(top > 0 ? share(value) : 0), 255], 4 * (r * size + c));
      }));
      context.putImageData(image, 0, 0);
    }
  }
  slider.addEventListener("input", render);
  render();
}

document.querySelectorAll(".maps").forEach((place) => mapsWidget(place, data.maps[place.dataset.maps]));
