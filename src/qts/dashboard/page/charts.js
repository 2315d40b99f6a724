// Charts as SVG: lines over time, and candles with fills.
import { clock, h, number } from "./dom.js";

const WIDTH = 640;

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
export function lines(times, series, { height = 150, digits = 0, gap = Infinity, label = clock } = {}) {
  const all = series.flatMap((each) => each.values).filter(Number.isFinite);
  if (times.length < 2 || !all.length) return h("p", { class: "dim chart-empty" }, "…");
  const { low, high, y } = scale(all, height, 14);
  const span = times.at(-1) - times[0] || 1;
  const x = (time) => 4 + ((time - times[0]) / span) * (WIDTH - 70);
  return h(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${height}`, role: "img" },
    [low, (low + high) / 2, high].map((value) =>
      h("g", {}, h("line", { class: "grid", x1: 4, x2: WIDTH - 66, y1: y(value), y2: y(value) }),
        h("text", { class: "axis", x: WIDTH - 60, y: y(value) + 4 }, number(value, digits)))),
    series.map(({ kind, values }) =>
      h("path", { class: `stroke ${kind}`, d: path(times.map((time, at) => [x(time), y(values[at])]), (at) => times[at] - times[at - 1] > gap) })),
    h("text", { class: "axis", x: 4, y: height - 1 }, label(times[0])),
    h("text", { class: "axis end", x: WIDTH - 66, y: height - 1 }, label(times.at(-1))),
    series.length > 1 && series.map(({ name, kind }, at) =>
      h("text", { class: `legend ${kind}`, x: 8 + at * 46, y: 11 }, name)),
  );
}

// candles: [at, open, high, low, close, ticks]; fills: {side, price, traded_at, quantity}
export function candles(bars, fills, barSeconds) {
  const height = 230;
  const shown = bars.slice(-120);
  if (!shown.length) return null;
  const first = shown[0][0];
  const last = shown.at(-1)[0];
  const markers = fills
    .map((fill) => ({ ...fill, at: Date.parse(fill.traded_at) / 1000 }))
    .filter((fill) => fill.at >= first && fill.at <= last + barSeconds);
  const prices = [...shown.flatMap((bar) => [bar[2], bar[3]]), ...markers.map((fill) => Number(fill.price))];
  const { low, high, y } = scale(prices, height, 20);
  const step = (WIDTH - 70) / Math.max(40, shown.length);
  const xOf = new Map(shown.map((bar, at) => [bar[0], 4 + at * step + step / 2]));
  const nearest = (at) => xOf.get(Math.floor(at / barSeconds) * barSeconds);
  return h(
    "svg",
    { class: "chart candles", viewBox: `0 0 ${WIDTH} ${height}`, role: "img" },
    [low, (low + high) / 2, high].map((value) =>
      h("g", {}, h("line", { class: "grid", x1: 4, x2: WIDTH - 66, y1: y(value), y2: y(value) }),
        h("text", { class: "axis", x: WIDTH - 60, y: y(value) + 4 }, number(value)))),
    shown.map(([at, open, top, bottom, close]) => {
      const x = xOf.get(at);
      const kind = close >= open ? "up" : "down";
      return h("g", { class: kind },
        h("line", { class: "wick", x1: x, x2: x, y1: y(top), y2: y(bottom) }),
        h("rect", { class: "body", x: x - step * 0.35, width: Math.max(1, step * 0.7),
          y: Math.min(y(open), y(close)), height: Math.max(1, Math.abs(y(open) - y(close))) }));
    }),
    markers.map((fill) => {
      const x = nearest(fill.at);
      if (x === undefined) return null;
      const up = fill.side === "BUY";
      const tip = y(Number(fill.price));
      const base = up ? tip + 12 : tip - 12;
      return h("path", { class: `marker ${up ? "buy" : "sell"}`, d: `M${x} ${tip}L${x - 5} ${base}L${x + 5} ${base}Z` },
        h("title", {}, `${fill.side} ${fill.quantity} @ ${fill.price}`));
    }),
    h("text", { class: "axis", x: 4, y: height - 2 }, clock(first)),
    h("text", { class: "axis end", x: Math.max(120, xOf.get(last) + step), y: height - 2 }, clock(last)),
  );
}
