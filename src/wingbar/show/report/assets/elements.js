"use strict";

// Elements and words. Text is always set as text, never read as HTML: names of files and classes may hold anything.

/** An HTML element: make("p", {class: "note"}, "words", child). Attributes named on… are listeners; null is left out. */
function make(tag, attributes, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** An SVG element, likewise. */
function draw(tag, attributes, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Names that are unique in the page, for labels that point to something. */
const unique = ((count) => (word) => `${word}-${(count += 1)}`)(0);

/** A number with as many digits as people need. */
function short(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e").replace("-", "−").replace("e-", "e−");
  const digits = Math.max(0, 3 - Math.floor(Math.log10(size)));
  return Number(value.toFixed(digits)).toString().replace("-", "−");
}

/** A share in percent. */
const percent = (share, digits = 0) => (share === null ? "–" : `${(100 * share).toFixed(digits)} %`);

/** Points gained or lost, with their sign. */
const signed = (share) => `${share < 0 ? "−" : "+"}${Math.abs(100 * share).toFixed(1)}`;

/** How small a p-value is. */
const likely = (p) => (p === null ? "–" : p < 0.001 ? "< 0.001" : p.toPrecision(2));

/** Many things in one word. */
const counted = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

/** A figure: its content, a caption, and the numbers behind it for those who want to read them. */
function figure(content, caption, numbers = null) {
  return make("figure", {}, content, make("figcaption", {}, caption), numbers);
}

/** Something to unfold. */
function unfold(words, ...content) {
  return make("details", {}, make("summary", {}, words), ...content);
}

/** A place where news are read out by screen readers, and seen by nobody. */
function announcer() {
  return make("p", { class: "unseen", "aria-live": "polite" });
}

/** A search field over names, and how many of `total` are left: `choose` gets the words that were typed. */
function filterField(label, names, choose) {
  const list = unique("names");
  const field = unique("filter");
  const left = make("output", { for: field });
  const input = make("input", {
    type: "search", id: field, list, autocomplete: "off", placeholder: "all",
    oninput: () => { left.textContent = choose(input.value.trim().toLowerCase()); },
  });
  const options = [...new Set(names)].sort().map((name) => make("option", { value: name }));
  left.textContent = choose("");
  return make("p", { class: "filter" }, make("label", { for: field }, label), input, left, make("datalist", { id: list }, options));
}

/** Whether any of the names holds the words. */
const mentions = (words, ...names) => !words || names.some((name) => name.toLowerCase().includes(words));
