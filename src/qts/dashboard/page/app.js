// The application: the WebSocket answers each request with the next state, each page requests its other data.
import { button, chip, clock, h, moment, patch, signedWon, tone, zoned } from "./dom.js";
import { orders, overview, strategies } from "./pages_trade.js";
import { market } from "./pages_market.js";
import { trades } from "./pages_trades.js";
import { logs } from "./pages_logs.js";
import { runs } from "./pages_runs.js";
import { backtests, cache, events, feed, outbox, router, settings } from "./pages_system.js";
import { actions, call, errorText } from "./actions.js";
import { showToast } from "./dialog.js";
import * as push from "./push.js";
import { account, may, model, remoteMoney, span, state, stopwatch, take, withAccount } from "./state.js";
import { codeText, colours, language, serverText, setColours, setLanguage, stateName, t } from "./labels.js";

const PAGES = { overview, events, feed, market, orders, trades, strategies, outbox, cache, router, backtests, logs, settings, runs };
const KEYS = "12345r67890g-a"; // one for each page
// Of another run: what the database has of its account and, where both share a cache, its live status.
const STORED = new Set(["overview", "orders", "trades", "runs"]);
const LIVE = new Set(["events", "feed", "strategies", "cache"]);
const shown = (key) => key in PAGES && (!account || STORED.has(key) || (state.live !== null && LIVE.has(key)));
const BAR = new Set(["overview", "market", "orders", "trades"]); // of a phone, beside the menu
const REFRESH_MS = 1000;
const EQUITY_S = 20;
const SILENT_MS = 20000; // a request without an answer for so long: connect again

let data = null;
let dataOf = ""; // the page that the data belong to: its name changes before its event arrives
let filters = {};
let loading = null;
let menuOpen = false; // of a phone

const route = () => {
  const [, name = "overview", id] = location.hash.split("/");
  return { name: shown(name) ? name : "overview", id: id && decodeURIComponent(id) };
};
const placeOf = ({ name, id }) => `${name}/${id ?? ""}`;

// --- drawing ---------------------------------------------------------------------------------

const modeOf = (live) => (live.simulated ? "simulated" : live.mode);

function ages(now) {
  const old = [
    now.run === "old" && `${t("figures_old")} ${span(now.run_s)}`,
    now.link === "known" && now.tables === "old" && `${t("tables_old")} ${span(now.tables_s)}`,
  ].filter(Boolean);
  return h("span", { id: "ages", class: "warn" }, old.join(" · "));
}

