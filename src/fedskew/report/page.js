"use strict";
// Hands the data of the page to ECharts, and redraws when the theme, the width or the x axis changes.
let data = JSON.parse(document.getElementById("report-data").textContent);
const root = document.documentElement;
const button = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map();
let printing = false;
let axis = "round";

const dark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
const percent = (value) => (typeof value === "number" ? `${Number((100 * value).toPrecision(4))} %` : "–");
const short = (value) => (typeof value === "number" ? String(Number(value.toPrecision(5))) : (value ?? "–"));

// The edges of a band are two columns of the table that its curve is from.
const band = ([low, high]) => (params, api) => {
  if (params.dataIndexInside > 0) return null;
  const places = [...Array(params.dataInsideLength).keys()].filter((i) => Number.isFinite(api.value(low, i)));
  const edge = (name) => places.map((i) => api.coord([api.value(axis, i), api.value(name, i)]));
  const points = edge(low).concat(edge(high).reverse());
  return { type: "polygon", shape: { points }, style: { fill: api.visual("color"), opacity: 0.18 } };
};

// A text node, because names of classes and clients are no HTML.
const cell = (option) => (item) => {
  const [column, row, share, count] = item.value;
  const place = document.createElement("div");
  place.textContent = `${option.yAxis.name} ${option.yAxis.data[row]}, ${option.xAxis.name} ${option.xAxis.data[column]}: ${count} (${short(100 * share)} %)`;
  return place;
};

function prepared(name) {
  const option = structuredClone(data.charts[name]);
  const quiet = dark() ? "#a9b6c1" : "#51606d";
  const rule = dark() ? "#38444f" : "#d3dae0";
  option.backgroundColor = "transparent";
  option.animation = false;
  option.tooltip.valueFormatter = option.yAxis.percent ? percent : short;
  option.legend.textStyle = { color: dark() ? "#e8edf1" : "#1a2229" };
  for (const one of [option.xAxis, option.yAxis]) {
    one.axisLabel = { ...one.axisLabel, color: quiet };
    if (one.percent) one.axisLabel.formatter = percent;
    one.nameTextStyle = { color: quiet };
    one.axisLine = { lineStyle: { color: quiet } };
    one.splitLine = { show: one.type === "value", lineStyle: { color: rule } };
  }
  if (option.tooltip.cells) option.tooltip.formatter = cell(option);
  if (option.visualMap) {
    option.visualMap.inRange = { color: dark() ? ["#1f2a34", "#2f6f9f", "#bfe3ff"] : ["#eef3f7", "#6baed6", "#08306b"] };
    option.visualMap.textStyle = { color: quiet };
  }
  if (option.axis) {
    option.dataset = option.dataset.map((table) => ({ source: data.tables[table] }));
    option.xAxis.name = data.axes[axis];
    option.xAxis.scale = axis === "round";
    option.xAxis.minInterval = axis === "round" ? 1 : 0;
    option.xAxis.min = axis === "round" ? "dataMin" : 0;
    option.xAxis.max = "dataMax";
    option.xAxis.axisLabel.formatter = (value) => String(Number(value.toPrecision(3)));
    option.xAxis.axisLabel.hideOverlap = true;
    for (const series of option.series) {
      series.encode = { ...series.encode, x: axis };
      if (series.band) {
        series.encode.y = series.band;
        series.renderItem = band(series.band);
        series.tooltip = { show: false };
      }
    }
  }
  return option;
}

// As SVG, which is sharp on paper and drawn at once: a canvas is finished frames later, and may be printed half drawn.
function draw() {
  const chosen = new Map();
  for (const [place, chart] of drawn) {
    chosen.set(place.dataset.chart, chart.getOption().legend[0].selected);
    chart.dispose();
  }
  drawn.clear();
  for (const place of document.querySelectorAll("[data-chart]")) {
    const chart = echarts.init(place, dark() ? "dark" : null, { renderer: "svg" });
    const option = prepared(place.dataset.chart);
    option.legend.selected = chosen.get(place.dataset.chart);
    chart.setOption(option);
    chart.getZr().flush();
    drawn.set(place, chart);
  }
  button.textContent = dark() ? "Light" : "Dark";
  button.setAttribute("aria-pressed", String(dark()));
}

button.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  draw();
});
document.addEventListener("change", (event) => {
  if (event.target.name !== "axis") return;
  axis = event.target.value;
  draw();
});
system.addEventListener("change", draw);
for (const [event, now] of [["beforeprint", true], ["afterprint", false]]) {
  window.addEventListener(event, () => {
    printing = now;
    draw();
  });
}
new ResizeObserver(() => drawn.forEach((chart) => chart.resize())).observe(document.getElementById("main"));

// The unit in the name of an axis may be another one later: MB, then GB.
function show() {
  axis = Object.keys(data.axes).find((name) => name.split(" ")[0] === axis.split(" ")[0]) ?? "round";
  for (const choice of document.querySelectorAll("input[name=axis]")) choice.checked = choice.value === axis;
  draw();
  root.dataset.drawn = String(drawn.size);
}
show();

// A live page: its server is asked for newer content. What a reader has opened, chosen and focused stays so.
const live = document.getElementById("live");
const placed = new Map();
let version = 0;
let missed = 0;

function put(place, html) {
  if (placed.get(place) !== html) place.innerHTML = html;
  placed.set(place, html);
}

function replace(fresh) {
  const opened = [...document.querySelectorAll("details[open]")].map((details) => details.closest("[id]").id);
  const focused = document.activeElement.closest("figure")?.id;
  const switching = document.activeElement.name === "axis";
  const scrolled = scrollY;
  data = fresh.data;
  document.title = document.querySelector("h1").textContent = fresh.title;
  put(document.querySelector("nav"), fresh.links);
  put(document.getElementById("sections"), fresh.body);
  for (const id of opened) {
    const details = document.getElementById(id)?.querySelector("details");
    if (details) details.open = true;
  }
  show();
  scrollTo(0, scrolled);
  if (switching) document.querySelector("input[name=axis]:checked")?.focus({ preventScroll: true });
  if (focused) document.getElementById(focused)?.querySelector("summary").focus({ preventScroll: true });
}

async function follow() {
  const fresh = await fetch("data").then((answer) => (answer.ok ? answer.json() : null)).catch(() => null);
  missed = fresh ? 0 : missed + 1;
  if (fresh) {
    if (fresh.version !== version) replace(fresh);
    version = fresh.version;
    live.textContent = fresh.says;
  } else if (missed === 3) {
    live.textContent = "The server is gone: the run has ended or was stopped. This is what it showed last.";
  }
  if (fresh?.ended || missed === 3) live.setAttribute("role", "status");
  else setTimeout(follow, 2000);
}
if (live) follow();
