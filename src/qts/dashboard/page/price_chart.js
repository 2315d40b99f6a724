// The price chart: candles, volume, our fills, stop and open orders. The library is loaded when a chart is first shown.
import { digits, h, number, price, quantity } from "./dom.js";
import { language, t } from "./labels.js";

const SEOUL_S = 9 * 3600; // the library draws times as UTC
const MAX_GAP = 30; // empty bars that stand for a gap, however long it is
const FIRST_BARS = 120; // that are shown before the operator zooms
const NEAR = 0.04; // of the price
const DASHED = 2;

let library = null;
let current = null; // {host, chart, series, volume, markers, priceLines, drawn}

export const chartHost = (symbol) => h("div", { id: "price-chart", class: "price-chart", "data-keep": `${symbol} ${language()}`, role: "img", "aria-label": `${t("price_chart")} ${symbol}` });

// Candles with empty bars where time is missing, so that a gap is seen as one. [[at, bar or null]]
export function withGaps(bars, barSeconds) {
  return bars.flatMap((bar, at) => {
    if (!at) return [[bar[0], bar]];
    const began = bars[at - 1][0];
    const missing = Math.min(MAX_GAP, Math.round((bar[0] - began) / barSeconds) - 1);
    const empty = Array.from({ length: Math.max(0, missing) }, (_, n) => [began + Math.round(((n + 1) * (bar[0] - began)) / (missing + 1)), null]);
    return [...empty, [bar[0], bar]];
  });
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const looks = () => ({ up: colour("up"), down: colour("down"), text: colour("dim"), line: colour("line"), buy: colour("a"), sell: colour("d"), warn: colour("warn"), accent: colour("accent") });

function create(host, { createChart, CandlestickSeries, HistogramSeries, createSeriesMarkers }) {
  const legend = h("p", { id: "legend", class: "legend-line dim" });
  const box = h("div", { class: "price-canvas" });
  host.replaceChildren(legend, box);
  const chart = createChart(box, {
    autoSize: true,
    localization: { locale: language() === "ko" ? "ko-KR" : "en-US" }, // a browser may have a language that is none, as en-US@posix
    layout: { attributionLogo: false, background: { color: "transparent" }, panes: { enableResize: false } },
    timeScale: { timeVisible: true, secondsVisible: true },
    crosshair: { mode: 0 },
  });
  const series = chart.addSeries(CandlestickSeries, { borderVisible: false, autoscaleInfoProvider: (own) => withLevels(own(), current?.levels ?? []) });
  const volume = chart.addSeries(HistogramSeries, { priceFormat: { type: "custom", minMove: 1, formatter: (value) => number(value) }, lastValueVisible: false, priceLineVisible: false }, 1);
  chart.panes()[1].setHeight(70);
  const created = { host, chart, series, volume, legend, markers: createSeriesMarkers(series, []), priceLines: [], drawn: {} };
  chart.subscribeCrosshairMove(({ time }) => describe(created, time));
  return created;
}

// Levels near the prices are in view; a far one would flatten the candles.
function withLevels(own, levels) {
  if (!own?.priceRange) return own;
  const { minValue, maxValue } = own.priceRange;
  const near = levels.map((each) => each.price).filter((at) => at > minValue * (1 - NEAR) && at < maxValue * (1 + NEAR));
  return { ...own, priceRange: { minValue: Math.min(minValue, ...near), maxValue: Math.max(maxValue, ...near) } };
}

function describe(shown, time) {
  const { bars } = shown.drawn;
  const bar = bars?.find(([at]) => at + SEOUL_S === time) ?? bars?.at(-1);
  if (!bar) return;
  const [at, open, high, low, close, , traded] = bar;
  const when = new Date((at + SEOUL_S) * 1000).toISOString().slice(0, 19).replace("T", " ");
  shown.legend.textContent = `${when} KST · ${t("bar_open")} ${price(open)} · ${t("bar_high")} ${price(high)} · ${t("bar_low")} ${price(low)} · ${t("bar_close")} ${price(close)} · ${t("volume")} ${number(traded)}`;
}

// Return whether the part changed since it was last drawn.
function changed(shown, part, ...values) {
  const text = JSON.stringify(values);
  if (shown.drawn[part] === text) return false;
  shown.drawn[part] = text;
  return true;
}

function drawBars(shown, bars, barSeconds, look) {
  const points = withGaps(bars, barSeconds);
  const places = digits(bars.at(-1)[4]);
  shown.series.applyOptions({ priceFormat: { type: "custom", minMove: 10 ** -places, formatter: price } });
  const first = shown.drawn.bars === undefined || shown.drawn.step !== barSeconds;
  shown.series.setData(points.map(([at, bar]) => (bar ? { time: at + SEOUL_S, open: bar[1], high: bar[2], low: bar[3], close: bar[4] } : { time: at + SEOUL_S })));
  shown.volume.setData(points.map(([at, bar]) => (bar ? { time: at + SEOUL_S, value: bar[6], color: `${bar[4] >= bar[1] ? look.up : look.down}80` } : { time: at + SEOUL_S })));
  Object.assign(shown.drawn, { bars, step: barSeconds });
  shown.host.dataset.bars = bars.length;
  shown.host.dataset.gaps = points.length - bars.length;
  if (first) shown.chart.timeScale().setVisibleLogicalRange({ from: points.length - FIRST_BARS, to: points.length + 3 });
  describe(shown, null);
}

// A fill belongs to the last bar that began before it; one before the first bar is not drawn.
function drawFills(shown, bars, fills, look) {
  const marks = fills.map((each) => ({ ...each, bar: bars.findLast(([at]) => at <= Date.parse(each.traded_at) / 1000) }))
    .filter((each) => each.bar)
    .map(({ side, quantity: size, price: at, bar }) => ({
      time: bar[0] + SEOUL_S, position: side === "BUY" ? "belowBar" : "aboveBar", shape: side === "BUY" ? "arrowUp" : "arrowDown",
      color: side === "BUY" ? look.buy : look.sell, text: `${quantity(size)} @ ${price(at)}`,
    }))
    .sort((a, b) => a.time - b.time);
  shown.markers.setMarkers(marks);
  shown.host.dataset.fills = marks.length;
}

function drawLevels(shown, levels, look) {
  shown.levels = levels;
  shown.priceLines.forEach((line) => shown.series.removePriceLine(line));
  shown.priceLines = levels.map(({ kind, price: at, title }) =>
    shown.series.createPriceLine({ price: at, title, color: { stop: look.warn, average: look.accent, BUY: look.buy, SELL: look.sell }[kind], lineStyle: DASHED, lineWidth: 1 }));
  shown.host.dataset.levels = levels.map((each) => `${each.kind} ${each.price}`).join(", ");
}

// What is drawn as a line across the chart: cost and stop of the position, limit prices of open orders.
export const levelsOf = (position, orders) => [
  ...(position ? [{ kind: "average", price: Number(position.average_price), title: t("average") }] : []),
  ...(position?.stop_price ? [{ kind: "stop", price: Number(position.stop_price), title: t("stop_at") }] : []),
  ...orders.filter((each) => each.price !== null && each.order_state === "OPEN")
    .map((each) => ({ kind: each.side, price: Number(each.price), title: `${t(each.side === "BUY" ? "buy" : "sell")} ${quantity(each.quantity)}` })),
];

// Draw into the host, which the page has placed; the library keeps zoom and position between two calls.
export async function drawPrices(host, symbol, { bars, barSeconds, fills, levels }) {
  library ??= import("./lightweight-charts.js");
  const loaded = await library;
  if (!host.isConnected) return;
  if (current?.host !== host || current.symbol !== symbol) {
    current?.chart.remove();
    current = { ...create(host, loaded), symbol };
  }
  const shown = current;
  const look = looks();
  const restyled = changed(shown, "look", look);
  if (restyled) {
    shown.chart.applyOptions({
      layout: { textColor: look.text, background: { color: "transparent" } }, grid: { vertLines: { color: look.line }, horzLines: { color: look.line } },
      rightPriceScale: { borderColor: look.line }, timeScale: { borderColor: look.line, secondsVisible: barSeconds < 60 },
    });
    shown.series.applyOptions({ upColor: look.up, downColor: look.down, wickUpColor: look.up, wickDownColor: look.down });
  }
  if (changed(shown, "data", bars, barSeconds) || restyled) drawBars(shown, bars, barSeconds, look);
  if (changed(shown, "fills", fills, bars[0]?.[0], bars.length) || restyled) drawFills(shown, bars, fills, look);
  if (changed(shown, "levels", levels) || restyled) drawLevels(shown, levels, look);
}

// Zoom for the keyboard and for fingers: by a factor around the newest bar, or to everything.
export function zoom(factor) {
  const scale = current?.chart.timeScale();
  const range = scale?.getVisibleLogicalRange();
  if (!range) return;
  if (!factor) scale.fitContent();
  else scale.setVisibleLogicalRange({ from: range.to - Math.max(5, (range.to - range.from) * factor), to: range.to });
}
