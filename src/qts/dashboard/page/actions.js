// What a button or a key does: actions are confirmed, then posted; the server checks the role and writes the audit.
import { confirmAction, showToast } from "./dialog.js";
import { quantity, won } from "./dom.js";
import { nameOf } from "./names.js";
import { positionsOf } from "./pages_trade.js";
import { zoom } from "./price_chart.js";
import * as push from "./push.js";
import { may, model, state, withAccount } from "./state.js";
import { colours, language, serverText, setColours, setLanguage, t } from "./labels.js";

// What the server can tell by account; the rest belongs to this dashboard's home or to the whole database.
const BY_ACCOUNT = /^\/api\/(overview|equity|orders|trades|action)(\?|$)/;
export async function call(path, body) {
  const reply = await fetch(BY_ACCOUNT.test(path) ? withAccount(path) : path, body && {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-QTS-CSRF": state.me.csrf },
    body: JSON.stringify(body),
  });
  if (reply.status === 401) location.replace("/login");
  const answer = await reply.json();
  if (!reply.ok) throw new Error(answer.error);
  return answer;
}

// What went wrong: a request without a reply has only the browser's words, which are English everywhere.
export const errorText = (error) => (error instanceof TypeError ? t("no_reply") : serverText(error.message));
// The server says what was done or refused; a Korean page says first which action it was.
const inKorean = (key, text) => (language() === "ko" ? `${t(key)}: ${text}` : text);
const doneText = ({ action }, { done }) => inKorean(`done_${action}`, serverText(done));
const refusedText = (error) => inKorean("not_done", errorText(error));

async function act(action, onDone) {
  try {
    showToast(doneText(action, await call("/api/action", action)), "good");
    onDone();
  } catch (error) {
    showToast(refusedText(error), "bad");
  }
}

// An action with an id may be posted again: when its reply was lost, the second post gets the outcome of the first.
async function actOnce(action, onDone) {
  const body = { ...action, id: newId() };
  showToast(t("handed_over"), "", 60000);
  for (let left = 2; ; left -= 1) {
    try {
      showToast(doneText(body, await call("/api/action", body)), "good", 20000);
      return onDone();
    } catch (error) {
      if (left && error instanceof TypeError) await new Promise((resolve) => setTimeout(resolve, 1000));
      else return showToast(refusedText(error), "bad", 20000);
    }
  }
}

// crypto.randomUUID is missing where the page comes over plain http from another machine.
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const text = [...bytes].map((each) => each.toString(16).padStart(2, "0")).join("");
  return text.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

// What closing does: each position with its value, the open orders that are cancelled, what stays as it is.
function closeLines(data, symbol) {
  const chosen = (each) => !symbol || each.symbol === symbol;
  const held = (positionsOf({ ...state, now: model() }, data) ?? []).filter(chosen);
  const orders = (data?.open_orders ?? []).filter(chosen);
  const value = ({ price, average_price: average, quantity: size }) => Math.abs(size) * Number(price ?? average);
  const total = held.reduce((sum, each) => sum + value(each), 0);
  return [
    ...held.map((each) => `${quantity(each.quantity)} ${nameOf(each.symbol) || each.name || each.symbol} (${each.symbol}) ≈ ${won(value(each))}`),
    t("sure_close").replace("{orders}", orders.length).replace("{positions}", held.length).replace("{value}", won(total)),
    ...(state.switches && !state.switches.account?.enabled ? [t("close_killed")] : []),
    t("sure_close_again"),
  ];
}

const openPositions = () => (state.live ? t("positions_stay").replace("{}", state.live.positions.length) : t("positions_unknown"));

function paramValues(strategy) {
  const fields = [...document.querySelectorAll(`input[data-strategy="${CSS.escape(strategy)}"]`)].filter((each) => each.value.trim());
  const schemas = state.live.strategies.find((each) => each.key === strategy).fields;
  const value = ({ value: text, dataset: { param } }) => {
    const { type } = schemas[param];
    if (type === "string") return text.trim();
    if (type === "boolean" && /^(true|false)$/.test(text.trim())) return text.trim() === "true";
    if ((type === "integer" || type === "number") && Number.isFinite(Number(text))) return Number(text);
    throw new Error(t("bad_param").replace("{param}", param).replace("{text}", text.trim()).replace("{type}", type));
  };
  return { fields, params: Object.fromEntries(fields.map((each) => [each.dataset.param, value(each)])) };
}

