// Overview, Orders, Market, Strategies.
import { candles, lines } from "./charts.js";
import { bar, button, card, chip, clock, day, figure, h, moment, n, number, quantity, right, row, share, signed, signedShare, signedWon, table, tone, won } from "./dom.js";
import { nameOf, titled } from "./names.js";
import { may } from "./state.js";
import { t } from "./labels.js";

const switchText = ({ switches, now }) => {
  const account = switches?.account;
  if (now.stored === "unknown" || !switches) return h("p", { class: "dim" }, h("b", {}, t("switch_unknown")));
  const [kind, text] = account?.enabled ? ["good", t("trading_on")] : ["bad", t("trading_off")];
  return h("p", { class: kind, "data-from": "stored" }, h("b", {}, text), account?.reason ? ` · ${account.reason} (${account.changed_by})` : "");
};

const switchPanel = (state) => {
  const known = state.now.stored === "known";
  const on = state.switches?.account?.enabled;
  const safety = state.safety?.state;
  return card(
    t("kill_switch"),
    switchText(state),
    may("trade") && h("div", { class: "buttons" },
      known && !on
        ? button(t("allow_trading"), "kill", { "data-on": "1", id: "allow" }, "go")
        : button(t("stop_trading"), "kill", { "data-on": "0", id: "kill" }, "stop"),
      known && may("admin") && (safety === "FAIL" || safety === "LOCKDOWN") && button(t("release"), "release", { id: "release" }, "warn")),
  );
};

// The venue of a row, in a run on several; set by each page before it draws.
let venues = [];
const venueOf = (each) => venues.length > 1 && (each.venue || venues.find((one) => one.broker === each.broker && one.account === each.account)?.venue);
const named = (each) => [venueOf(each) && h("small", { class: "dim" }, `${venueOf(each)} `), titled(each.symbol, each.name)];

const positionTable = (positions, equity) =>
  table(
    [t("symbol"), right(t("quantity")), right(t("weight")), right(t("average")), right(t("price")), right(t("stop_at")), right(t("price_age")), right(t("pnl")), t("strategy"), ...(may("trade") ? [""] : [])],
    positions.map((each) =>
      row([named(each), n(quantity(each.quantity)), n(each.price === null || !equity ? "–" : share((each.price * each.quantity) / equity)), n(number(each.average_price, 2)),
        n(number(each.price, digits(each.price))), n(number(each.stop_price, digits(each.stop_price))), n(each.price_age_s == null ? "–" : `${number(each.price_age_s, 1)} s`, each.price_age_s > 2 ? "bad" : ""), n(each.unrealised == null ? "–" : signed(each.unrealised), tone(each.unrealised)), [each.strategy, each.note].filter(Boolean).join(" · "),
        ...(may("trade") ? [button(t("close"), "close", { "data-symbol": each.symbol, "aria-label": `${t("close")} ${nameOf(each.symbol) || each.symbol}` })] : [])])),
    t("no_positions"),
  );

// Positions of the run while it reports; of the ledger otherwise, without prices. Null: neither is known.
export const positionsOf = ({ live, now }, data) =>
  now.run === "known" ? live.positions
    : data?.positions ? data.positions.map((each) => ({ ...each, price: null, price_age_s: null, stop_price: null, unrealised: null }))
      : live?.positions ?? null;

// Stored alerts, and those of the run that are not stored yet; open ones first, until they are acknowledged.
function alertsOf({ live }, data) {
  const seconds = (text) => Date.parse(text) / 1000;
  const stored = (data?.alerts ?? []).map((each) => ({
    ...each, at: seconds(each.last_at), text: each.times > 1 ? `${each.message} (×${each.times})` : each.message, open: !each.acknowledged_at,
  }));
  const isStored = (notice) => stored.some((each) => each.message === notice.text && each.code === notice.code && each.at > notice.at - 1);
  const fresh = (live?.notices ?? []).filter((each) => !isStored(each)).map((each) => ({ ...each, open: each.severity !== "info" }));
  const log = (data?.safety_log ?? []).map((line) => ({
    at: seconds(line.at), code: line.code, severity: "info", text: `${line.message} (${line.state_before} → ${line.state_after}, ${line.actor})`,
  }));
  const newest = (rows) => rows.sort((a, b) => b.at - a.at).slice(0, 25);
  const all = [...stored, ...fresh];
  return { open: newest(all.filter((each) => each.open)), past: newest([...all.filter((each) => !each.open), ...log]) };
}

