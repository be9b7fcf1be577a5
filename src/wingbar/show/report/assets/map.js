// Maps of features: a point an image; pointing at one, or walking to it with arrow keys, shows the picture.

/** All maps of a report under one filter. */
function showMaps({ maps: found, sheets }) {
  const flocks = found.map((flock) => ({ ...flock, sheet: sheets[flock.sheet] }));
  const maps = flocks.map(featureMap);
  const classes = [...new Set(flocks.flatMap((flock) => (flock.label ? flock.classes : [])))];
  const filter = classes.length ? filterField("Filter by class", classes, (typed) => maps.map((map) => map.keep(typed))[0]) : null;
  return [filter, colourKey(flocks[0]), make("div", { class: "maps" }, maps.map((map, place) =>
    make("div", {}, make("h3", {}, flocks[place].encoder), figure(map.frame, flocks[place].caption, mapNumbers(flocks[place])))))];
}

/** Which class has which colour, in all maps. */
function colourKey(flock) {
  if (!flock.marked.length) return null;
  const shown = flock.marked.map((label, series) => make("li", { class: `series-${series}` }, flock.classes[label]));
  const others = flock.classes.length > flock.marked.length ? make("li", { class: "others" }, "other classes") : null;
  return make("ul", { class: "colours", "aria-label": "Colours" }, shown, others);
}

function mapNumbers(flock) {
  const columns = [{ title: "image" }, { title: "class" }, { title: "x", number: true }, { title: "y", number: true }];
  return unfold("The numbers", lazily(() => sortable(`Places of ${flock.encoder}`, columns, flock.places.map(([x, y], place) =>
    [number(place + 1, String(place + 1)), words(flock.label ? flock.classes[flock.label[place]] : "–"), number(x), number(y)]))));
}

function featureMap(flock) {
  const bubble = make("div", { class: "bubble thumb", hidden: "" });
  const points = flock.places.map((_, place) => mapPoint(flock, place));
  const svg = draw("svg", { role: "group", "aria-label": `Map of features of ${flock.encoder} by ${flock.how}. Arrow keys walk from point to point.` }, points);
  const frame = make("div", { class: "map" }, svg, bubble);
  const state = { flock, points, frame, bubble, at: [], current: -1 };
  new ResizeObserver(() => placePoints(state, svg)).observe(frame);
  svg.addEventListener("pointerover", (event) => pointed(state, event.target, showPoint));
  svg.addEventListener("pointerleave", () => { bubble.hidden = true; });
  svg.addEventListener("focusin", (event) => pointed(state, event.target, showPoint));
  svg.addEventListener("focusout", () => { bubble.hidden = true; });
  svg.addEventListener("keydown", (event) => walk(state, event));
  points[0]?.setAttribute("tabindex", "0");
  return { frame, keep: (typed) => keepPoints(state, typed) };
}

function mapPoint(flock, place) {
  const label = flock.label ? flock.classes[flock.label[place]] : `image ${place + 1}`;
  const series = flock.label ? flock.marked.indexOf(flock.label[place]) : 0;
  return draw("circle", { class: series < 0 ? "others" : `series-${series}`, r: flock.places.length > 600 ? 3.2 : 4.5, tabindex: "-1", role: "img", "aria-label": label, "data-place": place });
}

/** Put the points where they belong in a frame of this width. */
function placePoints(state, svg) {
  const width = state.frame.clientWidth;
  if (!width) return;
  const height = Math.round(Math.min(520, Math.max(280, width * 0.85)));
  state.at = fitted(state.flock.places, width, height, 16);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  state.points.forEach((point, place) => {
    point.setAttribute("cx", state.at[place][0].toFixed(1));
    point.setAttribute("cy", state.at[place][1].toFixed(1));
  });
}

/** Places in pixels, with one scale for both directions: distances on a map mean the same everywhere. */
function fitted(places, width, height, margin) {
  const [[left, right], [low, high]] = [extent(places.map(([x]) => x)), extent(places.map(([, y]) => y))];
  const unit = Math.min((width - 2 * margin) / (right - left || 1), (height - 2 * margin) / (high - low || 1));
  return places.map(([x, y]) => [width / 2 + unit * (x - (left + right) / 2), height / 2 - unit * (y - (low + high) / 2)]);
}

function pointed(state, target, act) {
  if (target.dataset?.place !== undefined) act(state, Number(target.dataset.place));
}

/** The picture and the name of a point, beside it. */
function showPoint(state, place) {
  const { bubble, flock, frame } = state;
  const label = state.points[place].getAttribute("aria-label");
  bubble.replaceChildren(tile(flock.sheet, place, label), make("span", {}, label));
  bubble.hidden = false;
  const [x, y] = state.at[place];
  bubble.style.left = `${Math.max(0, Math.min(frame.clientWidth - bubble.offsetWidth, x > frame.clientWidth / 2 ? x - bubble.offsetWidth - 12 : x + 12))}px`;
  bubble.style.top = `${Math.max(0, Math.min(frame.clientHeight - bubble.offsetHeight, y - bubble.offsetHeight / 2))}px`;
}

/** To the nearest point in the arrow's direction. */
function walk(state, event) {
  const ways = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
  if (event.key === "Escape") state.bubble.hidden = true;
  if (!(event.key in ways) || event.target.dataset?.place === undefined) return;
  event.preventDefault();
  const from = Number(event.target.dataset.place);
  const [[x, y], [right, down]] = [state.at[from], ways[event.key]];
  let [best, least] = [from, Infinity];
  state.at.forEach(([otherX, otherY], place) => {
    const [ahead, aside] = [(otherX - x) * right + (otherY - y) * down, Math.abs((otherX - x) * down) + Math.abs((otherY - y) * right)];
    const cost = ahead + 2 * aside;
    if (place !== from && ahead > 0.01 && aside <= 2 * ahead && cost < least && !state.points[place].classList.contains("off")) [best, least] = [place, cost];
  });
  focusPoint(state, from, best);
}

function focusPoint(state, from, to) {
  state.points[from].setAttribute("tabindex", "-1");
  state.points[to].setAttribute("tabindex", "0");
  state.points[to].focus();
}

/** Points of other classes step back. */
function keepPoints(state, typed) {
  const shown = state.points.filter((point) => {
    const on = mentions(typed, point.getAttribute("aria-label"));
    point.classList.toggle("off", !on);
    point.setAttribute("tabindex", "-1");
    return on;
  });
  shown[0]?.setAttribute("tabindex", "0");
  return shown.length === state.points.length ? counted(shown.length, "image") : `${shown.length} of ${counted(state.points.length, "image")}`;
}
