// Events, Feed, Outbox, Cache, Router, Backtests, Settings.
import { lines } from "./charts.js";
import { bar, button, card, chip, figure, h, moment, ms, n, number, right, row, share, short, silent, table, tone, won, zoned } from "./dom.js";
import { isSupported } from "./push.js";
import { nameOf } from "./names.js";
import { account, may } from "./state.js";
import { colours, language, serverText, settingText, stateName, t } from "./labels.js";

const LANES = ["P0", "P1", "P2", "P3"];
// Without a status there are no figures; the sentence says why, as far as it is known.
const idle = (title, { now }) => card(title, h("p", { class: "dim" }, now.text));

// The SLA has no p99.9; it is compared with the allowed maximum.
const compared = (lane, part, span, sla) => {
  const limit = sla?.[lane]?.[part === "p99_9" ? "max" : part];
  const over = limit !== undefined && span.count > 0 && span[part] > limit;
  return n([ms(span[part]), limit !== undefined && h("small", { class: "dim" }, ` (${limit})`)], over ? "bad" : "");
};

const statusOf = (lane) => (lane.paused ? "PAUSED" : { NORMAL: "OK" }[lane.pressure] ?? lane.pressure);

export const events = {
  from: "run",
  path: () => "events",
  draw(state, data) {
    const { live, history, sla } = state;
    const letters = card(t("dead_letters"),
      table([t("number"), t("at"), t("type"), t("handler"), t("error"), t("status"), silent(t("action"))],
        (data?.dead_letters ?? []).map((each) =>
          row([each.number, moment(each.died_at), `P${each.priority} ${each.event_type}`, each.handler, each.error, chip(each.state),
            each.state === "dead" && may("trade") && !account ? button(t("replay"), "replay", { "data-number": each.number }) : ""])), t("none")));
    if (!live) return h("div", { class: "grid" }, idle(t("event_system_status"), state), letters);
    const { lanes } = live.events;
    const series = (first) => LANES.map((name, at) => ({ name, kind: "abcd"[at], values: history.map((point) => point[first + at]) }));
    const times = history.map((point) => point[0]);
    const drops = Object.entries(live.drops).flatMap(([kind, keys]) => Object.entries(keys).map(([key, count]) => [kind, key, count]));
    return h("div", { class: "grid" },
      h("section", { class: "card wide", id: "event-system-status" }, h("h2", {}, t("event_system_status")),
        table([t("priority"), right(t("depth")), right(t("max")), t("status"), right("p50"), right("p95"), right("p99"), right("p99.9"), right(t("max")), right(t("per_second")), right(t("handled")), right(t("merged")), right(t("dropped")), right(t("dead"))],
          LANES.map((name) => {
            const lane = lanes[name];
            return row([h("b", { class: `lane ${"abcd"[LANES.indexOf(name)]}` }, name), n(number(lane.depth)), n(number(lane.capacity)), h("td", {}, chip(statusOf(lane))),
              compared(name, "p50", lane.total, sla), compared(name, "p95", lane.total, sla), compared(name, "p99", lane.total, sla), compared(name, "p99_9", lane.total, sla),
              n(ms(lane.total.max)), n(number(live.rates[name])), n(number(lane.handled)), n(number(lane.collapsed + lane.sampled)), n(number(lane.dropped), lane.dropped ? "warn" : ""), n(number(lane.dead), lane.dead ? "bad" : "")]);
          })),
        h("p", { class: "dim" }, `${t("latency")} · ${t("level")} `, chip(live.events.level, live.events.level.startsWith("LEVEL_0") ? "good" : "warn"),
          ` · GIL p99 ${ms(live.events.gil_wait.p99)} ms`)),
      card(t("latency_p99"), lines(t("latency_p99"), times, series(3), { digits: 1 })),
      card(t("rates"), lines(t("rates"), times, series(7))),
      card(t("drops_by_symbol"), table([t("type"), t("symbol"), right(t("count"))], drops.map(([kind, key, count]) => row([kind, [key, nameOf(key)].filter(Boolean).join(" "), n(number(count))])), t("no_drops"))),
      letters);
  },
};

export const feed = {
  from: "run",
  path: () => null,
  draw(state) {
    const { live } = state;
    if (!live?.feed) return idle(t("feed"), state);
    const venues = live.venues ?? [];
    if (venues.length < 2) return feedOf(live.feed);
    return h("div", {}, venues.map((each) => h("section", {}, h("h2", {}, each.venue), feedOf(each.feed))));
  },
};