const alertLine = (each) =>
  h("li", { class: each.severity }, h("time", {}, clock(each.at)), chip(each.code || each.severity, each.severity),
    h("span", {}, each.text, each.acknowledged_at && h("small", { class: "dim" }, ` ${t("acknowledged")} ${moment(each.acknowledged_at)}, ${each.acknowledged_by}${each.note ? `: ${each.note}` : ""}`)),
    each.open && each.id && may("trade") && button(t("acknowledge"), "acknowledge", { "data-alert": each.id, "data-text": each.text }));

const alertList = (state, data) => {
  const { open, past } = alertsOf(state, data);
  if (!open.length && !past.length) return h("p", { class: "dim" }, state.now.run === "known" && data ? t("no_alerts") : t("alerts_unknown"));
  return h("div", {},
    may("trade") && open.filter((each) => each.id).length > 1 && h("div", { class: "buttons" }, button(t("acknowledge_all"), "acknowledge", { id: "acknowledge-all" })),
    open.length ? h("ul", { class: "alerts open" }, open.map(alertLine)) : h("p", { class: "dim" }, t("no_open_alerts")),
    past.length > 0 && [h("h3", {}, t("past_alerts")), h("ul", { class: "alerts past" }, past.map(alertLine))]);
};

// Profit and equity of the run, or of its last sample in the database if that is newer than the status.
function dayFigures({ live, now }, today) {
  const money = live && (now.run === "known" || !today?.at || live.at >= Date.parse(today.at) / 1000) ? live.money : null;
  const from = money
    ? { realised: money.realised_today, unrealised: money.unrealised, equity: money.equity, note: `${t("cash")} ${won(money.cash)}`, source: "run" }
    : today ? { ...today, note: today.at ? moment(today.at) : "", source: "tables" }
      : { realised: null, unrealised: null, equity: null, note: "", source: "run" };
  const profit = from.realised === null || from.unrealised === null ? null : Number(from.realised) + Number(from.unrealised);
  const start = today?.equity_start ?? (profit === null || from.equity === null ? null : from.equity - profit);
  const part = profit === null || !Number(start) ? null : profit / start;
  return [
    figure(t("profit_today"), h("span", {}, signedWon(profit), h("small", {}, ` ${signedShare(part)}`)), `${tone(profit)} big`,
      profit !== null && `${t("realised")} ${signedWon(from.realised)} · ${t("open_pnl")} ${signedWon(from.unrealised)}`),
    figure(t("equity"), won(from.equity), "", from.note),
  ].map((each) => { each.setAttribute("data-from", from.source); return each; });
}

const SPANS = ["1d", "1w", "1m", "all"];
function equityCard(equity, chosen) {
  const { curve } = equity ?? {};
  const times = (curve?.points ?? []).map((each) => each[0]);
  const long = chosen !== "1d";
  const chart = (index, kind, scale, options) =>
    lines(times, [{ name: "", kind, values: curve.points.map((each) => each[index] * scale) }], { gap: 3 * curve.bin_s, label: long ? day : clock, ...options });
  return h("section", { class: "card", id: "equity", "data-from": "tables" }, h("h2", {}, t("equity")),
    h("div", { class: "buttons" }, SPANS.map((each) => button(t(`span_${each}`), "span", { "data-span": each, "aria-pressed": each === chosen }, each === chosen ? "chosen" : ""))),
    !curve ? h("p", { class: "dim" }, "…")
      : times.length < 2 ? h("p", { class: "dim" }, times.length ? `${won(curve.points[0][1])} · ${moment(times[0])}` : t("no_samples"))
        : [chart(1, "a", 1), h("p", { class: "dim" }, `${t("drawdown")} ${share(curve.max_drawdown)}`), chart(2, "d", -100, { height: 70, digits: 1 })]);
}

