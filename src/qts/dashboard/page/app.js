// The page: one WebSocket tells the state, each page asks for what else it shows; deeds are posted.
import { button, chip, clock, h, moment, number, patch, signed, tone } from "./dom.js";
import { market, orders, overview, strategies } from "./pages_trade.js";
import { backtests, cache, events, feed, outbox, router, settings } from "./pages_system.js";
import * as push from "./push.js";
import { choose, language, t } from "./words.js";

const PAGES = { overview, events, feed, market, orders, strategies, outbox, cache, router, backtests, settings };
const KEYS = "1234567890-";
const LOOK_MS = 1000;
const POINTS = 600;

const state = { live: null, safety: null, switches: null, troubles: {}, history: [], sla: {}, heard: 0, me: null, pushed: null };
let data = null;
let asked = {};
let looking = null;

const place = () => {
  const [, name = "overview", rest] = location.hash.split("/");
  return { name: name in PAGES ? name : "overview", rest: rest && decodeURIComponent(rest) };
};

// --- drawing ---------------------------------------------------------------------------------

function top() {
  const { live, safety, troubles } = state;
  const lost = Date.now() - state.heard > 3000;
  const word = lost ? t("lost") : troubles.database ? "DATABASE" : safety ? safety.state : "…";
  const kind = lost || troubles.database ? "lost" : (safety?.state ?? "").toLowerCase();
  const money = live?.money;
  const profit = money && Number(money.realised_today) + Number(money.unrealised);
  const off = state.switches && !state.switches.account?.enabled;
  return h("header", { id: "top", class: `state-${kind}` },
    h("b", { class: "brand" }, "QTS"),
    h("span", { id: "banner", class: `banner ${kind} ${!live && kind === "normal" ? "idle" : ""}` }, word, safety?.code && !lost ? ` ${safety.code}` : ""),
    live ? chip(t(live.mode), live.mode === "live" ? "mode-live" : "mode-paper") : h("span", { id: "not-running", class: "chip bad" }, t("not_running")),
    off && chip(t("trading_off"), "bad"),
    live?.safety.suspended && chip(`${t("suspended_cycles")}: ${live.safety.suspended}`, "warn"),
    live && !live.safety.may_trade && chip(t("books_open"), "warn"),
    h("span", { class: "say" }, lost ? "" : troubles.database ?? troubles.cache ?? safety?.message ?? ""),
    h("span", { class: `profit ${tone(profit)}` }, money ? signed(profit) : ""),
    h("span", { class: "dim clock" }, live ? clock(live.at) : ""),
    button("◐", "theme", { title: "t" }, "plain"),
    button(language() === "ko" ? "EN" : "KO", "language", { title: "l" }, "plain"),
    button(t("logout"), "logout", {}, "plain"));
}

const rooms = (name) =>
  h("nav", { id: "rooms", "aria-label": "pages" }, Object.keys(PAGES).map((key, at) =>
    h("a", { href: `#/${key}`, class: key === name ? "here" : "", "aria-current": key === name ? "page" : null }, h("kbd", {}, KEYS[at]), t(key))),
    h("p", { class: "dim foot" }, state.live ? `${state.live.version} · ${t("uptime")} ${moment(state.live.started_at)}` : "", h("br"), state.me ? state.me.role : ""));

let waiting = false;
function draw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    const { name, rest } = place();
    patch(document.getElementById("top"), top());
    patch(document.getElementById("rooms"), rooms(name));
    patch(document.getElementById("page"), h("main", { id: "page", "data-page": name, "data-ready": data || PAGES[name].look(rest, asked) === null ? "1" : null }, PAGES[name].draw(state, data, rest, asked)));
    document.title = `${state.safety?.state ?? "…"} · QTS ${number(state.live?.positions.length ?? 0)}`;
  });
}

// --- asking and doing ------------------------------------------------------------------------

async function call(path, body) {
  const reply = await fetch(path, body && {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-QTS-CSRF": state.me.csrf },
    body: JSON.stringify(body),
  });
  if (reply.status === 401) location.replace("/login");
  const said = await reply.json();
  if (!reply.ok) throw new Error(said.error);
  return said;
}

async function look() {
  const { name, rest } = place();
  const path = PAGES[name].look(rest, asked);
  const mine = (looking = {});
  if (path && !document.hidden) {
    try {
      const found = await call(`/api/${path}`);
      if (name === "settings") Object.assign(found, { actions: (await call("/api/overview")).actions }, await call("/api/browsers"));
      if (mine === looking) data = found;
    } catch (error) {
      if (mine === looking) say(error.message, "bad");
    }
  }
  if (mine === looking) {
    draw();
    setTimeout(() => mine === looking && look(), LOOK_MS);
  }
}

let silence;
function say(text, kind = "") {
  const toast = document.getElementById("toast");
  toast.textContent = text;
  toast.className = `shown ${kind}`;
  clearTimeout(silence);
  silence = setTimeout(() => (toast.className = ""), 6000);
}

async function act(action) {
  try {
    say((await call("/api/action", action)).done, "good");
    look();
  } catch (error) {
    say(error.message, "bad");
  }
}