function top(now) {
  const { live, safety, troubles } = state;
  const banner = now.stored === "known" ? safety.state : now.verdict === "lost" ? t("lost") : now.link === "known" && troubles.database ? "DATABASE" : t("state_unknown");
  const kind = now.stored === "known" ? safety.state.toLowerCase() : now.verdict === "lost" || troubles.database ? "lost" : "idle";
  const fresh = now.run === "known";
  const stored = live ? null : state.stored?.status;
  const mode = live ? modeOf(live) : stored?.label.toLowerCase();
  const money = live?.money ?? remoteMoney();
  const profit = money && Number(money.realised_today) + Number(money.unrealised);
  const trouble = now.link === "known" ? Object.values(troubles).map(serverText).join(" · ") : "";
  const skew = fresh && Math.abs(live.safety.clock_skew_s ?? 0) > 0.5;
  return h("header", { id: "top", class: `state-${kind}` },
    button(t("skip"), "skip", { id: "skip" }, "skip"),
    h("h1", { class: "brand" }, "QTS"),
    h("span", { id: "banner", class: `banner ${kind}` }, stateName(banner), now.stored === "known" && safety.code ? ` ${safety.code}` : ""),
    mode && h("span", { "data-from": live ? "run" : "stored" }, chip(t(mode), `mode-${mode}`)),
    account && h("a", { id: "other-run", class: "chip warn", href: "/#/runs", title: account }, `${stored?.name || t("run")} ${account.split(":")[0]}:${account.split(":")[1]?.slice(0, 8)} ✕`),
    now.link === "known" && state.run === "ended" && h("span", { id: "not-running", class: "chip bad" }, t("not_running")),
    live && h("span", { id: "account", class: "dim", title: `${live.broker}:${live.account}` }, `${live.broker}:${live.account.slice(0, 8)}`),
    (live?.venues ?? []).length > 1 && h("span", { id: "venues", "data-from": "run" }, live.venues.map((each) => chip(`${each.venue} ${each.safety.trading ? stateName(each.safety.state) : t("stop")}`, each.safety.state === "NORMAL" && each.safety.trading ? "" : "bad"))),
    skew && chip(`${t("clock_skew")} ${live.safety.clock_skew_s.toFixed(1)} s`, "warn"),
    ages(now),
    h("span", { class: "message dim" }, trouble || (now.stored === "known" && (codeText(safety.code) ?? safety.message)) || ""),
    money && h("span", { class: `profit ${tone(profit)}`, "data-from": live ? "run" : "stored" }, signedWon(profit)),
    h("span", { class: "dim clock" }, live ? zoned(clock(live.at)) : ""),
    may("trade") && !(now.stored === "known" && !state.switches?.account?.enabled) && button(t("stop"), "kill", { "data-on": "0", id: "stop", title: "k" }, "stop"),
    button("◐", "theme", { title: "t", "aria-label": t("theme") }, "plain desk"),
    button(language() === "ko" ? "EN" : "KO", "language", { title: "l", "aria-label": language() === "ko" ? "EN: English" : "KO: 한국어" }, "plain desk"),
    button(t("logout"), "logout", {}, "plain desk"),
    h("p", { id: "verdict", class: now.verdict, role: "status" }, now.text));
}

const nav = (name) =>
  h("nav", { id: "nav", "aria-label": t("pages"), class: menuOpen ? "open" : "" }, Object.keys(PAGES).map((key, at) => shown(key) &&
    h("a", { href: `#/${key}`, class: [key === name && "here", BAR.has(key) && "main"].filter(Boolean).join(" "), "aria-current": key === name ? "page" : null }, h("kbd", { "aria-hidden": "true" }, KEYS[at]), t(key))),
    button(t("more"), "more", { id: "more-pages", "aria-expanded": String(menuOpen), "aria-controls": "nav" }, !BAR.has(name) ? "here" : ""),
    h("p", { class: "dim foot" }, state.live ? `${state.live.version} · ${t("uptime")} ${zoned(moment(state.live.started_at))}` : "", h("br"), state.me ? t(`role_${state.me.role}`) : ""));

const ICONS = { trading: "icon.svg", exits_only: "icon-limited.svg", stopped: "icon-stopped.svg", unknown: "icon-unknown.svg", lost: "icon-unknown.svg" };
// Also while the tab is hidden, where no frame is drawn.
function mark(now) {
  const title = `${t(`title_${now.verdict}`)} · QTS`;
  if (document.title !== title) document.title = title;
  const icon = document.querySelector("link[rel=icon]");
  if (!icon.href.endsWith(ICONS[now.verdict])) icon.href = `/page/${ICONS[now.verdict]}`;
  Object.assign(document.body.dataset, { run: now.run, link: now.link, tables: now.tables, stored: now.stored });
}

function drawPage(now) {
  const { name, id } = route();
  const page = PAGES[name];
  const own = dataOf === placeOf({ name, id }) ? data : null;
  const ready = own || page.path(id, filters) === null ? "1" : null;
  patch(document.getElementById("top"), top(now));
  patch(document.getElementById("nav"), nav(name));
  patch(document.getElementById("page"), h("main", { id: "page", tabindex: -1, "data-page": name, "data-ready": ready, "data-from": page.from }, page.draw({ ...state, now }, own, id, filters)));
  page.drawn?.({ ...state, now }, own, id, filters);
}

let frameRequested = false;
function draw() {
  mark(model());
  if (frameRequested) return;
  frameRequested = true;
  requestAnimationFrame(() => {
    frameRequested = false;
    try {
      drawPage(model());
    } catch (error) {
      // What is on the screen is not what is known any more: say so rather than leave it there.
      document.getElementById("page").replaceChildren(h("p", { class: "bad" }, `${t("draw_failed")}: ${error.message}`));
      throw error;
    }
  });
}

