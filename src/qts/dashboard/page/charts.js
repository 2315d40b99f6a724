// Line charts over time, as SVG.
import { clock, h, number, zoned } from "./dom.js";

// In units of the picture, which are about pixels: labels stay readable on a phone.
const widthOf = () => (innerWidth < 700 ? 360 : 640);

// A line through the points, which begins again at each that `starts`; one between two gaps is a dot.
const path = (points, starts = () => false) =>
  points.map(([x, y], at) => (at && !starts(at) ? `L${x.toFixed(1)} ${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}h.01`)).join("");

function scale(values, height, pad) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (low === high) [low, high] = [low - 1, high + 1];
  return { low, high, y: (value) => height - pad - ((value - low) / (high - low)) * (height - 2 * pad) };
}

// `series`: [{name, kind, values}], all as long as `times`. A line is broken where more than `gap` seconds are missing.
export function lines(title, times, series, { height = 150, digits = 0, gap = Infinity, label = clock } = {}) {
  const all = series.flatMap((each) => each.values).filter(Number.isFinite);
  if (times.length < 2 || !all.length) return h("p", { class: "dim chart-empty" }, "…");
  const width = widthOf();
  const { low, high, y } = scale(all, height, 14);
  const ticks = [low, (low + high) / 2, high];
  const margin = 12 + 6.2 * Math.max(8, ...ticks.map((value) => number(value, digits).length)); // of the labels
  const end = width - margin;
  const span = times.at(-1) - times[0] || 1;
  const x = (time) => 4 + ((time - times[0]) / span) * (end - 4);
  return h(
    "svg",
    { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${number(low, digits)} – ${number(high, digits)}` },
    ticks.map((value) =>
      h("g", {}, h("line", { class: "grid", x1: 4, x2: end, y1: y(value), y2: y(value) }),
        h("text", { class: "axis", x: end + 6, y: y(value) + 4 }, number(value, digits)))),
    series.map(({ kind, values }) =>
      h("path", { class: `stroke ${kind}`, d: path(times.map((time, at) => [x(time), y(values[at])]), (at) => times[at] - times[at - 1] > gap) })),
    h("text", { class: "axis", x: 4, y: height - 1 }, zoned(label(times[0]))),
    h("text", { class: "axis end", x: end, y: height - 1 }, label(times.at(-1))),
    series.length > 1 && series.map(({ name, kind }, at) =>
      h("text", { class: `legend ${kind}`, x: 8 + at * 46, y: 11 }, name)),
  );
}