const limitTable = (limits) =>
  table([t("limit"), right(t("used")), right(t("max")), ""], limits.map((each) => {
    const part = Number(each.limit) ? Number(each.used) / Number(each.limit) : 0;
    return row([t(`limit_${each.name}`), n(number(each.used)), n(number(each.limit)), h("td", { class: "meter" }, bar(part, part >= 1 ? "bad" : ""))]);
  }), t("none"));

const fillTable = (fills) =>
  table([t("at"), t("symbol"), t("side"), right(t("quantity")), right(t("price")), right(t("pnl"))],
    fills.map((each) => row([moment(each.traded_at), named(each), chip(each.side), n(quantity(each.quantity)), n(number(each.price, digits(each.price))),
      n(Number(each.realised_pnl) ? signed(each.realised_pnl) : "–", tone(each.realised_pnl))])), t("no_fills"));

const part = (kind, source, title, ...content) => h("section", { class: `card ${kind}`, "data-from": source }, h("h2", {}, title), ...content);

export const overview = {
  path: () => "overview",
  draw(state, data, _id, filters) {
    const { live, now } = state;
    venues = live?.venues ?? [];
    const money = live?.money;
    const positions = positionsOf(state, data);
    return h("div", { class: "grid" },
      h("div", { class: "figures wide", "data-from": "" },
        dayFigures(state, state.equity?.today),
        [figure(t("positions"), number(positions?.length)),
          figure(t("orders_today"), number(money?.orders_today)),
          figure(t("ticks"), number(live?.ticks), "", live && `${number(live.rates.P1)} /s`),
          figure("P0 p99", live ? `${number(live.events.lanes.P0.total.p99, 2)} ms` : "–")].map((each) => { each.setAttribute("data-from", "run"); return each; })),
      equityCard(state.equity, filters.span ?? "1d"),
      switchPanel(state),
      data?.unknown?.length > 0 && card(t("unknown_orders"), orderTable(data.unknown)),
      data?.suspended?.length > 0 && card(t("suspended"), table([t("symbol"), t("reason"), t("at")],
        data.suspended.map((each) => row([named(each), `${each.reason_code} ${each.detail}`, moment(each.suspended_at)], { class: "unknown" })))),
      part("wide", now.run === "known" ? "run" : "tables", t("positions"),
        may("trade") && (positions?.length > 0 || data?.open_orders?.length > 0) && h("div", { class: "buttons" }, button(t("flatten"), "close", { id: "flatten" }, "stop")),
        positions ? positionTable(positions, money?.equity) : h("p", { class: "dim" }, t("positions_not_read"))),
      data && part("wide", "tables", t("open_orders"), orderTable(data.open_orders, may("trade"))),
      data && part("", "tables", t("fills"), fillTable(data.fills)),
      live && part("", "run", t("limits"), limitTable(live.limits)),
      card(t("alerts"), alertList(state, data)));
  },
};

const stateOf = (order) => order.attempt_state ?? order.status;
const cancelButton = (each) =>
  button(t("cancel"), "cancel", { "data-order": each.intent_id, "data-title": `${each.side} ${quantity(each.quantity)} ${nameOf(each.symbol) || each.symbol}` });
const orderTable = (orders, cancels = false) =>
  table(
    [t("at"), t("symbol"), t("side"), right(t("quantity")), right(t("price")), right(t("fills")), t("status"), t("strategy"), ...(cancels ? [""] : [])],
    orders.map((each) =>
      row([h("a", { href: `#/orders/${each.intent_id}` }, moment(each.created_at)), named(each), chip(each.side), n(quantity(each.quantity)),
        n(each.price === null ? "market" : number(each.price)), n(quantity(each.filled)),
        h("td", {}, chip(stateOf(each)), " ", each.order_state && chip(each.order_state), each.needs_person && h("b", { class: "warn" }, ` ${t("needs_person")}`)),
        each.strategy_key, ...(cancels ? [cancelButton(each)] : [])], { class: stateOf(each) === "UNKNOWN" ? "unknown" : "" })),
    t("no_orders"),
  );

const step = (name, at, kind, ...text) =>
  h("li", { class: kind }, h("b", {}, name), h("time", {}, moment(at)), h("span", {}, ...text));

