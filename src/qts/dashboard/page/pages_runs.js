// Runs: every run on this database, and sums of what is known now.
import { card, chip, figure, h, n, number, right, row, signedWon, table, tone, won } from "./dom.js";
import { account, linkOf, span } from "./state.js";
import { language, stateName, t } from "./labels.js";

const MAX_AGE_S = 5; // as MAX_AGE_S of the server
const KINDS = { active: "good", silent: "warn", waiting: "warn", ended: "" };
const short = (key) => { const [broker, digest] = key.split(":"); return `${broker}:${digest.slice(0, 8)}`; };
const money = (value, currency) => (currency === "KRW" ? won(value) : value === null ? "–" : `${number(value, 2)} ${currency}`);
const profit = (value, currency) => (currency === "KRW" ? signedWon(value) : value === null ? "–" : `${number(value, 2)} ${currency}`);

// A row with the age that it has now: it grew since the server read it.
const aged = (each, since) => {
  const age = each.age_s === null ? null : each.age_s + since;
  return { ...each, age, current: each.is_current && age <= MAX_AGE_S };
};

const nameCell = (each, own) => h("td", {},
  h("a", { class: "in-text", href: linkOf(own.includes(each.account) ? "" : each.account) }, each.name || short(each.account)),
  own.includes(each.account) && h("small", { class: "dim" }, ` ${t("own_run")}`),
  h("small", { class: "dim", title: each.account }, ` ${short(each.account)}${each.venue ? ` · ${each.venue}` : ""}`));

const stateCell = (each) => h("td", {},
  chip(t(`run_${each.current || each.state !== "active" ? each.state : "silent"}`), KINDS[each.state]), " ",
  each.state !== "ended" && h("small", { class: "dim" }, `${each.host}, ${each.pid}`),
  each.standbys.map((name) => h("span", {}, " ", chip(`${t("standby")}: ${name}`, "open"))));

const switchCell = ({ trading, safety }) => h("td", {},
  trading === null ? chip(t("never_allowed"), "warn") : trading ? chip(t("allowed"), "good") : chip(t("stop"), "bad"),
  safety && safety !== "NORMAL" && [" ", chip(stateName(safety), safety === "WARNING" ? "warn" : "bad")]);

// What an earlier status said is no answer to whether a run trades now.
const verdictOf = ({ current, verdict, state }) => (current && verdict ? verdict[language()] : t(`trades_${state === "active" ? "silent" : state}`));
// Figures of the run: grey with their age when they are old, a dash when there are none.
const figures = (each) => {
  const old = each.current ? "" : "old";
  return [n(money(each.equity, each.currency), old), n(profit(each.day_profit, each.currency), each.current ? tone(each.day_profit) : old)];
};

const runTable = (runs, own) =>
  table([t("run"), t("mode"), t("status"), right(t("status_age")), right(t("equity")), right(t("profit_today")), right(t("open_orders")), right(t("unknown_short")), right(t("alerts")), t("kill_switch"), t("sentence")],
    runs.map((each) => row([
      nameCell(each, own),
      each.label ? chip(t(each.label.toLowerCase()), `mode-${each.label.toLowerCase()}`) : t("mode_unknown"),
      stateCell(each),
      n(each.age === null ? "–" : span(each.age), each.current ? "" : "warn"),
      ...figures(each),
      n(number(each.open_orders)), n(number(each.unknown), each.unknown ? "bad" : ""), n(number(each.alerts), each.alerts ? "warn" : ""),
      switchCell(each),
      verdictOf(each),
    ], { class: each.unknown ? "unknown" : "", "data-account": each.account })),
    t("no_runs"));

// A sum is of accounts whose figures are known now; the others are named, never added.
const totalOf = (each, since) => {
  const known = each.counted > 0 && since <= MAX_AGE_S;
  const note = `${t("sum_of").replace("{counted}", each.counted).replace("{accounts}", each.accounts)}${each.missing.length ? ` · ${t("not_counted")}: ${each.missing.map(short).join(", ")}` : ""}`;
  return h("div", { class: "total", "data-total": `${each.label} ${each.currency}` },
    chip(t(each.label.toLowerCase()), `mode-${each.label.toLowerCase()}`),
    figure(t("equity"), known ? money(each.equity, each.currency) : "–"),
    figure(t("profit_today"), known ? profit(each.day_profit, each.currency) : "–", known ? tone(each.day_profit) : ""),
    h("small", { class: each.missing.length ? "warn" : "dim" }, note));
};

export const runs = {
  from: "tables",
  path: () => "runs",
  draw({ now }, data) {
    if (!data) return h("p", { class: "dim" }, "…");
    const since = now.tables_s ?? 0;
    return h("div", { class: "grid" },
      h("section", { class: "card wide" }, h("h2", {}, t("sums")), data.totals.length ? h("div", { class: "totals" }, data.totals.map((each) => totalOf(each, since))) : h("p", { class: "dim" }, t("no_runs")),
        h("p", { class: "dim" }, t("sums_note"))),
      h("section", { class: "card wide" }, h("h2", {}, t("runs")), runTable(data.runs.map((each) => aged(each, since)), data.own)),
      account && card(t("runs"), h("p", {}, h("a", { class: "back", href: linkOf("") }, `← ${t("own_run_back")}`))));
  },
};
