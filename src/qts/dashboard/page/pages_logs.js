// Logs: the last lines of the run, the dashboard and the embedded servers.
import { chip, h, moment, row, table } from "./dom.js";
import { t } from "./labels.js";

const LEVELS = ["debug", "info", "warning", "error"];

const choice = (name, label, values, chosen) =>
  h("select", { "data-filter": name, "aria-label": label }, values.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));

export const logs = {
  from: "tables",
  refresh_ms: 3000,
  path: (_id, { file = "", level = "info", find = "" }) => `logs?file=${encodeURIComponent(file)}&level=${level}&find=${encodeURIComponent(find)}`,
  draw(_state, data, _id, filters) {
    const names = data?.files ?? [];
    return h("section", { class: "card", id: "logs" }, h("h2", {}, t("logs")),
      h("div", { class: "buttons" },
        choice("file", t("log_file"), names.map((each) => [each, each === "run" ? t("log_run") : each]), data?.file),
        choice("level", t("log_level"), LEVELS.map((each) => [each, `${t("log_from")} ${each}`]), filters.level ?? "info"),
        h("input", { "data-filter": "find", placeholder: t("find"), "aria-label": t("find") })),
      data && !data.has_run_log && h("p", { class: "dim" }, t("no_run_log")),
      data && table([t("at"), t("log_level"), t("log_source"), t("message")],
        data.lines.map((each) => row([each.at ? moment(each.at) : "", each.level ? chip(each.level, { error: "bad", critical: "bad", warning: "warn" }[each.level] ?? "plain") : "", each.logger, h("code", {}, each.text)])), t("no_lines")));
  },
};
