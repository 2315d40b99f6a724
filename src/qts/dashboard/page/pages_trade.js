// Overview, Orders, Market, Strategies.
import { candles, lines } from "./charts.js";
import { bar, button, card, chip, clock, figure, h, moment, n, number, quantity, right, row, signed, table, tone } from "./dom.js";
import { t } from "./labels.js";

const switchPanel = (state) => {
  const on = state.switches?.account?.enabled;
  const safety = state.safety?.state;
  return card(
    t("kill_switch"),
    h("p", { class: on ? "good" : "bad" }, h("b", {}, on ? t("trading_on") : t("trading_off")),
      state.switches?.account?.reason ? ` · ${state.switches.account.reason} (${state.switches.account.changed_by})` : ""),
    h("div", { class: "buttons" },
      on
        ? button(t("stop_trading"), "kill", { "data-on": "0", id: "kill" }, "stop")
        : button(t("allow_trading"), "kill", { "data-on": "1", id: "allow" }, "go"),
      (safety === "FAIL" || safety === "LOCKDOWN") && button(t("release"), "release", { id: "release" }, "warn")),
  );
};

const positionTable = (positions) =>
  table(
    [t("symbol"), right(t("quantity")), right(t("average")), right(t("price")), right(t("price_age")), right(t("pnl")), t("strategy")],
    positions.map((each) =>
      row([h("a", { href: `#/market/${each.symbol}` }, each.symbol), n(quantity(each.quantity)), n(number(each.average_price, 2)),
        n(number(each.price, 0)), n(each.price_age_s == null ? "–" : `${number(each.price_age_s, 1)} s`, each.price_age_s > 2 ? "bad" : ""), n(signed(each.unrealised), tone(each.unrealised)), [each.strategy, each.note].filter(Boolean).join(" · ")])),
    t("no_positions"),
  );

const alertList = (state, data) => {
  const alerts = [
    ...(state.live?.notices ?? []),
    ...(data?.safety_log ?? []).map((line) => ({
      at: Date.parse(line.at) / 1000, code: line.code, text: `${line.message} (${line.state_before} → ${line.state_after}, ${line.actor})`,
      severity: line.state_after === "NORMAL" ? "info" : line.state_after === "WARNING" ? "warning" : "critical",
    })),
  ].sort((a, b) => b.at - a.at).slice(0, 25);
  if (!alerts.length) return h("p", { class: "dim" }, t("no_alerts"));
  return h("ul", { class: "alerts" }, alerts.map((each) =>
    h("li", { class: each.severity }, h("time", {}, clock(each.at)), chip(each.code || each.severity, each.severity), h("span", {}, each.text))));
};

export const overview = {
  path: () => "overview",
  draw(state, data) {
    const { live, history } = state;
    const money = live?.money;
    const profit = money ? Number(money.realised_today) + Number(money.unrealised) : null;
    const positions = live?.positions ?? (data?.positions ?? []).map((each) => ({ ...each, price: null, price_age_s: null, unrealised: 0, strategy: "" }));
    return h("div", { class: "grid" },
      h("div", { class: "figures wide" },
        figure(t("profit_today"), profit === null ? "–" : signed(profit), `${tone(profit)} big`,
          money && `${t("realised")} ${signed(money.realised_today)} · ${t("open_pnl")} ${signed(money.unrealised)}`),
        figure(t("equity"), number(money?.equity), "", money && `${t("cash")} ${number(money.cash)}`),
        figure(t("positions"), number(positions.length)),
        figure(t("orders_today"), number(money?.orders_today)),
        figure(t("ticks"), number(live?.ticks), "", live && `${number(live.rates.P1)} /s`),
        figure("P0 p99", live ? `${number(live.events.lanes.P0.total.p99, 2)} ms` : "–")),
      switchPanel(state),
      card(t("chart_profit"), lines(history.map((p) => p[0]), [{ name: "", kind: "a", values: history.map((p) => p[2]) }])),
      data?.unknown?.length > 0 && card(t("unknown_orders"), orderTable(data.unknown)),
      data?.suspended?.length > 0 && card(t("suspended"), table([t("symbol"), t("reason"), t("at")],
        data.suspended.map((each) => row([each.symbol, `${each.reason_code} ${each.detail}`, moment(each.suspended_at)], { class: "unknown" })))),
      card(t("positions"), positionTable(positions)),
      card(t("alerts"), alertList(state, data)));
  },
};

const stateOf = (order) => order.attempt_state ?? order.status;
const orderTable = (orders) =>
  table(
    [t("at"), t("symbol"), t("side"), right(t("quantity")), right(t("price")), right(t("fills")), t("status"), t("strategy")],
    orders.map((each) =>
      row([h("a", { href: `#/orders/${each.intent_id}` }, moment(each.created_at)), each.symbol, chip(each.side), n(quantity(each.quantity)),
        n(each.price === null ? "market" : number(each.price)), n(quantity(each.filled)),
        h("td", {}, chip(stateOf(each)), " ", each.order_state && chip(each.order_state), each.needs_person && h("b", { class: "warn" }, ` ${t("needs_person")}`)),
        each.strategy_key], { class: stateOf(each) === "UNKNOWN" ? "unknown" : "" })),
    t("no_orders"),
  );

const step = (name, at, kind, ...text) =>
  h("li", { class: kind }, h("b", {}, name), h("time", {}, moment(at)), h("span", {}, ...text));

