// Search: pages that have every word, those with a word in the title first.
const find = document.getElementById("find");
const found = document.getElementById("found");

function results(text) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return [];
  const inTitle = (page) => wanted.filter((word) => page.title.toLowerCase().includes(word)).length;
  return PAGES.filter((page) => wanted.every((word) => page.words.includes(word)))
    .sort((a, b) => inTitle(b) - inTitle(a)).slice(0, 10)
    .map((page) => ({ ...page, near: around(page.words, wanted[0]) }));
}

function around(words, word) {
  const at = words.indexOf(word);
  return words.slice(Math.max(0, at - 30), at + 50);
}

find.addEventListener("input", () => {
  found.replaceChildren(...results(find.value).map((page) => {
    const link = Object.assign(document.createElement("a"), { href: UP + page.at, textContent: page.title });
    link.append(Object.assign(document.createElement("small"), { textContent: `… ${page.near} …` }));
    const line = document.createElement("li");
    line.append(link);
    return line;
  }));
});

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== find) { event.preventDefault(); find.focus(); }
});
