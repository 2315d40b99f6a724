// Names of instruments: requested for the symbols that are drawn, and kept.
import { call } from "./actions.js";
import { h } from "./dom.js";
import { language } from "./labels.js";
import { account } from "./state.js";

const DELAY_MS = 100; // a page draws many symbols at once
const MOST = 200; // of one request
const known = new Map();
const wanted = new Set();
let timer = null;

async function request() {
  timer = null;
  const symbols = [...wanted].slice(0, MOST);
  wanted.clear();
  try {
    const { names } = await call(`/api/names?symbols=${symbols.map(encodeURIComponent).join(",")}`);
    symbols.forEach((symbol) => known.set(symbol, names[symbol] ?? ["", ""]));
  } catch {
    // The next drawing requests them again.
  }
}

// Return the name, or nothing while it is not known; the page is drawn again within a second.
export function nameOf(symbol) {
  const found = known.get(symbol);
  if (found) return (language() === "ko" ? found[0] || found[1] : found[1] || found[0]);
  wanted.add(symbol);
  timer ??= setTimeout(request, DELAY_MS);
  return "";
}

// Return name and symbol, with a link to the market; `given` is a name to use until the one of the language is known.
export const titled = (symbol, given = "") => {
  const name = nameOf(symbol) || given;
  // The price chart is of what this home recorded.
  return h(account ? "span" : "a", { class: "symbol", href: account ? null : `#/market/${encodeURIComponent(symbol)}` }, name ? [h("b", {}, name), h("small", { class: "dim" }, ` ${symbol}`)] : symbol);
};