// `app` redraws and loads; a filter belongs to the page that is open.
export const actions = (app) => ({
  async kill({ on, strategy }) {
    if (!may("trade")) return;
    const enabled = on === "1";
    const title = `${t(enabled ? "allow_trading" : "stop_trading")}${strategy ? `: ${strategy}` : ""}`;
    const lines = enabled ? [t("sure_allow")] : strategy ? [t("sure_stop_strategy")] : [t("sure_stop"), t("sure_stop_stops"), openPositions()];
    const answer = await confirmAction({ title, lines, kind: enabled ? "go" : "stop" });
    if (answer) act({ action: "kill", enabled, reason: answer.reason, ...(strategy && { strategy }) }, app.load);
  },
  async release() {
    const answer = await confirmAction({ title: t("release"), lines: [t("sure_release")], kind: "warn" });
    if (answer) act({ action: "release", reason: answer.reason }, app.load);
  },
  async cancel({ order, title, state: status }) {
    const lines = [t(status === "WAITING" ? "sure_cancel_stop" : "sure_cancel")];
    const answer = await confirmAction({ title: `${t("cancel_order")}: ${title}`, lines, kind: "warn" });
    if (answer) act({ action: "cancel", intent_id: order, reason: answer.reason }, app.load);
  },
  async close({ symbol }) {
    if (!may("trade")) return;
    const title = symbol ? `${t("close")}: ${nameOf(symbol) || symbol}` : t("flatten");
    const answer = await confirmAction({ title, lines: closeLines(app.data(), symbol), kind: "stop" });
    if (answer) actOnce({ action: "close", reason: answer.reason, ...(symbol && { symbol }) }, app.load);
  },
  async acknowledge({ alert, text }) {
    if (!may("trade")) return;
    const title = t(alert ? "acknowledge" : "acknowledge_all");
    const lines = [alert ? text : t("sure_acknowledge_all"), t("sure_acknowledge")];
    const answer = await confirmAction({ title, lines, kind: "go", required: false });
    if (answer) act({ action: "acknowledge", reason: answer.reason, ...(alert && { ids: [Number(alert)] }) }, app.load);
  },
  reconcile: () => act({ action: "reconcile" }, app.load),
  replay: ({ number: which }) => act({ action: "replay", number: Number(which) }, app.load),
  async requeue({ event, unknown }) {
    const answer = await confirmAction({ title: t("requeue"), lines: [event], kind: "warn", reason: false, more: unknown && t("outcome_checked") });
    if (answer) act({ action: "requeue", event_id: event, outcome_checked: answer.more }, app.load);
  },
  async params({ strategy }) {
    try {
      const { fields, params } = paramValues(strategy);
      if (!fields.length) return;
      const lines = [...Object.entries(params).map(([name, value]) => `${name} = ${value}`), t("sure_params")];
      if (!(await confirmAction({ title: `${t("set_params")}: ${strategy}`, lines, kind: "warn", reason: false }))) return;
      fields.forEach((each) => (each.value = ""));
      act({ action: "params", strategy, params }, app.load);
    } catch (error) {
      showToast(error.message, "bad");
    }
  },
  async subscribe() {
    try {
      const subscription = await push.subscribe(state.me.push_key);
      if (subscription) await act({ action: "subscribe", subscription }, app.load);
      else showToast(t("push_blocked"), "bad");
    } catch (error) {
      showToast(`${t("push_failed")}: ${error.message}`, "bad");
    }
    state.subscription = await push.subscription();
  },
  async unsubscribe() {
    const endpoint = await push.unsubscribe();
    if (endpoint) await act({ action: "unsubscribe", endpoint }, app.load);
    state.subscription = await push.subscription();
  },
  bar: ({ bar }) => app.filter({ bar }),
  zoom: ({ factor }) => zoom(Number(factor)),
  span: ({ span }) => app.filter({ span }),
  "trades-span": ({ span }) => app.filter({ trades: span }),
  "filter-open": () => app.filter({ open: !app.filters().open }),
  skip: () => document.getElementById("page").focus(),
  more: () => app.toggleMenu(),
  colours: () => { setColours(colours() === "kr" ? "green" : "kr"); app.draw(); },
  theme() {
    const next = document.documentElement.dataset.theme === "light" ? "dark" : "light";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("qts-theme", next);
    app.draw();
  },
  language: () => { setLanguage(language() === "ko" ? "en" : "ko"); app.draw(); },
  async logout() {
    await call("/logout", {});
    location.replace("/login");
  },
});