const timeline = (data) => {
  const { order, signal, attempts, fills } = data;
  return card(`${t("timeline")} · ${order.side} ${quantity(order.quantity)} ${nameOf(order.symbol)} ${order.symbol}`,
    h("ol", { class: "timeline" },
      signal && step(t("signal"), signal.decided_at, "", `${signal.strategy_key}: ${signal.reason || signal.side}`),
      step(t("intent"), order.created_at, "", `${order.intent_type} ${order.order_type} · `, chip(order.status), order.reason_code && ` ${order.reason_code}`),
      attempts.map((each) => [
        step(`${t("attempt")} ${each.attempt_no}`, each.sent_at ?? each.updated_at, each.status === "UNKNOWN" ? "unknown" : "",
          chip(each.status), ` ${each.identifier}`, each.error_message && ` · ${each.error_code} ${each.error_message}`),
        each.broker_order_id && step(t("ack"), each.updated_at, "good", each.broker_order_id)]),
      fills.map((each) => step(t("fill"), each.traded_at, "good", `${quantity(each.quantity)} @ ${number(each.price, 2)} · ${signed(each.realised_pnl)}`))),
    h("p", {}, h("a", { href: "#/orders" }, "← " + t("orders"))));
};

export const orders = {
  from: "tables",
  path: (id, filters) => (id ? `order?id=${encodeURIComponent(id)}` : `orders?open=${filters.open ? 1 : 0}&symbol=${encodeURIComponent(filters.symbol ?? "")}`),
  draw(state, data, id, filters) {
    venues = state.live?.venues ?? [];
    if (id && data?.order) return timeline(data);
    return card(t("orders"),
      h("div", { class: "buttons" },
        may("trade") && button(t("reconcile"), "reconcile", { id: "reconcile" }),
        button(filters.open ? t("all") : t("only_open"), "filter-open"),
        h("input", { "data-filter": "symbol", id: "symbol-filter", placeholder: t("symbol"), "aria-label": t("symbol") }),
        h("span", { class: "dim" }, `${t("reconciled_at")}: ${moment(data?.reconciled_at)}`)),
      orderTable(data?.orders ?? []));
  },
};

const BARS = { 1: "1 s", 5: "5 s", 15: "15 s", 60: "1 min", 300: "5 min", 900: "15 min", 3600: "1 h" };