function feedOf(status) {
    const { poller, budget } = status;
    const progress = poller.batches ? poller.position / poller.batches : 0;
    return h("div", { class: "grid" },
      card(t("plan"), h("p", {}, serverText(status.plan)),
        h("div", { class: "figures" },
          figure(t("interval"), `${number(status.interval_s, 1)} s`, status.lag_s > 1 ? "warn" : "", `+${number(status.lag_s, 1)} s`),
          figure(t("scans"), number(poller.scans), "", `${number(poller.last_scan_s, 1)} s`),
          figure(t("market_open"), poller.open ? "✓" : "✗", poller.open ? "good" : "warn"),
          figure(t("streaming"), status.streaming ? "✓" : "–", status.streaming ? "good" : "")),
        h("p", { class: "dim" }, `${t("watched")}: ${serverText(status.watched)}`),
        h("p", { class: "dim" }, `${t("progress")} ${poller.position} / ${poller.batches}`), bar(progress)),
      card(t("budget"), table([t("window"), right(t("used")), right(t("left"))], [
        row([t("second"), n(number(budget.used_second)), n(`${number(budget.rate_per_s)} /s`)]),
        row([t("minute"), n(number(budget.used_minute)), n("")]),
        row([t("day"), n(number(budget.used_day)), n(number(budget.left_day))]),
        row([t("refused"), n(number(budget.refused), budget.refused ? "bad" : ""), n("")])])),
      card(`${t("bursts")} · ${poller.bursts.length}`, h("p", { class: "chips" }, poller.bursts.length ? poller.bursts.map((symbol) => h("a", { class: "chip", href: `#/market/${symbol}` }, [symbol, nameOf(symbol)].filter(Boolean).join(" "))) : t("none"))),
      card(t("records"), h("div", { class: "figures" },
        figure(t("records"), number(status.records), status.skipped ? "warn" : "", serverText(status.recording)), figure(t("dropped"), number(status.lost), status.lost ? "bad" : ""), figure(t("surges"), number(status.surges)),
        figure(t("failed"), number(poller.failed), poller.failed ? "warn" : ""), figure(t("refused"), number(poller.refused), poller.refused ? "warn" : ""), figure(t("symbol"), number(status.symbols_known)))));
}

const envelope = (each) => `${each.event_type} · ${each.aggregate_type}/${short(each.aggregate_id)}`;

export const outbox = {
  from: "tables",
  path: () => "outbox",
  draw({ live, now }, data) {
    const rates = now.run === "known" ? live.outbox.per_second : {};
    return h("div", { class: "grid" },
      h("section", { class: "card wide" }, h("h2", {}, t("outbox")),
        table([t("stream"), right(t("pending")), right(t("processing")), right(t("oldest")), right(t("throughput")), right(t("dead")), silent(t("status"))],
          (data?.depths ?? []).map((each) => row([each.stream, n(number(each.pending)), n(number(each.processing)), n(number(each.oldest_pending_s, 1), each.oldest_pending_s > 60 ? "bad" : ""),
            n(number(rates[each.stream], 1)), n(number(each.dead), each.dead ? "bad" : ""), data.paused.includes(each.stream) ? chip("PAUSED") : ""])))),
      h("section", { class: "card wide" }, h("h2", {}, stateName("DEAD")),
        table([t("at"), t("stream"), t("type"), right(t("attempts")), t("error"), silent(t("action"))],
          (data?.dead ?? []).map((each) => row([moment(each.updated_at), each.stream, envelope(each), n(`${each.attempt_count}/${each.max_attempts}`),
            `${stateName(each.last_error_code ?? "")} ${serverText(each.last_error_message)}`,
            may("trade") && button(t("requeue"), "requeue", { "data-event": each.event_id, "data-unknown": each.last_error_code === "UNKNOWN" ? "1" : "" })],
            { class: each.last_error_code === "UNKNOWN" ? "unknown" : "" })), t("none"))),
      h("section", { class: "card wide" }, h("h2", {}, t("latest")),
        table([t("at"), t("stream"), t("type"), t("status"), right(t("attempts"))],
          (data?.latest ?? []).map((each) => row([moment(each.updated_at), each.stream, envelope(each), chip(each.status), n(`${each.attempt_count}/${each.max_attempts}`)])), t("none"))));
  },
};

