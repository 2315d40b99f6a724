// The application: one WebSocket delivers the status, each page requests its other data, actions are posted.
import { button, chip, clock, h, moment, number, patch, signed, tone } from "./dom.js";
import { market, orders, overview, strategies } from "./pages_trade.js";
import { backtests, cache, events, feed, outbox, router, settings } from "./pages_system.js";
import * as push from "./push.js";
import { language, setLanguage, t } from "./labels.js";

const PAGES = { overview, events, feed, market, orders, strategies, outbox, cache, router, backtests, settings };
const KEYS = "1234567890-";
const REFRESH_MS = 1000;
const MAX_POINTS = 600;

const state = { live: null, safety: null, switches: null, troubles: {}, history: [], sla: {}, receivedAt: 0, me: null, subscription: null };
let data = null;
let filters = {};
let loading = null;

const route = () => {
  const [, name = "overview", id] = location.hash.split("/");
  return { name: name in PAGES ? name : "overview", id: id && decodeURIComponent(id) };
};

// --- drawing ---------------------------------------------------------------------------------

function top() {
  const { live, safety, troubles } = state;
  const lost = Date.now() - state.receivedAt > 3000;
  const text = lost ? t("lost") : troubles.database ? "DATABASE" : safety ? safety.state : "…";
  const kind = lost || troubles.database ? "lost" : (safety?.state ?? "").toLowerCase();
  const money = live?.money;
  const profit = money && Number(money.realised_today) + Number(money.unrealised);
  const off = state.switches && !state.switches.account?.enabled;
  return h("header", { id: "top", class: `state-${kind}` },
    h("b", { class: "brand" }, "QTS"),
    h("span", { id: "banner", class: `banner ${kind} ${!live && kind === "normal" ? "idle" : ""}` }, text, safety?.code && !lost ? ` ${safety.code}` : ""),
    live ? chip(t(live.mode), live.mode === "live" ? "mode-live" : "mode-paper") : h("span", { id: "not-running", class: "chip bad" }, t("not_running")),
    live && h("span", { id: "account", class: "dim", title: `${live.broker}:${live.account}` }, `${live.broker}:${live.account.slice(0, 8)}`),
    off && chip(t("trading_off"), "bad"),
    live?.safety.suspended && chip(`${t("suspended_cycles")}: ${live.safety.suspended}`, "warn"),
    live && !live.safety.may_trade && chip(t("not_reconciled"), "warn"),
    Math.abs(live?.safety.clock_skew_s ?? 0) > 0.5 && chip(`${t("clock_skew")} ${live.safety.clock_skew_s.toFixed(1)} s`, "warn"),
    h("span", { class: "message" }, lost ? "" : troubles.database ?? troubles.cache ?? safety?.message ?? ""),
    h("span", { class: `profit ${tone(profit)}` }, money ? signed(profit) : ""),
    h("span", { class: "dim clock" }, live ? clock(live.at) : ""),
    button("◐", "theme", { title: "t" }, "plain"),
    button(language() === "ko" ? "EN" : "KO", "language", { title: "l" }, "plain"),
    button(t("logout"), "logout", {}, "plain"));
}

const nav = (name) =>
  h("nav", { id: "nav", "aria-label": "pages" }, Object.keys(PAGES).map((key, at) =>
    h("a", { href: `#/${key}`, class: key === name ? "here" : "", "aria-current": key === name ? "page" : null }, h("kbd", {}, KEYS[at]), t(key))),
    h("p", { class: "dim foot" }, state.live ? `${state.live.version} · ${t("uptime")} ${moment(state.live.started_at)}` : "", h("br"), state.me ? state.me.role : ""));

let frameRequested = false;
function draw() {
  if (frameRequested) return;
  frameRequested = true;
  requestAnimationFrame(() => {
    frameRequested = false;
    const { name, id } = route();
    patch(document.getElementById("top"), top());
    patch(document.getElementById("nav"), nav(name));
    patch(document.getElementById("page"), h("main", { id: "page", "data-page": name, "data-ready": data || PAGES[name].path(id, filters) === null ? "1" : null }, PAGES[name].draw(state, data, id, filters)));
    document.title = `${state.safety?.state ?? "…"} · QTS ${number(state.live?.positions.length ?? 0)}`;
  });
}

// --- requests and actions --------------------------------------------------------------------

async function call(path, body) {
  const reply = await fetch(path, body && {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-QTS-CSRF": state.me.csrf },
    body: JSON.stringify(body),
  });
  if (reply.status === 401) location.replace("/login");
  const answer = await reply.json();
  if (!reply.ok) throw new Error(answer.error);
  return answer;
}

async function load() {
  const { name, id } = route();
  const path = PAGES[name].path(id, filters);
  const request = (loading = {});
  if (path && !document.hidden) {
    try {
      const answer = await call(`/api/${path}`);
      if (name === "settings") Object.assign(answer, { actions: (await call("/api/overview")).actions }, await call("/api/browsers"));
      if (request === loading) data = answer;
    } catch (error) {
      if (request === loading) showToast(error.message, "bad");
    }
  }
  if (request === loading) {
    draw();
    setTimeout(() => request === loading && load(), REFRESH_MS);
  }
}

let hideTimer;
function showToast(text, kind = "") {
  const toast = document.getElementById("toast");
  toast.textContent = text;
  toast.className = `shown ${kind}`;
  clearTimeout(hideTimer);
  hideTimer = setTimeout(() => (toast.className = ""), 6000);
}

async function act(action) {
  try {
    showToast((await call("/api/action", action)).done, "good");
    load();
  } catch (error) {
    showToast(error.message, "bad");
  }
}