const digits = (price) => (price < 10 ? 4 : price < 1000 ? 2 : 0);
const quote = (data, live) => {
  const [last, bid, ask] = [data.price?.last ?? data.candles.at(-1)?.[4], live?.bids[0]?.[0] ?? data.price?.bid, live?.asks[0]?.[0] ?? data.price?.ask];
  return h("div", { class: "figures" }, figure(t("price"), number(last, digits(last))), figure(t("bid"), number(bid, digits(bid))), figure(t("ask"), number(ask, digits(ask))));
};
const book = (live) => {
  const { bids = [], asks = [] } = live ?? {};
  if (!bids.length && !asks.length) return null;
  const largest = Math.max(...[...bids, ...asks].map((each) => Number(each[1])), 1);
  const side = (levels, kind) => levels.slice(0, 10).map((each) => row([n(number(each[0], digits(each[0]))), n(quantity(each[1])), h("td", {}, bar(Number(each[1]) / largest, kind))], { class: kind }));
  return h("table", {}, h("tbody", {}, side(asks, "bad").reverse(), side(bids, "good")));
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

export const market = {
  path: (symbol, filters) => `market?symbol=${encodeURIComponent(symbol ?? "")}&bar=${filters.bar ?? 5}`,
  draw(state, data, selected, filters) {
    venues = state.live?.venues ?? [];
    const symbols = [...new Set([...(state.live?.positions ?? []).map((each) => each.symbol), ...(data?.symbols ?? []), ...(state.live?.feed?.poller.bursts ?? [])])];
    const books = state.live?.market?.books ?? {};
    const chart = data && candles(data.candles, data.fills, Number(filters.bar ?? 5));
    return h("div", { class: "grid" },
      h("section", { class: "card wide" }, h("h2", {}, [t("market"), selected, selected && nameOf(selected)].filter(Boolean).join(" ")),
        h("div", { class: "buttons" },
          h("input", { id: "symbol", "data-go": "market", list: "symbols", placeholder: t("symbol"), "aria-label": t("symbol") }),
          h("datalist", { id: "symbols" }, symbols.map((symbol) => h("option", { value: symbol }))),
          Object.entries(BARS).map(([seconds, text]) => button(text, "bar", { "data-bar": seconds }, String(filters.bar ?? 5) === seconds ? "chosen" : ""))),
        !selected && h("p", { class: "chips" }, symbols.slice(0, 40).map((symbol) => h("a", { class: "chip", href: `#/market/${symbol}` }, [symbol, nameOf(symbol)].filter(Boolean).join(" ")))),
        selected && (chart || h("p", { class: "dim" }, t("no_ticks")))),
      indices(state.live?.market),
      selected && data && card(t("book"), quote(data, books[selected]), book(books[selected])),
      selected && card(t("orders"), orderTable(data?.orders ?? [])));
  },
};

const field = (strategy, name, schema) =>
  h("label", {}, h("span", {}, name), h("input", { "data-param": name, "data-strategy": strategy.key, placeholder: strategy.params[name], "aria-label": `${strategy.key} ${name}`, inputmode: "decimal" }),
    h("small", { class: "dim" }, `${schema.description ?? ""} ${bounds(schema)}`));
const bounds = (schema) =>
  ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"].filter((key) => key in schema)
    .map((key) => `${{ minimum: "≥", exclusiveMinimum: ">", maximum: "≤", exclusiveMaximum: "<" }[key]} ${schema[key]}`).join(", ");

const profitTable = (live) =>
  table([t("strategy"), right(t("orders")), right(t("realised")), right(t("fees")), right(t("open_pnl")), right(t("held_value")), right(t("capital")), t("refused")],
    Object.entries(live.profits ?? {}).map(([name, each]) => {
      const capital = live.strategies.find((one) => one.key === name)?.capital;
      return row([name, n(number(each.orders)), n(signed(each.realised), tone(each.realised)), n(number(each.fees)), n(signed(each.unrealised), tone(each.unrealised)), n(number(each.exposure)), n(capital == null ? "–" : number(capital)),
        Object.entries(each.refusals).sort((a, b) => b[1] - a[1]).map(([code, count]) => `${code} ${number(count)}`).join(", ")]);
    }), t("none"));

export const strategies = {
  from: "run",
  path: () => null,
  draw(state) {
    const all = state.live?.strategies ?? [];
    if (!all.length) return card(t("strategies"), h("p", { class: "dim" }, state.now.text));
    return h("div", { class: "grid" }, all.map((each) =>
      card(`${each.key} · ${each.kind}`,
        h("p", {}, chip(each.stopped ? t("disabled") : each.enabled ? "ON" : "OFF", each.stopped ? "bad" : each.enabled ? "good" : "warn"), each.stopped && ` ${each.stopped}`, each.warm_up && ` ${t("warming_up")}: ${each.warm_up}`),
        h("div", { class: "figures" }, figure(t("signals"), number(each.signals)), figure(t("errors"), number(each.errors), each.errors ? "bad" : ""), figure(t("dropped"), number(each.dropped))),
        h("div", { class: "fields" }, Object.entries(each.fields).map(([name, schema]) => field(each, name, schema))),
        may("trade") && h("div", { class: "buttons" },
          button(t("set_params"), "params", { "data-strategy": each.key }),
          button(each.enabled ? t("stop_trading") : t("allow_trading"), "kill", { "data-on": each.enabled ? "0" : "1", "data-strategy": each.key }, each.enabled ? "stop" : "go")))),
      card(t("profit_by_strategy"), profitTable(state.live)),
      [["precheck_refusals", state.live.precheck_refusals], ["refusals", state.live.refusals]].map(([label, counts]) =>
        card(t(label), table([t("reason"), right("#")], Object.entries(counts).sort((a, b) => b[1] - a[1]).map(([code, count]) => row([code, n(number(count))])), t("none")))));
  },
};