const CACHE_PARTS = ["near", "redis", "database", "absent", "stale", "failed"];
export const cache = {
  from: "run",
  path: () => null,
  draw(state) {
    const status = state.live?.cache;
    if (!status) return idle(t("cache"), state);
    const { queue, server } = status;
    return h("div", { class: "grid" },
      h("section", { class: "card wide" }, h("h2", {}, t("cache")),
        table([t("kind"), right(t("hit_rate")), right(t("goal")), right(t("lookups")), ...CACHE_PARTS.map((part) => right(t(`cache_${part}`)))],
          Object.entries(status.kinds).map(([kind, each]) => {
            const below = each.goal !== null && each.hit_rate !== null && each.recent >= 100 && each.hit_rate < each.goal;
            return row([kind, n(share(each.hit_rate), below ? "bad" : ""), n(share(each.goal)), n(number(each.recent)), ...CACHE_PARTS.map((part) => n(number(each[part])))]);
          }))),
      card("PreCheck", h("div", { class: "figures" }, figure("p50", `${number(status.precheck_p50_us)} µs`), figure("p99", `${number(status.precheck_p99_us)} µs`, status.precheck_p99_us > 5000 ? "bad" : ""), figure(t("lookups"), number(status.prechecks)))),
      card(t("breaker"), h("p", {}, chip(status.breaker, status.breaker === "closed" ? "good" : "bad"), ` ${number(status.breaker_opened)} ×`)),
      card(t("queue"), h("div", { class: "figures" }, figure(t("depth"), number(queue.depth)), figure(t("oldest"), number(queue.oldest_ms / 1000, 2)), figure(t("handled"), number(queue.written)), figure(t("dropped"), number(queue.dropped), queue.dropped ? "warn" : ""), figure(t("failed"), number(queue.failed), queue.failed ? "warn" : ""))),
      card(t("server"), server
        ? h("div", { class: "figures" }, figure("Valkey / Redis", server.version), figure(t("memory"), `${number(server.used_memory / 1048576, 1)} MiB`, "", server.max_memory ? `/ ${number(server.max_memory / 1048576)} MiB` : ""), figure(t("evicted"), number(server.evicted_keys)), figure(t("clients"), number(server.clients)))
        : h("p", { class: "bad" }, "✗")));
  },
};

const flat = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value ?? "–"));

const micros = (value) => number(value, value < 10 ? 2 : value < 100 ? 1 : 0);
const PARTS = { p50: "p50", p90: "p90", p95: "p95", p99: "p99", p99_9: "p99.9", max: "max" };

export const router = {
  from: "tables",
  path: () => "router",
  draw(_state, data) {
    const report = data?.route;
    if (!report) return card(t("router"), h("p", { class: "dim" }, t("no_router")));
    const { plan } = report;
    const loss = (count) => (count ? "bad" : "");
    return h("div", { class: "grid" },
      h("section", { class: "card wide", id: "route" }, h("h2", {}, `${t("last_route")} · ${report.scenario}`),
        h("p", {}, chip(report.verdict, report.verdict === "PASSED" ? "good" : "bad"), ` ${zoned(moment(report.at))} · qts dev router run ${report.scenario}`),
        h("div", { class: "figures" },
          figure(t("messages_per_second"), number(report.rate_per_s), "", `${number(report.seconds, 2)} s`),
          figure(t("offered"), number(report.offered)), figure(t("produced"), number(report.produced)), figure(t("delivered"), number(report.delivered)),
          figure(t("undelivered"), number(report.undelivered), loss(report.undelivered)), figure(t("violations"), number(report.violations), loss(report.violations)), figure(t("gaps"), number(report.gaps), loss(report.gaps))),
        [...report.failures.map((text) => h("p", { class: "bad" }, text)), ...report.notes.map((text) => h("p", { class: "dim" }, text))]),
      card(`${t("plan")} · ${plan.layout}`,
        table([t("worker"), "CPU", t("wait_strategy"), right(t("load")), t("components")],
          plan.workers.map((each, at) => row([at, each.cpu ?? "–", each.wait, n(share(each.load), each.load > 1 ? "warn" : ""), each.components.join(", ")]))),
        h("p", { class: "dim" }, `${plan.rings.length} ${t("rings")} × ${number(plan.ring_capacity)} · ${plan.direct} ${t("direct_calls")}`)),
      card(t("stage_latency"),
        table([t("stage"), ...Object.values(PARTS).map(right)],
          Object.entries(report.latency_us).map(([stage, spans]) => row([stage, ...Object.keys(PARTS).map((part) => n(micros(spans[part])))])))));
  },
};