// --- requests --------------------------------------------------------------------------------

// Runs store one sample a minute.
async function loadEquity(span) {
  if (state.equity?.span === span && state.equity.since() < EQUITY_S) return;
  const since = stopwatch();
  state.equity = { ...(await call(`/api/equity?span=${span}`)), span, since };
}

async function load() {
  const { name, id } = route();
  const path = PAGES[name].path(id, filters);
  const request = (loading = {});
  if (path && !document.hidden) {
    const since = stopwatch();
    try {
      const answer = await call(`/api/${path}`);
      if (name === "settings") Object.assign(answer, { actions: (await call("/api/overview")).actions }, await call("/api/browsers"));
      if (name === "overview") await loadEquity(filters.span ?? "1d");
      if (request === loading) [data, dataOf, state.tables] = [answer, placeOf({ name, id }), since];
    } catch (error) {
      if (request === loading) showToast(errorText(error), "bad");
    }
  }
  if (request === loading) {
    draw();
    setTimeout(() => request === loading && load(), PAGES[name].refresh_ms ?? REFRESH_MS);
  }
}

const app = {
  draw, load,
  data: () => data,
  filters: () => filters,
  toggleMenu() { menuOpen = !menuOpen; draw(); },
  filter(more) { filters = { ...filters, ...more }; load(); },
};
const ACTIONS = actions(app);

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-do]");
  if (target) ACTIONS[target.dataset.do](target.dataset);
});
document.addEventListener("change", (event) => {
  const { filter, go } = event.target.dataset;
  if (go) location.hash = `#/${go}/${encodeURIComponent(event.target.value.trim())}`;
  if (filter) app.filter({ [filter]: event.target.value.trim() });
});
document.addEventListener("keydown", (event) => {
  if (document.getElementById("confirm").open) return;
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = KEYS.indexOf(event.key);
  if (event.key === "Escape" && menuOpen) app.toggleMenu();
  else if (at >= 0 && shown(Object.keys(PAGES)[at])) location.hash = `#/${Object.keys(PAGES)[at]}`;
  else if (event.key === "k") { event.preventDefault(); ACTIONS.kill({ on: "0" }); }
  else if (event.key === "t") ACTIONS.theme();
  else if (event.key === "l") ACTIONS.language();
  else if (event.key === "?") showToast(t("help"));
});
window.addEventListener("hashchange", () => {
  data = state.tables = null;
  menuOpen = false;
  filters = { bar: filters.bar, span: filters.span }; // a field of a page starts empty, and so does its filter
  window.scrollTo(0, 0);
  if (document.activeElement?.closest("#nav")) document.getElementById("page").focus({ preventScroll: true });
  load();
});
document.addEventListener("visibilitychange", () => document.hidden || load());

// --- status ----------------------------------------------------------------------------------

let backoffMs = 250;
function connect() {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${withAccount("/api/live")}`);
  let since = stopwatch();
  let silent;
  const request = () => {
    since = stopwatch();
    silent = setTimeout(() => socket.close(), SILENT_MS);
    socket.send("next");
  };
  socket.onopen = request;
  socket.onmessage = ({ data: text }) => {
    clearTimeout(silent);
    try {
      take(JSON.parse(text), since);
      backoffMs = 250;
    } catch (error) {
      console.error(error); // the state stays as old as it is
    }
    draw();
    request();
  };
  socket.onclose = ({ code }) => {
    clearTimeout(silent);
    if (code === 4401) location.replace("/login");
    setTimeout(connect, backoffMs);
    backoffMs = Math.min(5000, backoffMs * 2);
    draw();
  };
}

document.documentElement.dataset.theme = localStorage.getItem("qts-theme") ?? (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
setLanguage(language());
setColours(colours());
draw();
state.me = await call("/api/me");
state.sla = state.me.sla;
push.subscription().then((current) => (state.subscription = current));
connect();
load();
setInterval(draw, 1000);
