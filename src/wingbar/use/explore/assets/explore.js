// The page: everything that is on it, and what one part tells the others.

const SHOWN = 60; // chosen images that are drawn at once
const at = (id) => document.getElementById(id);

jsonOf("/about").then(furnishPage).catch((error) => trouble(error.message));

function trouble(sentence) {
  at("found").setAttribute("aria-busy", "false");
  at("alert").textContent = sentence;
  at("alert").hidden = !sentence;
}

function furnishPage(about) {
  document.title = `${about.title} · wingbar explore`;
  at("title").textContent = about.title;
  at("facts").textContent = [counted(about.names.length, "image"), about.classes.length ? counted(about.classes.length, "class", "classes") : null].filter(Boolean).join(", ");
  at("foot").append(...about.notes.map((sentence) => make("p", {}, sentence)));
  const state = { about, asked: null, classes: [], shown: about.names.map(() => true) };
  const ask = (image) => { state.asked = image; refresh(state, parts); };
  const parts = { latest: patience(trouble), asking: askingCard(about, ask), ask, twins: about.criteria.length ? twinDesk(about, trouble) : null, atlas: null };
  at("ask").append(...parts.asking.card);
  if (parts.twins) at("twins").append(...parts.twins.desk);
  if (about.maps.length) parts.atlas = furnishMap(about, state, ask);
  else at("map").append(make("p", { class: "note" }, "A map needs three images or more."));
  if (about.classes.length) at("filter").append(filterField("Class", about.classes, (typed) => keepClasses(state, parts, typed)));
  furnishTheme(parts);
  const row = Number(location.hash.slice(1));
  ask(about.names[row] === undefined ? 0 : row);
}

// --- asking ---

/** Ask the server about the image of the moment, among the classes of the moment. */
function refresh(state, parts) {
  const { asked, about, classes } = state;
  if (asked === null) return;
  if (asked instanceof File && asked.size > about.bytes) {
    trouble(`${asked.name} has ${(asked.size / 1e6).toFixed(0)} MB, which are too many; send at most ${about.bytes / 1e6}.`);
    return;
  }
  at("found").setAttribute("aria-busy", "true");
  const among = `?classes=${classes}`;
  const question = () => (asked instanceof File ? jsonOf(`/image${among}`, { method: "POST", body: asked }) : jsonOf(`/row/${asked}${among}`));
  parts.latest(question, (answer) => showAnswer(state, parts, asked, answer));
}

function showAnswer({ about }, { asking, twins, atlas: map, ask }, asked, answer) {
  trouble("");
  asking.show(answer.seen, asked instanceof File ? [asked.name] : [...new Set([titleOf(about, asked), about.names[asked]])]);
  at("found").replaceChildren(...showFound(about, answer, ask));
  history.replaceState(null, "", answer.row >= 0 ? `#${answer.row}` : location.pathname);
  at("twins").hidden = !twins;
  twins?.show(answer);
  const rows = answer.encoders.map((encoder) => encoder.near.map(([row]) => row));
  map?.ring({ query: answer.row, before: rows.length > 1 ? rows[0] : [], after: rows.at(-1) });
}

/** Other classes step back, on the map and among neighbours; how many images are left, in words. */
function keepClasses(state, parts, typed) {
  const { about } = state;
  const kept = about.classes.map((name) => mentions(typed, name));
  state.classes = typed ? kept.flatMap((on, label) => (on ? [label] : [])) : [];
  if (typed && !state.classes.length) state.classes = [about.classes.length]; // nobody's: nothing is near
  state.shown = about.labels.map((label) => !typed || (label >= 0 && kept[label]));
  parts.atlas?.keep(state.shown);
  clearTimeout(parts.pause); // until nobody types any more
  parts.pause = setTimeout(() => refresh(state, parts), 150);
  const left = state.shown.filter(Boolean).length;
  return left === about.names.length ? "" : `${left.toLocaleString("en")} of ${counted(about.names.length, "image")}`;
}

// --- the map ---

