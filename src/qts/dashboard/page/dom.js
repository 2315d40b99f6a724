// DOM nodes, patching a page in place, and formatting of numbers.
// Text is inserted as text, never as markup: texts of venues and strategies are not trusted.
import { language } from "./labels.js";

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

// Make `old` equal to `fresh`, changing only what differs, so that a field keeps its cursor.
export function patch(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
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
      });
export const quantity = (value) =>
  Number(value).toLocaleString("en-US", { maximumFractionDigits: 8 });
export const share = (value) => (value === null || value === undefined ? "–" : `${number(value * 100, 1)} %`);
export const ms = (value) => number(value, value < 10 ? 2 : value < 100 ? 1 : 0);
export const signedShare = (value) => (value === null || value === undefined ? "–" : `${value > 0 ? "+" : ""}${number(value * 100, 2)} %`);
export const signed = (value) => (Number(value) > 0 ? "+" : "") + number(value);
export const won = (value) => (value === null || value === undefined ? "–" : `₩${number(value)}`);
export const signedWon = (value) => (value === null || value === undefined ? "–" : `${Number(value) > 0 ? "+" : Number(value) < 0 ? "−" : ""}₩${number(Math.abs(value))}`);
export const tone = (value) => (Number(value) > 0 ? "good" : Number(value) < 0 ? "bad" : "");
export const moment = (value) => {
  if (!value) return "–";
  const date = typeof value === "number" ? new Date(value * 1000) : new Date(value);
  return date.toLocaleString(language() === "ko" ? "ko-KR" : "en-GB", { hour12: false });
};
export const clock = (value) => {
  if (!value) return "–";
  const date = typeof value === "number" ? new Date(value * 1000) : new Date(value);
  return date.toLocaleTimeString("en-GB", { hour12: false });
};
export const day = (value) => new Date(value * 1000).toLocaleDateString(language() === "ko" ? "ko-KR" : "en-GB");
export const short = (id) => String(id ?? "–").slice(0, 8);

export function table(heads, rows, empty = "–") {
  if (!rows.length) return h("p", { class: "dim" }, empty);
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { class: head.class }, head.text ?? head)))),
      h("tbody", {}, rows),
    ),
  );
}
export const right = (text) => ({ text, class: "n" });
export const row = (cells, attributes) =>
  h("tr", attributes, cells.map((cell) => (cell instanceof Node && cell.nodeName === "TD" ? cell : h("td", {}, cell))));
export const n = (text, kind = "") => h("td", { class: `n ${kind}` }, text);
export const chip = (text, kind = "") => h("span", { class: `chip ${kind || String(text).toLowerCase()}` }, text);
export const card = (title, ...content) =>
  h("section", { class: "card" }, title && h("h2", {}, title), ...content);
export const figure = (name, value, kind = "", note = "") =>
  h("div", { class: "figure" }, h("span", { class: "dim" }, name), h("b", { class: kind }, value), note && h("small", { class: "dim" }, note));
export const button = (text, action, more = {}, kind = "") =>
  h("button", { "data-do": action, class: kind, ...more }, text);
export const bar = (fraction, kind = "") =>
  h("svg", { class: "bar", viewBox: "0 0 100 6", preserveAspectRatio: "none" },
    h("rect", { width: 100, height: 6, class: "track" }),
    h("rect", { width: Math.max(0, Math.min(100, fraction * 100)), height: 6, class: `fill ${kind}` }));