function confirmed(text, needsReason, more) {
  const dialog = document.getElementById("ask");
  dialog.replaceChildren(h("p", {}, text),
    needsReason && h("input", { id: "reason", placeholder: t("reason"), "aria-label": t("reason"), maxlength: 500 }),
    more && h("label", { class: "check" }, h("input", { type: "checkbox", id: "more" }), more),
    h("div", { class: "buttons" }, h("button", { id: "no" }, t("cancel")), h("button", { id: "yes", class: "stop" }, t("confirm"))));
  dialog.showModal();
  return new Promise((resolve) => {
    const end = (answer) => { dialog.close(); resolve(answer); };
    dialog.oncancel = () => resolve(null);
    document.getElementById("no").onclick = () => end(null);
    document.getElementById("yes").onclick = () => {
      const reason = document.getElementById("reason")?.value.trim();
      if (needsReason && !reason) return document.getElementById("reason").focus();
      end({ reason, more: document.getElementById("more")?.checked ?? false });
    };
  });
}

const DEEDS = {
  async kill({ on, strategy }) {
    const enabled = on === "1";
    const answer = await confirmed(`${strategy ?? ""} ${t(enabled ? "sure_allow" : "sure_stop")}`.trim(), true);
    if (answer) act({ action: "kill", enabled, reason: answer.reason, ...(strategy && { strategy }) });
  },
  async release() {
    const answer = await confirmed(t("sure_release"), true);
    if (answer) act({ action: "release", reason: answer.reason });
  },
  reconcile: () => act({ action: "reconcile" }),
  replay: ({ number: which }) => act({ action: "replay", number: Number(which) }),
  async requeue({ event, unknown }) {
    const answer = await confirmed(`${t("requeue")} ${event}`, false, unknown && t("outcome_checked"));
    if (answer) act({ action: "requeue", event_id: event, outcome_checked: answer.more });
  },
  params({ strategy }) {
    const fields = [...document.querySelectorAll(`input[data-strategy="${CSS.escape(strategy)}"]`)].filter((each) => each.value.trim());
    const about = state.live.strategies.find((each) => each.key === strategy).fields;
    const value = (each) => (about[each.dataset.param].type === "string" ? each.value.trim() : JSON.parse(each.value));
    try {
      const params = Object.fromEntries(fields.map((each) => [each.dataset.param, value(each)]));
      fields.forEach((each) => (each.value = ""));
      act({ action: "params", strategy, params });
    } catch (error) {
      say(error.message, "bad");
    }
  },
  async subscribe() {
    try {
      await act({ action: "subscribe", subscription: await push.subscribe(state.me.push_key) });
    } catch (error) {
      say(error.message, "bad");
    }
    state.pushed = await push.subscribed();
  },
  async unsubscribe() {
    const endpoint = await push.unsubscribe();
    if (endpoint) await act({ action: "unsubscribe", endpoint });
    state.pushed = await push.subscribed();
  },
  bar: ({ bar }) => { asked = { ...asked, bar }; look(); },
  "filter-open": () => { asked = { ...asked, open: !asked.open }; look(); },
  theme() {
    const next = document.documentElement.dataset.theme === "light" ? "dark" : "light";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("qts-theme", next);
  },
  language: () => { choose(language() === "ko" ? "en" : "ko"); draw(); },
  async logout() {
    await call("/logout", {});
    location.replace("/login");
  },
};

document.addEventListener("click", (event) => {
  const pressed = event.target.closest("[data-do]");
  if (pressed) DEEDS[pressed.dataset.do](pressed.dataset);
});
document.addEventListener("change", (event) => {
  const { filter, go } = event.target.dataset;
  if (go) location.hash = `#/${go}/${encodeURIComponent(event.target.value.trim())}`;
  if (filter) { asked = { ...asked, [filter]: event.target.value.trim() }; look(); }
});
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = KEYS.indexOf(event.key);
  if (at >= 0) location.hash = `#/${Object.keys(PAGES)[at]}`;
  else if (event.key === "k" && !document.getElementById("ask").open) DEEDS.kill({ on: "0" });
  else if (event.key === "t") DEEDS.theme();
  else if (event.key === "l") DEEDS.language();
  else if (event.key === "?") say(t("help"));
});
window.addEventListener("hashchange", () => { data = null; window.scrollTo(0, 0); look(); });
document.addEventListener("visibilitychange", () => document.hidden || look());

// --- hearing ---------------------------------------------------------------------------------

function remember(live) {
  const last = state.history.at(-1);
  if (!live || (last && live.at - last[0] < 1)) return;
  const { money } = live;
  const lanes = Object.values(live.events.lanes);
  state.history.push([live.at, Number(money.equity), Number(money.realised_today) + Number(money.unrealised), ...lanes.map((lane) => lane.total.p99), ...Object.values(live.rates)]);
  if (state.history.length > POINTS) state.history.shift();
}

let wait = 250;
function hear() {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/live`);
  socket.onmessage = ({ data: text }) => {
    const told = JSON.parse(text);
    wait = 250;
    state.heard = Date.now();
    if (told.history) state.history = told.history;
    else Object.assign(state, told);
    remember(told.live);
    draw();
  };
  socket.onclose = ({ code }) => {
    if (code === 4401) location.replace("/login");
    setTimeout(hear, wait);
    wait = Math.min(5000, wait * 2);
    draw();
  };
}

document.documentElement.dataset.theme = localStorage.getItem("qts-theme") ?? (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
choose(language());
state.me = await call("/api/me");
state.sla = state.me.sla;
push.subscribed().then((made) => (state.pushed = made));
hear();
look();
setInterval(draw, 1000);
