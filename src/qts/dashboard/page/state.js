// What the page knows and how old it is. Every source is known, old or unknown; nothing is derived from a missing value.
// Ages are spans: the server says how old its state was, the page adds the time since it requested it. No clock is compared
// with another machine's, so that a slow connection or a wrong clock cannot make a state look younger than it is.
import { t } from "./labels.js";

// The account whose run this page shows; none: the run of this dashboard.
export const account = new URLSearchParams(location.search).get("account") ?? "";
export const withAccount = (path) => (account ? `${path}${path.includes("?") ? "&" : "?"}account=${encodeURIComponent(account)}` : path);
export const linkOf = (key) => `/${key ? `?account=${encodeURIComponent(key)}` : ""}#/overview`;

export const OLD_S = 3; // as STALE_S of the server
const TABLES_OLD_S = 10;
const MAX_POINTS = 600;

// Time since it was made; a machine that slept, or a clock that was set, can only make it longer.
export function stopwatch() {
  const [ticks, wall] = [performance.now(), Date.now()];
  return () => Math.max(performance.now() - ticks, Date.now() - wall, 0) / 1000;
}

export const state = {
  live: null, live_age_s: null, run: "unknown", verdict: null, safety: null, switches: null, troubles: {},
  stored: null, history: [], sla: {}, me: null, subscription: null,
  opened: stopwatch(), answer: null, tables: null, equity: null,
};

// Take an answer of the WebSocket; `sinceRequest` was started with its request.
export function take(message, sinceRequest) {
  const { waited_s, composed_s } = message;
  state.answer = () => Math.max(0, sinceRequest() - waited_s) + composed_s;
  if (message.history) state.history = message.history;
  Object.assign(state, message.state);
  addPoint(message.state.live);
}

function addPoint(live) {
  const last = state.history.at(-1);
  if (!live || (last && live.at - last[0] < 1)) return;
  const { money } = live;
  const lanes = Object.values(live.events.lanes);
  state.history.push([live.at, Number(money.equity), Number(money.realised_today) + Number(money.unrealised), ...lanes.map((lane) => lane.total.p99), ...Object.values(live.rates)]);
  if (state.history.length > MAX_POINTS) state.history.shift();
}

const standing = (age, limit) => (age === null ? "unknown" : age > limit ? "old" : "known");

export const span = (seconds) =>
  seconds < 120 ? `${Math.floor(seconds)} s` : seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;

// The money that the run stored in the database, where its live status cannot be read: {money, age_s}, or null.
export const remoteMoney = () => (state.run === "remote" && state.stored?.status.money ? state.stored.status.money : null);

// Return the state model: for each source its age in seconds (null: never read) and whether that is known, old or unknown.
export function model() {
  const link = state.answer ? state.answer() : null;
  const run = link === null || state.live === null || state.live_age_s === null ? null : state.live_age_s + link;
  const stored = link === null || state.safety === null ? null : link;
  const tables = state.tables ? state.tables() : null;
  const found = {
    link: standing(link, OLD_S), link_s: link,
    run: standing(run, OLD_S), run_s: run,
    stored: standing(stored, OLD_S),
    tables: standing(tables, TABLES_OLD_S), tables_s: tables,
  };
  // The link is fresh, but the server has counted the status as old, or as gone.
  if (found.run === "known" && state.run !== "reporting") found.run = "old";
  return { ...found, ...sentence(found) };
}

function sentence(found) {
  if (found.link === "known" && state.verdict) return { verdict: state.verdict.state, text: state.verdict[t("language_code")] };
  if (found.link === "old") return { verdict: "lost", text: t("lost_text").replace("{}", span(found.link_s)) };
  const waiting = state.opened();
  return waiting > OLD_S ? { verdict: "lost", text: t("never_connected").replace("{}", span(waiting)) } : { verdict: "unknown", text: t("connecting") };
}

export const may = (role) => ["read", "trade", "admin"].indexOf(state.me?.role) >= ["read", "trade", "admin"].indexOf(role);
