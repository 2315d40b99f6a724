// Search by section, the drawer of a phone, and buttons that copy a block of code.
const find = document.getElementById("find");
const found = document.getElementById("found");
const menu = document.getElementById("menu");

const MOST = 12;
const plain = (text) => text.toLowerCase().replace(/\s+/g, " ").trim();
const count = (text, part) => text.split(part).length - 1;

// A section fits when it has every word, somewhere in its page's title, its heading or its text. The phrase as it was
// typed counts most, in a heading before the text, and in the same letters before others: UNKNOWN is a state.
// Decisions say why and the reference names names, so that the pages that say how come first; pages in the language of the query or of the page that is
// read come before their translations.
function score({ title, heading, at, text }, query) {
  const [phrase, head, body] = [plain(query), plain(heading), plain(text)];
  const words = phrase.split(" ");
  if (!words.every((word) => `${plain(title)} ${head} ${body}`.includes(word))) return 0;
  const korean = document.documentElement.lang === "ko" || /[가-힣]/.test(query);
  return Math.max(1, 1 - (/^(decisions|reference)\//.test(at) ? 10 : 0) + (at.includes(".ko.html") === korean ? 50 : 0)
    + (head === phrase ? 60 : 0) + (head.includes(phrase) ? 40 : 0) + (heading.includes(query.trim()) ? 30 : 0)
    + (plain(title).includes(phrase) ? 8 : 0) + 3 * words.filter((word) => head.includes(word)).length
    + 2 * Math.min(5, count(body, phrase)) + Math.min(5, count(text, query.trim())));
}

function results(query) {
  if (!query.trim()) return [];
  return SECTIONS.map((section) => ({ ...section, score: score(section, query) }))
    .filter((section) => section.score)
    .sort((a, b) => b.score - a.score).slice(0, MOST);
}

// The text around the phrase, or around its first word.
function around(text, query) {
  const body = text.replace(/\s+/g, " ");
  const phrase = plain(query);
  const at = [phrase, phrase.split(" ")[0]].map((part) => body.toLowerCase().indexOf(part)).find((place) => place >= 0) ?? 0;
  return `${at > 30 ? "… " : ""}${body.slice(Math.max(0, at - 30), at + 70)}`;
}

const node = (name, fields, ...children) => {
  const made = Object.assign(document.createElement(name), fields);
  made.append(...children);
  return made;
};

find.addEventListener("input", () => {
  const lines = results(find.value).map((section) =>
    node("li", {}, node("a", { href: UP + section.at }, node("b", { textContent: section.heading }), node("span", { textContent: ` ${section.title}` }), node("small", { textContent: around(section.text, find.value) }))));
  found.replaceChildren(...(lines.length || !find.value.trim() ? lines : [node("li", { textContent: "Nothing found." })]));
});
find.addEventListener("keydown", (event) => {
  if (event.key === "Enter") found.querySelector("a")?.click();
  if (event.key === "Escape") { find.value = ""; found.replaceChildren(); }
});
found.addEventListener("click", () => { find.value = ""; found.replaceChildren(); });

const open = (is) => { document.body.classList.toggle("open", is); menu.setAttribute("aria-expanded", String(is)); };
menu.addEventListener("click", () => open(!document.body.classList.contains("open")));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== find) { event.preventDefault(); find.focus(); }
  if (event.key === "Escape" && document.body.classList.contains("open")) { open(false); menu.focus(); }
});

for (const block of document.querySelectorAll("main pre")) {
  block.tabIndex = 0; // it scrolls
  if (block.matches(".signature")) continue;
  const button = node("button", { type: "button", className: "copy", textContent: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(block.querySelector("code").textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Press Ctrl+C";
      getSelection().selectAllChildren(block.querySelector("code"));
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  const box = node("div", { className: "code" });
  block.replaceWith(box);
  box.append(block, button);
}
for (const table of document.querySelectorAll("main table")) table.tabIndex = 0;