function confirmAction(text, needsReason, more) {
  const dialog = document.getElementById("confirm");
  dialog.replaceChildren(h("p", {}, text),
    needsReason && h("input", { id: "reason", placeholder: t("reason"), "aria-label": t("reason"), maxlength: 500 }),
    more && h("label", { class: "check" }, h("input", { type: "checkbox", id: "more" }), more),
    h("div", { class: "buttons" }, h("button", { id: "no" }, t("cancel")), h("button", { id: "yes", class: "stop" }, t("confirm"))));
  dialog.showModal();
  return new Promise((resolve) => {
    const close = (answer) => { dialog.close(); resolve(answer); };
    dialog.oncancel = () => resolve(null);
    document.getElementById("no").onclick = () => close(null);
    document.getElementById("yes").onclick = () => {
      const reason = document.getElementById("reason")?.value.trim();
      if (needsReason && !reason) return document.getElementById("reason").focus();
      close({ reason, more: document.getElementById("more")?.checked ?? false });
    };
  });
}

const ACTIONS = {
  async kill({ on, strategy }) {
    const enabled = on === "1";
    const answer = await confirmAction(`${strategy ?? ""} ${t(enabled ? "sure_allow" : "sure_stop")}`.trim(), true);
    if (answer) act({ action: "kill", enabled, reason: answer.reason, ...(strategy && { strategy }) });
  },
  async release() {
    const answer = await confirmAction(t("sure_release"), true);
    if (answer) act({ action: "release", reason: answer.reason });
  },
  reconcile: () => act({ action: "reconcile" }),
  replay: ({ number: which }) => act({ action: "replay", number: Number(which) }),
  async requeue({ event, unknown }) {
    const answer = await confirmAction(`${t("requeue")} ${event}`, false, unknown && t("outcome_checked"));
    if (answer) act({ action: "requeue", event_id: event, outcome_checked: answer.more });
  },
  params({ strategy }) {
    const fields = [...document.querySelectorAll(`input[data-strategy="${CSS.escape(strategy)}"]`)].filter((each) => each.value.trim());
    const schemas = state.live.strategies.find((each) => each.key === strategy).fields;
    const value = (each) => (schemas[each.dataset.param].type === "string" ? each.value.trim() : JSON.parse(each.value));
    try {
      const params = Object.fromEntries(fields.map((each) => [each.dataset.param, value(each)]));
      fields.forEach((each) => (each.value = ""));
      act({ action: "params", strategy, params });
    } catch (error) {
      showToast(error.message, "bad");
    }
  },
  async subscribe() {
    try {
      await act({ action: "subscribe", subscription: await push.subscribe(state.me.push_key) });
    } catch (error) {
      showToast(error.message, "bad");
    }
    state.subscription = await push.subscription();
  },
  async unsubscribe() {
    const endpoint = await push.unsubscribe();
    if (endpoint) await act({ action: "unsubscribe", endpoint });
    state.subscription = await push.subscription();
  },
  bar: ({ bar }) => { filters = { ...filters, bar }; load(); },
  "filter-open": () => { filters = { ...filters, open: !filters.open }; load(); },
  theme() {
    const next = document.documentElement.dataset.theme === "light" ? "dark" : "light";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("qts-theme", next);
  },
  language: () => { setLanguage(language() === "ko" ? "en" : "ko"); draw(); },
  async logout() {
    await call("/logout", {});
    location.replace("/login");
  },
};

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-do]");
  if (target) ACTIONS[target.dataset.do](target.dataset);
});
document.addEventListener("change", (event) => {
  const { filter, go } = event.target.dataset;
  if (go) location.hash = `#/${go}/${encodeURIComponent(event.target.value.trim())}`;
  if (filter) { filters = { ...filters, [filter]: event.target.value.trim() }; load(); }
});
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = KEYS.indexOf(event.key);
  if (at >= 0) location.hash = `#/${Object.keys(PAGES)[at]}`;
  else if (event.key === "k" && !document.getElementById("confirm").open) ACTIONS.kill({ on: "0" });
  else if (event.key === "t") ACTIONS.theme();
  else if (event.key === "l") ACTIONS.language();
  else if (event.key === "?") showToast(t("help"));
});
window.addEventListener("hashchange", () => { data = null; window.scrollTo(0, 0); load(); });
document.addEventListener("visibilitychange", () => document.hidden || load());

// --- status ----------------------------------------------------------------------------------

function addPoint(live) {
  const last = state.history.at(-1);
  if (!live || (last && live.at - last[0] < 1)) return;
  const { money } = live;
  const lanes = Object.values(live.events.lanes);
  state.history.push([live.at, Number(money.equity), Number(money.realised_today) + Number(money.unrealised), ...lanes.map((lane) => lane.total.p99), ...Object.values(live.rates)]);
  if (state.history.length > MAX_POINTS) state.history.shift();
}

let backoffMs = 250;
function connect() {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/live`);
  socket.onmessage = ({ data: text }) => {
    const message = JSON.parse(text);
    backoffMs = 250;
    state.receivedAt = Date.now();
    if (message.history) state.history = message.history;
    else Object.assign(state, message);
    addPoint(message.live);
    draw();
  };
  socket.onclose = ({ code }) => {
    if (code === 4401) location.replace("/login");
    setTimeout(connect, backoffMs);
    backoffMs = Math.min(5000, backoffMs * 2);
    draw();
  };
}

document.documentElement.dataset.theme = localStorage.getItem("qts-theme") ?? (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
setLanguage(language());
state.me = await call("/api/me");
state.sla = state.me.sla;
push.subscription().then((current) => (state.subscription = current));
connect();
load();
setInterval(draw, 1000);
