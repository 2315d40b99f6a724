// Trades: round trips, a calendar of days, and sums by strategy, symbol and exit reason.
import { button, card, compact, figure, h, moment, n, number, price, quantity, right, row, share, signedShare, signedWon, table, tone } from "./dom.js";
import { named, setVenues } from "./pages_trade.js";
import { titled } from "./names.js";
import { stateName, t } from "./labels.js";
import { withAccount } from "./state.js";

const SPANS = ["7d", "30d", "90d", "365d"];
const chosenOf = (filters) => filters.trades ?? "30d";
const WEEKDAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const DAY_MS = 86400000;

const held = (from, to) => {
  const seconds = (Date.parse(to) - Date.parse(from)) / 1000;
  return seconds < 120 ? `${number(seconds)} s` : seconds < 7200 ? `${number(seconds / 60)} min` : seconds < 172800 ? `${number(seconds / 3600, 1)} h` : `${number(seconds / 86400, 1)} d`;
};
const gain = (trade) => Number(trade.profit) / (Number(trade.entry) * Number(trade.quantity));

const sums = (title, groups, name) =>
  card(title, table([title, right(t("trades")), right(t("win_rate")), right(t("profit"))],
    groups.map((each) => row([name(each.name), n(number(each.trades)), n(share(each.wins / each.trades)), n(signedWon(each.profit), tone(each.profit))])), t("no_trades")));

// Weeks from the first day with a trade to the last, Monday first; at most a year.
function calendar(days) {
  const found = new Map(days.map((each) => [each.name, each]));
  const times = days.map((each) => Date.parse(each.name));
  const monday = (at) => at - ((new Date(at).getUTCDay() + 6) % 7) * DAY_MS;
  const largest = Math.max(...days.map((each) => Math.abs(each.profit)), 1);
  const cell = (at) => {
    const name = new Date(at).toISOString().slice(0, 10);
    const each = found.get(name);
    if (!each) return h("td", {}, h("small", { class: "dim" }, name.slice(5)));
    const strength = Math.ceil((Math.abs(each.profit) / largest) * 3);
    return h("td", { class: `day ${tone(each.profit)}-${strength}`, "data-day": name }, h("small", {}, name.slice(5)), h("b", { title: signedWon(each.profit) }, compact(each.profit)), h("small", {}, `${number(each.trades)} ×`));
  };
  const weeks = [];
  for (let at = monday(Math.min(...times)); at <= Math.max(...times); at += 7 * DAY_MS) weeks.push(h("tr", {}, WEEKDAYS.map((_, day) => cell(at + day * DAY_MS))));
  return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": t("days") },
    h("table", { class: "calendar" }, h("thead", {}, h("tr", {}, WEEKDAYS.map((day) => h("th", { scope: "col" }, t(day))))), h("tbody", {}, weeks.reverse())));
}

const tripTable = (trades) =>
  table([t("closed"), t("symbol"), t("strategy"), right(t("quantity")), right(t("entry")), right(t("exit")), right(t("held_for")), right(t("fees")), right(t("profit")), t("exit_reason")],
    trades.map((each) => row([moment(each.closed_at), named(each), stateName(each.strategy || "manual"), n(quantity(each.quantity)), n(price(each.entry)), n(price(each.exit)),
      n(held(each.opened_at, each.closed_at)), n(price(each.fees)), n([signedWon(each.profit), h("small", {}, ` ${signedShare(gain(each))}`)], tone(each.profit)), stateName(each.reason)])), t("no_trades"));

export const trades = {
  from: "tables",
  refresh_ms: 5000, // a year of fills is a larger query
  path: (_id, filters) => `trades?span=${chosenOf(filters)}`,
  draw(state, data, _id, filters) {
    setVenues(state.live);
    const span = chosenOf(filters);
    const { total } = data ?? {};
    return h("div", { class: "grid" },
      h("section", { class: "card wide" }, h("h2", {}, t("trades")),
        h("div", { class: "buttons", role: "group", "aria-label": t("span_of") }, SPANS.map((each) => button(t(`span_${each}`), "trades-span", { "data-span": each, "aria-pressed": each === span }, each === span ? "chosen" : "")),
          h("a", { class: "button", href: withAccount(`/api/trades.csv?span=${span}`), download: "qts-trades.csv" }, t("download"))),
        total && h("div", { class: "figures" },
          figure(t("profit_sum"), signedWon(total.profit), tone(total.profit)), figure(t("trades"), number(total.trades)),
          figure(t("win_rate"), total.trades ? share(total.wins / total.trades) : "–"), figure(t("average_trade"), total.trades ? signedWon(total.profit / total.trades) : "–", tone(total.profit))),
        h("p", { class: "dim" }, t("net_of_fees"))),
      total?.trades > 0 && [
        h("section", { class: "card wide", id: "days" }, h("h2", {}, t("days")), calendar(data.days)),
        sums(t("by_strategy"), data.strategies, stateName), sums(t("by_symbol"), data.symbols, (symbol) => titled(symbol)), sums(t("by_reason"), data.reasons, stateName)],
      data && h("section", { class: "card wide", id: "trips" }, h("h2", {}, t("trades")), tripTable(data.trades)));
  },
};