const percent = (fraction) => `${number(fraction * 100, 2)} %`;
const result = (job) => {
  const { performance, equity } = job.result;
  return h("div", { class: "grid" },
    h("section", { class: "card wide", id: "backtest" }, h("h2", {}, job.result.strategy),
      h("p", {}, h("code", {}, `qts backtest ${job.arguments.join(" ")}`)),
      h("div", { class: "figures" },
        figure(t("gain"), percent(performance.gain), tone(performance.gain), `${won(performance.start_equity)} → ${won(performance.end_equity)}`),
        figure(t("drawdown"), percent(performance.max_drawdown)), figure(t("trades"), number(performance.trades), "", `${t("win_rate")} ${share(performance.win_rate)}`),
        figure("Sharpe", performance.sharpe === null ? "–" : number(performance.sharpe, 2)), figure(t("costs"), won(performance.costs)),
        figure(t("best_worst"), won(performance.best), "", won(performance.worst)),
        figure(t("events"), number(job.result.events), "", `${number(job.result.events_per_s)} /s, ${job.result.way}`))),
    h("section", { class: "card wide" }, h("h2", {}, `${t("gain")}, %`),
      lines(`${t("gain")}, %`, equity.map((point) => point[0]), [{ name: "", kind: "a", values: equity.map((point) => (point[1] / performance.start_equity - 1) * 100) }], { digits: 2 })),
    h("p", {}, h("a", { class: "back", href: "#/backtests" }, "← " + t("backtests"))));
};

export const backtests = {
  from: "tables",
  path: (id) => (id ? `backtest?id=${encodeURIComponent(id)}` : "backtests"),
  draw(_state, data, id) {
    if (id && data?.job) return data.job.result ? result(data.job) : card(data.job.status, h("p", {}, data.job.error || "…"));
    return card(t("backtests"),
      table([t("at"), t("arguments"), t("status"), right(t("gain")), right(t("drawdown")), right(t("trades")), t("error")],
        (data?.jobs ?? []).map(({ performance, ...job }) =>
          row([h("a", { href: `#/backtests/${job.job_id}` }, moment(job.created_at)), h("code", {}, job.arguments.join(" ")), chip(job.status),
            n(performance ? percent(performance.gain) : "–", tone(performance?.gain)), n(performance ? percent(performance.max_drawdown) : "–"), n(performance ? number(performance.trades) : "–"), job.error])),
        t("no_backtests")));
  },
};

const browsers = ({ me, subscription }, data) => {
  const reason = !me?.push_key ? t("push_no_key") : !isSupported() ? t("push_unsupported") : null;
  return card(t("push"),
    reason ? h("p", { class: "dim" }, reason) : !may("trade") ? null
      : h("div", { class: "buttons" }, subscription ? button(t("unsubscribe"), "unsubscribe", { id: "unsubscribe" }) : button(t("subscribe"), "subscribe", { id: "subscribe" })),
    table([t("browser"), t("at"), t("status")], (data?.browsers ?? []).map((each) =>
      row([h("code", {}, each.endpoint_hash), moment(each.created_at), each.disabled_at ? chip(t("ended")) : chip("OK")])), t("none")));
};

const display = () =>
  card(t("display"), h("div", { class: "buttons" },
    button(`${t("theme")}: ${t(document.documentElement.dataset.theme === "light" ? "light" : "dark")}`, "theme"),
    button(`${t("language")}: ${language() === "ko" ? "한국어" : "English"}`, "language"),
    button(`${t("colours")}: ${t(colours() === "kr" ? "colours_kr" : "colours_green")}`, "colours", { id: "colours" }),
    button(t("logout"), "logout")));

export const settings = {
  path: () => "settings",
  draw(state, data, _id, filters) {
    const search = (filters.find ?? "").toLowerCase();
    const shown = (data?.settings ?? []).filter((each) => `${each.name} ${each.description} ${settingText(each.description)}`.toLowerCase().includes(search));
    return h("div", { class: "grid" },
      h("section", { class: "card wide" }, h("h2", {}, t("settings")),
        h("div", { class: "buttons" }, h("input", { "data-filter": "find", placeholder: t("find"), "aria-label": t("find") })),
        table([t("setting"), t("value"), t("description")], shown.map((each) => row([h("code", {}, each.name), h("td", { class: each.is_default ? "dim" : "" }, h("code", {}, flat(each.value)), each.is_default ? ` ${t("default")}` : ""), h("td", { class: "dim" }, settingText(each.description))])), "…")),
      display(),
      browsers(state, data),
      h("section", { class: "card wide" }, h("h2", {}, t("actions")),
        table([t("at"), t("actor"), t("action"), t("reason"), t("outcome"), t("message")],
          (data?.actions ?? []).map((each) => row([moment(each.at), each.actor, serverText(each.action), [serverText(each.target), each.detail.reason].filter(Boolean).join(" · "), chip(each.outcome), serverText(each.message)])), t("none"))));
  },
};