const timeline = (data) => {
  const { order, signal, attempts, fills } = data;
  return card(`${t("timeline")} · ${order.side} ${quantity(order.quantity)} ${order.symbol}`,
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
  path: (id, filters) => (id ? `order?id=${encodeURIComponent(id)}` : `orders?open=${filters.open ? 1 : 0}&symbol=${encodeURIComponent(filters.symbol ?? "")}`),
  draw(_state, data, id, filters) {
    if (id && data?.order) return timeline(data);
    return card(t("orders"),
      h("div", { class: "buttons" },
        button(t("reconcile"), "reconcile", { id: "reconcile" }),
        button(filters.open ? t("all") : t("only_open"), "filter-open"),
        h("input", { "data-filter": "symbol", placeholder: t("symbol"), "aria-label": t("symbol") }),
        h("span", { class: "dim" }, `${t("reconciled_at")}: ${moment(data?.reconciled_at)}`)),
      orderTable(data?.orders ?? []));
  },
};

const BARS = { 1: "1 s", 5: "5 s", 15: "15 s", 60: "1 min", 300: "5 min", 900: "15 min", 3600: "1 h" };

const quote = (data) => h("div", { class: "figures" },
  figure(t("price"), number(data.price?.last ?? data.candles.at(-1)?.[4])),
  figure(t("bid"), number(data.price?.bid)), figure(t("ask"), number(data.price?.ask)));
const book = (data) => {
  const { bids = [], asks = [] } = data.book ?? {};
  if (!bids.length && !asks.length) return null;
  const largest = Math.max(...[...bids, ...asks].map((each) => Number(each[1])), 1);
  const side = (levels, kind) => levels.slice(0, 10).map((each) => row([n(number(each[0])), n(quantity(each[1])), h("td", {}, bar(Number(each[1]) / largest, kind))], { class: kind }));
  return h("table", {}, h("tbody", {}, side(asks, "bad").reverse(), side(bids, "good")));
};

export const market = {
  path: (symbol, filters) => `market?symbol=${encodeURIComponent(symbol ?? "")}&bar=${filters.bar ?? 5}`,
  draw(state, data, selected, filters) {
    const symbols = [...new Set([...(state.live?.positions ?? []).map((each) => each.symbol), ...(data?.symbols ?? []), ...(state.live?.feed?.poller.bursts ?? [])])];
    const chart = data && candles(data.candles, data.fills, Number(filters.bar ?? 5));
    return h("div", { class: "grid" },
      h("section", { class: "card wide" }, h("h2", {}, `${t("market")} ${selected ?? ""}`),
        h("div", { class: "buttons" },
          h("input", { id: "symbol", "data-go": "market", list: "symbols", placeholder: t("symbol"), "aria-label": t("symbol") }),
          h("datalist", { id: "symbols" }, symbols.map((symbol) => h("option", { value: symbol }))),
          Object.entries(BARS).map(([seconds, text]) => button(text, "bar", { "data-bar": seconds }, String(filters.bar ?? 5) === seconds ? "chosen" : ""))),
        !selected && h("p", { class: "chips" }, symbols.slice(0, 40).map((symbol) => h("a", { class: "chip", href: `#/market/${symbol}` }, symbol))),
        selected && (chart || h("p", { class: "dim" }, t("no_ticks")))),
      selected && data && card(t("book"), quote(data), book(data)),
      selected && card(t("orders"), orderTable(data?.orders ?? [])));
  },
};

const field = (strategy, name, schema) =>
  h("label", {}, h("span", {}, name), h("input", { "data-param": name, "data-strategy": strategy.key, placeholder: strategy.params[name], "aria-label": `${strategy.key} ${name}`, inputmode: "decimal" }),
    h("small", { class: "dim" }, `${schema.description ?? ""} ${bounds(schema)}`));
const bounds = (schema) =>
  ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"].filter((key) => key in schema)
    .map((key) => `${{ minimum: "≥", exclusiveMinimum: ">", maximum: "≤", exclusiveMaximum: "<" }[key]} ${schema[key]}`).join(", ");

export const strategies = {
  path: () => null,
  draw(state) {
    const all = state.live?.strategies ?? [];
    if (!all.length) return card(t("strategies"), h("p", { class: "dim" }, t("not_running_text")));
    return h("div", { class: "grid" }, all.map((each) =>
      card(`${each.key} · ${each.kind}`,
        h("p", {}, chip(each.stopped ? t("disabled") : each.enabled ? "ON" : "OFF", each.stopped ? "bad" : each.enabled ? "good" : "warn"), each.stopped && ` ${each.stopped}`),
        h("div", { class: "figures" }, figure(t("signals"), number(each.signals)), figure(t("errors"), number(each.errors), each.errors ? "bad" : ""), figure(t("dropped"), number(each.dropped))),
        h("div", { class: "fields" }, Object.entries(each.fields).map(([name, schema]) => field(each, name, schema))),
        h("div", { class: "buttons" },
          button(t("set_params"), "params", { "data-strategy": each.key }),
          button(each.enabled ? t("stop_trading") : t("allow_trading"), "kill", { "data-on": each.enabled ? "0" : "1", "data-strategy": each.key }, each.enabled ? "stop" : "go")))),
      card(t("refusals"), table([t("reason"), right("#")], Object.entries(state.live.refusals).sort((a, b) => b[1] - a[1]).map(([code, count]) => row([code, n(number(count))])), t("none"))));
  },
};
