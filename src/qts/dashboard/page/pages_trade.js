// Overview, Orders, Strategies.
import { lines } from "./charts.js";
import { bar, button, card, chip, clock, day, figure, h, moment, n, number, price, quantity, right, row, share, signedShare, signedWon, silent, table, tone, won, zoned } from "./dom.js";
import { nameOf, titled } from "./names.js";
import { account, may, remoteMoney } from "./state.js";
import { codeText, language, serverText, stateName, t } from "./labels.js";

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
export const setVenues = (live) => { venues = live?.venues ?? []; };
const venueOf = (each) => venues.length > 1 && (each.venue || venues.find((one) => one.broker === each.broker && one.account === each.account)?.venue);
export const named = (each) => [venueOf(each) && h("small", { class: "dim" }, `${venueOf(each)} `), titled(each.symbol, each.name)];

const positionTable = (positions, equity) =>
  table(
    [t("symbol"), right(t("quantity")), right(t("weight")), right(t("average")), right(t("price")), right(t("stop_at")), right(t("price_age")), right(t("pnl")), t("strategy"), ...(may("trade") ? [silent(t("action"))] : [])],
    positions.map((each) =>
      row([named(each), n(quantity(each.quantity)), n(each.price === null || !equity ? "–" : share((each.price * each.quantity) / equity)), n(price(each.average_price)),
        n(price(each.price)), n(price(each.stop_price)), n(each.price_age_s == null ? "–" : `${number(each.price_age_s, 1)} s`, each.price_age_s > 2 ? "bad" : ""), n(signedWon(each.unrealised), tone(each.unrealised)), [each.strategy, each.note].filter(Boolean).join(" · "),
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

// In Korean: what the code means, then its details. What is not a sentence of ours, as the error of a venue, stays English.
const alertText = (each) => {
  const text = serverText(each.text);
  const meaning = language() === "ko" && codeText(each.code);
  return meaning ? [meaning, h("small", { class: "dim", lang: text === each.text ? "en" : null }, ` ${text}`)] : text;
};
const alertLine = (each) =>
  h("li", { class: each.severity }, h("time", {}, clock(each.at)), chip(each.code || each.severity, each.severity),
    h("span", {}, alertText(each), each.acknowledged_at && h("small", { class: "dim" }, ` ${t("acknowledged")} ${moment(each.acknowledged_at)}, ${each.acknowledged_by}${each.note ? `: ${each.note}` : ""}`)),
    each.open && each.id && may("trade") && button(t("acknowledge"), "acknowledge", { "data-alert": each.id, "data-text": each.text }));

const alertList = (state, data) => {
  const { open, past } = alertsOf(state, data);
  if (!open.length && !past.length) return h("p", { class: "dim" }, state.now.run === "known" && data ? t("no_alerts") : t("alerts_unknown"));
  return h("div", {},
    may("trade") && open.filter((each) => each.id).length > 1 && h("div", { class: "buttons" }, button(t("acknowledge_all"), "acknowledge", { id: "acknowledge-all" })),
    open.length ? h("ul", { class: "alerts open", tabindex: 0, "aria-live": "polite", "aria-label": t("alerts") }, open.map(alertLine)) : h("p", { class: "dim" }, t("no_open_alerts")),
    past.length > 0 && [h("h3", {}, t("past_alerts")), h("ul", { class: "alerts past", tabindex: 0, "aria-label": t("past_alerts") }, past.map(alertLine))]);
};

// Profit and equity of the run, or of its last sample in the database if that is newer than the status.
function dayFigures({ live, now }, today) {
  const remote = remoteMoney();
  const money = remote ?? (live && (now.run === "known" || !today?.at || live.at >= Date.parse(today.at) / 1000) ? live.money : null);
  const from = money
    ? { realised: money.realised_today, unrealised: money.unrealised, equity: money.equity, note: `${t("cash")} ${won(money.cash)}`, source: remote ? "stored" : "run" }
    : today ? { ...today, note: today.at ? zoned(moment(today.at)) : "", source: "tables" }
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
  const chart = (title, index, kind, scale, options) =>
    lines(title, times, [{ name: "", kind, values: curve.points.map((each) => each[index] * scale) }], { gap: 3 * curve.bin_s, label: long ? day : clock, ...options });
  return h("section", { class: "card", id: "equity", "data-from": "tables" }, h("h2", {}, t("equity")),
    h("div", { class: "buttons" }, SPANS.map((each) => button(t(`span_${each}`), "span", { "data-span": each, "aria-pressed": each === chosen }, each === chosen ? "chosen" : ""))),
    !curve ? h("p", { class: "dim" }, "…")
      : times.length < 2 ? h("p", { class: "dim" }, times.length ? `${won(curve.points[0][1])} · ${zoned(moment(times[0]))}` : t("no_samples"))
        : [chart(t("equity"), 1, "a", 1), h("p", { class: "dim" }, `${t("drawdown")} ${share(curve.max_drawdown)}`), chart(t("drawdown"), 2, "d", -100, { height: 70, digits: 1 })]);
}

const IN_WON = new Set(["daily_loss", "max_exposure"]);
const limitTable = (limits) =>
  table([t("limit"), right(t("used")), right(t("max")), silent(t("used"))], limits.map((each) => {
    const part = Number(each.limit) ? Number(each.used) / Number(each.limit) : 0;
    const shown = IN_WON.has(each.name) ? won : number;
    return row([t(`limit_${each.name}`), n(shown(each.used)), n(shown(each.limit)), h("td", { class: "meter" }, bar(part, part >= 1 ? "bad" : ""))]);
  }), t("none"));

const fillTable = (fills) =>
  table([t("at"), t("symbol"), t("side"), right(t("quantity")), right(t("price")), right(t("pnl"))],
    fills.map((each) => row([moment(each.traded_at), named(each), chip(each.side), n(quantity(each.quantity)), n(price(each.price)),
      n(Number(each.realised_pnl) ? signedWon(each.realised_pnl) : "–", tone(each.realised_pnl))])), t("no_fills"));

const part = (kind, source, title, ...content) => h("section", { class: `card ${kind}`, "data-from": source }, h("h2", {}, title), ...content);

export const overview = {
  path: () => "overview",
  draw(state, data, _id, filters) {
    const { live, now } = state;
    setVenues(live);
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
      h("div", { class: "stack" }, switchPanel(state), live && part("", "run", t("limits"), limitTable(live.limits))),
      data?.unknown?.length > 0 && part("wide", "tables", t("unknown_orders"), orderTable(data.unknown)),
      data?.suspended?.length > 0 && card(t("suspended"), table([t("symbol"), t("reason"), t("at")],
        data.suspended.map((each) => row([named(each), `${stateName(each.reason_code)} ${serverText(each.detail)}`, moment(each.suspended_at)], { class: "unknown" })))),
      part("wide", now.run === "known" ? "run" : "tables", t("positions"),
        may("trade") && (positions?.length > 0 || data?.open_orders?.length > 0) && h("div", { class: "buttons" }, button(t("flatten"), "close", { id: "flatten" }, "stop")),
        positions ? positionTable(positions, money?.equity) : h("p", { class: "dim" }, t("positions_not_read"))),
      data && part("wide", "tables", t("open_orders"), orderTable(data.open_orders, may("trade"))),
      data && part("", "tables", t("fills"), fillTable(data.fills)),
      card(t("alerts"), alertList(state, data)));
  },
};

const stateOf = (order) => order.attempt_state ?? order.status;
const cancelButton = (each) =>
  ["CREATED", "WAITING"].includes(each.status) && button(t("cancel"), "cancel", { "data-order": each.intent_id, "data-state": each.status, "data-title": `${stateName(each.side)} ${quantity(each.quantity)} ${nameOf(each.symbol) || each.symbol}` });
export const orderTable = (orders, cancels = false) =>
  table(
    [t("at"), t("symbol"), t("side"), right(t("quantity")), right(t("price")), right(t("fills")), t("status"), t("strategy"), ...(cancels ? [silent(t("action"))] : [])],
    orders.map((each) =>
      row([h("a", { href: `#/orders/${each.intent_id}` }, moment(each.created_at)), named(each), chip(each.side), n(quantity(each.quantity)),
        n([each.trigger && h("small", { class: "dim" }, `${t("trigger")} ${price(each.trigger)} `), each.price === null ? t("market_order") : price(each.price)]), n(quantity(each.filled)),
        h("td", {}, chip(stateOf(each)), " ", each.order_state && chip(each.order_state), each.needs_person && h("b", { class: "warn" }, ` ${t("needs_person")}`)),
        each.strategy_key, ...(cancels ? [cancelButton(each)] : [])], { class: stateOf(each) === "UNKNOWN" ? "unknown" : "" })),
    t("no_orders"),
  );

// One step of an order's life; `since` is the step before it.
const step = (name, at, since, kind, ...text) => {
  const span = at && since ? Date.parse(at) - Date.parse(since) : null;
  return h("li", { class: kind }, h("b", {}, name), h("time", {}, zoned(millis(at))), h("span", { class: "n dim" }, span === null ? "" : `+${number(span, span < 10 ? 1 : 0)} ms`), h("span", {}, ...text));
};
const millis = (value) => (value ? `${moment(value)}.${String(new Date(value).getMilliseconds()).padStart(3, "0")}` : "–");

// What happened to an order, as [name, time, kind, ...text], in the order of time; a step without a time comes last.
const stepsOf = ({ order, signal, attempts, fills }) => [
  signal && [t("signal"), signal.decided_at, "", `${signal.strategy_key}: ${signal.reason || stateName(signal.side)}`],
  signal?.approved_at && [t("approved"), signal.approved_at, "", ""],
  [t(order.trigger ? "stop_order" : "intent"), order.created_at, "", `${stateName(order.intent_type)} ${stateName(order.order_type)} · `, chip(order.status),
    order.trigger && ` ${t("trigger")} ${price(order.trigger)} · ${order.strategy_key}`, order.reason_code && ` ${order.reason_code}`],
  ...attempts.flatMap((each) => [
    [`${t("attempt")} ${each.attempt_no}`, each.sent_at ?? each.updated_at, each.status === "UNKNOWN" ? "unknown" : "",
      chip(each.status), ` ${each.identifier}`, each.error_message && ` · ${each.error_code} ${each.error_message}`],
    each.broker_order_id && [t("ack"), each.updated_at, "good", each.broker_order_id]]),
  ...fills.map((each) => [t("fill"), each.traded_at, "good", `${quantity(each.quantity)} @ ${price(each.price)} · ${signedWon(each.realised_pnl)}`]),
].filter(Boolean);

const timeline = (data) => {
  const { order } = data;
  const steps = stepsOf(data);
  const whole = steps.length > 1 && steps.at(-1)[1] ? Date.parse(steps.at(-1)[1]) - Date.parse(steps[0][1]) : null;
  return card(`${t("timeline")} · ${stateName(order.side)} ${quantity(order.quantity)} ${nameOf(order.symbol)} ${order.symbol}`,
    h("ol", { class: "timeline" }, steps.map(([name, at, kind, ...text], index) => step(name, at, steps[index - 1]?.[1], kind, ...text))),
    whole !== null && h("p", { class: "dim", id: "order-life" }, `${t("whole_life")} ${number(whole)} ms`),
    h("p", {}, h("a", { class: "back", href: "#/orders" }, "← " + t("orders"))));
};

export const orders = {
  from: "tables",
  path: (id, filters) => (id ? `order?id=${encodeURIComponent(id)}` : `orders?open=${filters.open ? 1 : 0}&symbol=${encodeURIComponent(filters.symbol ?? "")}`),
  draw(state, data, id, filters) {
    setVenues(state.live);
    if (id && data?.order) return timeline(data);
    return card(t("orders"),
      h("div", { class: "buttons" },
        may("trade") && button(t("reconcile"), "reconcile", { id: "reconcile" }),
        button(filters.open ? t("all") : t("only_open"), "filter-open"),
        h("input", { "data-filter": "symbol", id: "symbol-filter", placeholder: t("symbol"), "aria-label": t("symbol") }),
        h("span", { class: "dim" }, `${t("reconciled_at")}: ${zoned(moment(data?.reconciled_at))}`)),
      orderTable(data?.orders ?? [], may("trade")));
  },
};

const field = (strategy, name, schema) =>
  h("label", {}, h("span", {}, name), h("input", { "data-param": name, "data-strategy": strategy.key, placeholder: strategy.params[name], "aria-label": `${strategy.key} ${name}`, inputmode: "decimal", disabled: Boolean(account) }),
    h("small", { class: "dim" }, `${schema.description ?? ""} ${bounds(schema)}`));
const bounds = (schema) =>
  ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"].filter((key) => key in schema)
    .map((key) => `${{ minimum: "≥", exclusiveMinimum: ">", maximum: "≤", exclusiveMaximum: "<" }[key]} ${schema[key]}`).join(", ");

const profitTable = (live) =>
  table([t("strategy"), right(t("orders")), right(t("realised")), right(t("fees")), right(t("open_pnl")), right(t("held_value")), right(t("capital")), t("refused")],
    Object.entries(live.profits ?? {}).map(([name, each]) => {
      const capital = live.strategies.find((one) => one.key === name)?.capital;
      return row([name, n(number(each.orders)), n(signedWon(each.realised), tone(each.realised)), n(won(each.fees)), n(signedWon(each.unrealised), tone(each.unrealised)), n(won(each.exposure)), n(won(capital)),
        Object.entries(each.refusals).sort((a, b) => b[1] - a[1]).map(([code, count]) => `${code} ${number(count)}`).join(", ")]);
    }), t("none"));

export const strategies = {
  from: "run",
  path: () => null,
  draw(state) {
    const all = state.live?.strategies ?? [];
    if (!all.length) return card(t("strategies"), h("p", { class: "dim" }, state.now.text));
    return h("div", { class: "grid" }, all.map((each) =>
      card(`${each.key} · ${stateName(each.kind)}`,
        h("p", {}, chip(each.stopped ? t("disabled") : each.enabled ? "ON" : "OFF", each.stopped ? "bad" : each.enabled ? "good" : "warn"), each.stopped && ` ${serverText(each.stopped)}`, each.warm_up && ` ${t("warming_up")}: ${serverText(each.warm_up)}`),
        h("div", { class: "figures" }, figure(t("signals"), number(each.signals)), figure(t("errors"), number(each.errors), each.errors ? "bad" : ""), figure(t("dropped"), number(each.dropped))),
        h("div", { class: "fields" }, Object.entries(each.fields).map(([name, schema]) => field(each, name, schema))),
        may("trade") && h("div", { class: "buttons" },
          !account && button(t("set_params"), "params", { "data-strategy": each.key }),
          button(each.enabled ? t("stop_trading") : t("allow_trading"), "kill", { "data-on": each.enabled ? "0" : "1", "data-strategy": each.key }, each.enabled ? "stop" : "go")))),
      card(t("profit_by_strategy"), profitTable(state.live)),
      [["precheck_refusals", state.live.precheck_refusals], ["refusals", state.live.refusals]].map(([label, counts]) =>
        card(t(label), table([t("reason"), right(t("count"))], Object.entries(counts).sort((a, b) => b[1] - a[1]).map(([code, count]) => row([[code, h("small", { class: "dim" }, ` ${codeText(code) ?? ""}`)], n(number(count))])), t("none")))));
  },
};
