// Market: the chart of a symbol, its quote, order book and orders; the indices.
import { bar, button, card, digits, figure, h, n, number, price, quantity, row, share, tone } from "./dom.js";
import { nameOf } from "./names.js";
import { orderTable, setVenues } from "./pages_trade.js";
import { chartHost, drawPrices, levelsOf } from "./price_chart.js";
import { t } from "./labels.js";

const BARS = { 1: "1 s", 5: "5 s", 15: "15 s", 60: "1 min", 300: "5 min", 900: "15 min", 3600: "1 h" };

const quote = (data, live) => {
  const [last, bid, ask] = [data.price?.last ?? data.candles.at(-1)?.[4], live?.bids[0]?.[0] ?? data.price?.bid, live?.asks[0]?.[0] ?? data.price?.ask];
  return h("div", { class: "figures" }, figure(t("price"), price(last)), figure(t("bid"), price(bid)), figure(t("ask"), price(ask)));
};
const book = (live) => {
  const { bids = [], asks = [] } = live ?? {};
  if (!bids.length && !asks.length) return null;
  const largest = Math.max(...[...bids, ...asks].map((each) => Number(each[1])), 1);
  const side = (levels, kind) => levels.slice(0, 10).map((each) => row([n(number(each[0], digits(each[0]))), n(quantity(each[1])), h("td", {}, bar(Number(each[1]) / largest, kind))], { class: kind }));
  return h("table", { class: "book", "aria-label": t("book") }, h("tbody", {}, side(asks, "bad").reverse(), side(bids, "good")));
};

const indices = (now) => {
  const found = Object.entries(now?.indices ?? {});
  if (!found.length && !now?.surges?.length) return null;
  return card(t("indices"),
    h("div", { class: "figures" },
      found.map(([name, each]) => figure(name, number(each.value, 2), tone(each.change), each.change ? share(each.change) : "")),
      now.volatility_index > 0 && figure(t("volatility_index"), number(now.volatility_index, 2)),
      found.length > 0 && figure(t("realised_volatility"), share(now.realised_volatility))),
    now.surges.length > 0 && h("p", { class: "chips" }, t("volume_surges"), " ",
      now.surges.slice(0, 10).map((each) => h("a", { class: "chip", href: `#/market/${each.symbol}` }, `${nameOf(each.symbol) || each.symbol} ${number(each.turnover / 1e6, 1)} M`))));
};

const BAR = 5; // seconds, unless the operator chooses another
const barOf = (filters) => Number(filters.bar ?? BAR);
const controls = (symbols, filters) =>
  h("div", { class: "buttons" },
    h("input", { id: "symbol", "data-go": "market", list: "symbols", placeholder: t("symbol"), "aria-label": t("symbol") }),
    h("datalist", { id: "symbols" }, symbols.map((symbol) => h("option", { value: symbol }))),
    Object.entries(BARS).map(([seconds, text]) => button(text, "bar", { "data-bar": seconds, "aria-pressed": barOf(filters) === Number(seconds) }, barOf(filters) === Number(seconds) ? "chosen" : "")));

const chart = (symbol) => [
  chartHost(symbol),
  h("div", { class: "buttons" },
    button("+", "zoom", { "data-factor": 0.5, "aria-label": t("zoom_in") }), button("−", "zoom", { "data-factor": 2, "aria-label": t("zoom_out") }), button(t("zoom_all"), "zoom", { "data-factor": 0 }),
    h("small", { class: "dim" }, h("a", { class: "back", href: "https://www.tradingview.com/", rel: "noopener noreferrer", target: "_blank" }, "TradingView"), " Lightweight Charts™ © TradingView, Inc.")),
];

export const market = {
  path: (symbol, filters) => `market?symbol=${encodeURIComponent(symbol ?? "")}&bar=${barOf(filters)}`,
  draw(state, data, selected, filters) {
    setVenues(state.live);
    const symbols = [...new Set([...(state.live?.positions ?? []).map((each) => each.symbol), ...(data?.symbols ?? []), ...(state.live?.feed?.poller.bursts ?? [])])];
    const books = state.live?.market?.books ?? {};
    return h("div", { class: "grid" },
      h("section", { class: "card wide" }, h("h2", {}, [t("market"), selected, selected && nameOf(selected)].filter(Boolean).join(" ")),
        controls(symbols, filters),
        !selected && h("p", { class: "chips" }, symbols.slice(0, 40).map((symbol) => h("a", { class: "chip", href: `#/market/${symbol}` }, [symbol, nameOf(symbol)].filter(Boolean).join(" ")))),
        selected && data && (data.candles.length ? chart(selected) : h("p", { class: "dim" }, t("no_ticks")))),
      indices(state.live?.market),
      selected && data && card(t("book"), quote(data, books[selected]), book(books[selected])),
      selected && card(t("orders"), orderTable(data?.orders ?? [])));
  },
  drawn(state, data, selected, filters) {
    const host = document.getElementById("price-chart");
    if (!host || !data?.candles?.length) return;
    const position = state.live?.positions.find((each) => each.symbol === selected);
    drawPrices(host, selected, { bars: data.candles, barSeconds: barOf(filters), fills: data.fills, levels: levelsOf(position, data.orders) });
  },
};
