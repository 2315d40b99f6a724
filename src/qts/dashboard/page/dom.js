// DOM nodes, patching a page in place, and formatting of numbers.
// Text is inserted as text, never as markup: texts of venues and strategies are not trusted.
import { language, stateName } from "./labels.js";

const SVG = "http://www.w3.org/2000/svg";
const SVG_ELEMENTS = new Set(["svg", "path", "line", "rect", "text", "g", "polyline", "circle", "title"]);

export function h(name, attributes, ...children) {
  const node = SVG_ELEMENTS.has(name)
    ? document.createElementNS(SVG, name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value !== undefined && value !== null && value !== false) {
      node.setAttribute(key, value === true ? "" : String(value));
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null && child !== false) {
      node.append(child instanceof Node ? child : String(child));
    }
  }
  return node;
}

// What another module draws into is left alone for as long as the page has it.
const keeps = (node) => node.dataset?.keep ?? "";

// Make `old` equal to `fresh`, changing only what differs, so that a field keeps its cursor.
export function patch(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || keeps(old) !== keeps(fresh)) {
    old.replaceWith(fresh);
    return;
  }
  if (keeps(old)) return;
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.matches("select") && old === document.activeElement) return;
  const before = [...old.childNodes];
  const after = [...fresh.childNodes];
  after.forEach((child, at) => {
    if (at < before.length) patch(before[at], child);
    else old.append(child);
  });
  before.slice(after.length).forEach((child) => child.remove());
}

export const number = (value, digits = 0) =>
  value === null || value === undefined || value === ""
    ? "–"
    : Number(value).toLocaleString(language() === "ko" ? "ko-KR" : "en-US", {
        minimumFractionDigits: digits,
        maximumFractionDigits: digits,
        signDisplay: "negative", // no sign of what is rounded to zero
      });
// A large amount in little space: 56.4K, 5.6만.
export const compact = (value) => Number(value).toLocaleString(language() === "ko" ? "ko-KR" : "en-US", { notation: "compact", maximumFractionDigits: 1, signDisplay: "exceptZero" });
export const quantity = (value) =>
  Number(value).toLocaleString("en-US", { maximumFractionDigits: 8 });
export const share = (value) => (value === null || value === undefined ? "–" : `${number(value * 100, 1)} %`);
export const ms = (value) => number(value, value < 10 ? 2 : value < 100 ? 1 : 0);
export const signedShare = (value) => (value === null || value === undefined ? "–" : `${value > 0 ? "+" : ""}${number(value * 100, 2)} %`);
export const signed = (value) => (Number(value) > 0 ? "+" : "") + number(value);
export const digits = (price) => (Math.abs(price) < 10 ? 4 : Math.abs(price) < 1000 ? 2 : 0);
export const won = (value, places = 0) => (value === null || value === undefined || value === "" ? "–" : `₩${number(value, places)}`);
export const price = (value) => won(value, digits(value));
export const signedWon = (value) => (value === null || value === undefined ? "–" : `${Number(value) > 0 ? "+" : Number(value) < 0 ? "−" : ""}₩${number(Math.abs(value))}`);
// Colours of a rise and a fall, which the operator may choose; good and bad are those of a state.
export const tone = (value) => (Number(value) > 0 ? "up" : Number(value) < 0 ? "down" : "");

// Times are those of Seoul, wherever the browser is: the trading day is.
const format = (options) => new Intl.DateTimeFormat("sv-SE", { timeZone: "Asia/Seoul", hour12: false, ...options });
const DAY = format({ dateStyle: "short" });
const CLOCK = format({ timeStyle: "medium" });
const MOMENT = format({ dateStyle: "short", timeStyle: "medium" });
const dateOf = (value) => (typeof value === "number" ? new Date(value * 1000) : new Date(value));
export const moment = (value) => (value ? MOMENT.format(dateOf(value)) : "–");
export const clock = (value) => (value ? CLOCK.format(dateOf(value)) : "–");
export const day = (value) => DAY.format(dateOf(value));
export const zoned = (text) => (text === "–" ? text : `${text} KST`);
export const short = (id) => String(id ?? "–").slice(0, 8);

// A table, which a narrow screen shows as a card for each row: a cell carries the text of its head. The roles are given,
// because a table that is laid out in another way loses them.
export function table(heads, rows, empty = "–") {
  if (!rows.length) return h("p", { class: "dim" }, empty);
  const names = heads.map((head) => head.text ?? head);
  for (const line of rows) {
    line.setAttribute("role", "row");
    [...line.cells].forEach((cell, at) => {
      cell.setAttribute("role", "cell");
      if (names[at]) cell.setAttribute("data-label", names[at]);
    });
  }
  const head = (each) => h("th", { class: each.class, role: "columnheader", scope: "col" }, each.hidden ? h("span", { class: "hidden" }, each.hidden) : each.text ?? each);
  return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": names.filter(Boolean).join(", ") },
    h("table", { class: "cards", role: "table" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map(head))),
      h("tbody", { role: "rowgroup" }, rows)));
}
// The head of a column of buttons, bars or signs: for screen readers only.
export const silent = (text) => ({ text: "", hidden: text });
export const right = (text) => ({ text, class: "n" });
export const row = (cells, attributes) =>
  h("tr", attributes, cells.map((cell) => (cell instanceof Node && cell.nodeName === "TD" ? cell : h("td", {}, cell))));
export const n = (text, kind = "") => h("td", { class: `n ${kind}` }, text);
export const chip = (text, kind = "") => h("span", { class: `chip ${kind || String(text).toLowerCase()}` }, stateName(text));
export const card = (title, ...content) =>
  h("section", { class: "card" }, title && h("h2", {}, title), ...content);
export const figure = (name, value, kind = "", note = "") =>
  h("div", { class: "figure" }, h("span", { class: "dim" }, name), h("b", { class: kind }, value), note && h("small", { class: "dim" }, note));
export const button = (text, action, more = {}, kind = "") =>
  h("button", { "data-do": action, class: kind, ...more }, text);
export const bar = (fraction, kind = "") =>
  h("svg", { class: "bar", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("rect", { width: 100, height: 6, class: "track" }),
    h("rect", { width: Math.max(0, Math.min(100, fraction * 100)), height: 6, class: `fill ${kind}` }));