function furnishMap(about, state, ask) {
  const panel = chosenPanel(about, ask);
  const map = atlas(about, ask, panel.show);
  panel.clear = () => map.select([]);
  const everything = () => map.select(state.shown.flatMap((on, row) => (on ? [row] : [])));
  at("map").append(
    make("h2", {}, "Map of all images"),
    make("div", { class: "tools" },
      about.maps.length > 1 ? choice("Map", about.maps.map((one) => one.title), (place) => map.use(place)) : null,
      choice("Tool", ["move", "lasso"], (place) => map.take(["move", "lasso"][place])),
      make("span", { class: "buttons" },
        make("button", { type: "button", class: "quiet", "aria-label": "Larger", onclick: () => map.zoom(1.5) }, "+"),
        make("button", { type: "button", class: "quiet", "aria-label": "Smaller", onclick: () => map.zoom(1 / 1.5) }, "−"),
        make("button", { type: "button", class: "quiet", onclick: map.fit }, "Fit"),
        make("button", { type: "button", class: "quiet", id: "everything", onclick: everything }, "Choose all shown"))),
    colourList(about),
    make("div", { class: "ground" }, map.frame, panel.panel),
    make("p", { class: "facts", id: "map-keys" }, "Arrow keys walk from point to point, Enter asks about one, Space chooses it, + and − zoom. Rings are neighbours" + (about.maps.length > 1 ? ": solid after training, dashed before." : ".")));
  return map;
}

/** One of a few, as radio buttons. */
function choice(title, words, use) {
  const name = unique("choice");
  return make("fieldset", { class: "choice" }, make("legend", { class: "unseen" }, title), words.map((word, place) => {
    const id = unique("one");
    return [make("input", { type: "radio", name, id, value: place, checked: place === 0 ? "" : null, class: "unseen", onchange: () => use(place) }), make("label", { for: id }, word)];
  }).flat());
}

function colourList(about) {
  if (!about.marked.length) return null;
  const shown = about.marked.map((label, series) => make("li", { class: `series-${series}` }, about.classes[label]));
  return make("ul", { class: "colours", "aria-label": "Colours" }, shown, about.classes.length > shown.length ? make("li", { class: "others" }, "other classes") : null);
}

/** What was chosen: small pictures, and both ways to take it away. */
function chosenPanel(about, ask) {
  const head = make("h3", { id: "count", "aria-live": "polite" });
  const list = make("ul", { class: "chosen" });
  const rest = make("p", { class: "facts" });
  let rows = [];
  const take = (path, name) => () => answerOf(path, { method: "POST", body: JSON.stringify(rows) }).then((reply) => reply.blob()).then((blob) => save(blob, name)).catch((error) => trouble(error.message));
  const buttons = make("p", { class: "buttons" },
    make("button", { type: "button", class: "quiet", id: "table", onclick: take("/table", "chosen.csv") }, "CSV of paths"),
    make("button", { type: "button", class: "quiet", id: "sheet", onclick: take("/sheet", "chosen.png") }, "Contact sheet"));
  const clear = make("button", { type: "button", class: "quiet", id: "clear", onclick: () => it.clear() }, "Clear");
  const it = { panel: make("div", { class: "card panel" }, make("div", { class: "heading" }, head, clear), buttons, list, rest), clear: () => {}, show: (chosen) => {
    rows = chosen;
    head.textContent = chosen.length ? `${counted(chosen.length, "image")} chosen` : "Nothing chosen";
    buttons.hidden = clear.hidden = !chosen.length;
    list.replaceChildren(...chosen.slice(0, SHOWN).map((row) => make("li", {}, make("button", { type: "button", title: `${titleOf(about, row)}, ${about.names[row]}`, "aria-label": `${titleOf(about, row)}: ask about it`, onclick: () => ask(row) }, make("img", { src: pictureOf(about, row), alt: "", loading: "lazy" })))));
    rest.textContent = !chosen.length ? "Draw a lasso around points, or choose all that are shown." : chosen.length > SHOWN ? `and ${counted(chosen.length - SHOWN, "more", "more")}` : "";
  } };
  it.show([]);
  return it;
}

function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

function furnishTheme({ atlas: map }) {
  const night = window.matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme ?? (night.matches ? "dark" : "light")) === "dark";
  const told = () => { at("theme").textContent = dark() ? "Light" : "Dark"; map?.redraw(); };
  at("theme").addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; told(); });
  night.addEventListener("change", told);
  told();
}
