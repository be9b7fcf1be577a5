// The map of all images: pointing shows a picture, a click asks about it, a lasso chooses many. Points have a canvas of
// their own, below that of rings and lasso, so that pointing at one does not draw a hundred thousand anew.

const ASIDE = 14; // pixels from which a point is still meant

/** The map; `ask` gets a row, `choose` the rows that are chosen. */
function atlas(about, ask, choose) {
  const points = make("canvas", { class: "points", "aria-hidden": "true" });
  const canvas = make("canvas", { class: "marks", tabindex: 0, role: "application", "aria-label": `Map of ${counted(about.names.length, "image")} by ${about.how}`, "aria-describedby": "map-keys" });
  const bubble = make("div", { class: "bubble thumb", hidden: "" });
  const news = announcer();
  const frame = make("div", { class: "map atlas" }, points, canvas, bubble, news);
  const state = { about, points, canvas, frame, bubble, news, ask, choose, ring: { query: -1, before: [], after: [] },
    map: 0, tool: "move", view: { zoom: 1, x: 0, y: 0 }, at: [], current: -1, lasso: null, shown: about.names.map(() => true), chosen: new Set() };
  new ResizeObserver(() => drawAtlas(state)).observe(frame);
  listenToPointer(state);
  canvas.addEventListener("keydown", (event) => atlasKey(state, event));
  canvas.addEventListener("blur", () => point(state, -1));
  return {
    frame, redraw: () => drawAtlas(state),
    use: (map) => { state.map = map; drawAtlas(state); },
    take: (tool) => { state.tool = tool; canvas.classList.toggle("lasso", tool === "lasso"); },
    zoom: (by) => zoomAtlas(state, by, canvas.clientWidth / 2, canvas.clientHeight / 2),
    fit: () => { state.view = { zoom: 1, x: 0, y: 0 }; drawAtlas(state); },
    keep: (shown) => { state.shown = shown; drawAtlas(state); },
    ring: (ring) => { state.ring = ring; drawMarks(state); },
    select: (rows) => select(state, rows),
  };
}

// --- drawing ---

/** A colour of the style sheet as the canvas wants it, by day and by night. */
function inkOf(canvas, name) {
  canvas.style.color = `var(--${name})`;
  const found = getComputedStyle(canvas).color;
  canvas.style.color = "";
  return found;
}

/** All of it, in a frame of this width. */
function drawAtlas(state) {
  const { points, canvas, frame, about } = state;
  const width = frame.clientWidth;
  if (!width || !about.maps.length) return;
  const height = Math.round(Math.min(640, Math.max(320, width * 0.68)));
  const dense = window.devicePixelRatio || 1;
  for (const one of [points, canvas]) {
    [one.width, one.height] = [width * dense, height * dense];
    [one.style.width, one.style.height] = [`${width}px`, `${height}px`];
    one.getContext("2d").scale(dense, dense);
  }
  state.at = placesOf(state, width, height);
  drawPoints(state, points.getContext("2d"));
  drawMarks(state);
}

/** Rings and lasso alone. */
function drawMarks(state) {
  const paper = state.canvas.getContext("2d");
  paper.clearRect(0, 0, state.canvas.width, state.canvas.height);
  if (state.at.length) drawRings(state, paper);
  if (state.lasso) drawLasso(state, paper);
}

/** Places in pixels, with one scale for both directions; zoomed about the middle, then moved. */
function placesOf({ about, map, view }, width, height) {
  const places = about.maps[map].places;
  const span = (axis) => places.reduce(([low, high], one) => [Math.min(low, one[axis]), Math.max(high, one[axis])], [Infinity, -Infinity]);
  const [[left, right], [low, high]] = [span(0), span(1)];
  const unit = view.zoom * Math.min((width - 40) / (right - left || 1), (height - 40) / (high - low || 1));
  return places.map(([x, y]) => [width / 2 + view.x + unit * (x - (left + right) / 2), height / 2 + view.y - unit * (y - (low + high) / 2)]);
}

const sizeOf = ({ about, view }) => (about.names.length > 5000 ? 2.2 : about.names.length > 1000 ? 3 : 4.5) * Math.min(2, Math.sqrt(view.zoom));

/** Grey ones first, then a path for each colour: a hundred thousand points take a blink. */
function drawPoints(state, paper) {
  const { about, at, shown, chosen, canvas } = state;
  const size = sizeOf(state);
  const kinds = new Map([["hidden", []], ["others", []], ...about.marked.map((label, series) => [label, []]), ["chosen", []]]);
  at.forEach((place, row) => kinds.get(!shown[row] ? "hidden" : chosen.has(row) ? "chosen" : kinds.has(about.labels[row]) ? about.labels[row] : "others").push(place));
  const plain = about.marked.length ? "pale" : "series-0";
  for (const [kind, places] of kinds) {
    const series = about.marked.indexOf(kind);
    paper.fillStyle = inkOf(canvas, kind === "chosen" ? "strong" : series >= 0 ? `series-${series}` : plain);
    paper.globalAlpha = kind === "hidden" ? 0.1 : kind === "others" && about.marked.length ? 0.45 : 0.85;
    paper.beginPath();
    for (const [x, y] of places) {
      paper.moveTo(x + size, y);
      paper.arc(x, y, kind === "chosen" ? size * 1.15 : size, 0, 2 * Math.PI);
    }
    paper.fill();
  }
  paper.globalAlpha = 1;
}

/** Around the image that was asked about and its neighbours, and around the one pointed at. */
function drawRings({ ring, at, canvas, current }, paper) {
  const circle = (row, radius, ink, dashes) => {
    paper.strokeStyle = inkOf(canvas, ink);
    paper.lineWidth = 2.2;
    paper.setLineDash(dashes);
    paper.beginPath();
    paper.arc(...at[row], radius, 0, 2 * Math.PI);
    paper.stroke();
  };
  ring.before.forEach((row) => circle(row, 8, "wrong", [3, 2]));
  ring.after.forEach((row) => circle(row, 8, "right", []));
  if (ring.query >= 0) [9, 13].forEach((radius) => circle(ring.query, radius, "strong", []));
  if (current >= 0) circle(current, 10, "link", []);
  paper.setLineDash([]);
}

function drawLasso({ lasso, canvas }, paper) {
  paper.strokeStyle = paper.fillStyle = inkOf(canvas, "link");
  paper.lineWidth = 2;
  paper.beginPath();
  lasso.forEach(([x, y]) => paper.lineTo(x, y));
  paper.closePath();
  paper.stroke();
  paper.globalAlpha = 0.12;
  paper.fill();
  paper.globalAlpha = 1;
}

// --- pointing ---

/** The row whose point is meant; −1: none. */
function nearestPoint({ at, shown }, x, y) {
  let [best, least] = [-1, ASIDE ** 2];
  at.forEach(([left, top], row) => {
    const far = (left - x) ** 2 + (top - y) ** 2;
    if (far < least && shown[row]) [best, least] = [row, far];
  });
  return best;
}

/** Show the picture of a point beside it. */
function point(state, row, aloud = false) {
  const { bubble, frame, about, at } = state;
  if (state.current === row) return;
  state.current = row;
  bubble.hidden = row < 0;
  drawMarks(state);
  if (row < 0) return;
  const words = titleOf(about, row);
  bubble.replaceChildren(make("img", { src: pictureOf(about, row), alt: "" }), make("span", {}, words));
  const [x, y] = at[row];
  bubble.style.left = `${Math.max(0, Math.min(frame.clientWidth - bubble.offsetWidth, x > frame.clientWidth / 2 ? x - bubble.offsetWidth - 14 : x + 14))}px`;
  bubble.style.top = `${Math.max(0, Math.min(frame.clientHeight - 190, y - 80))}px`;
  if (aloud) state.news.textContent = `${words}, ${about.names[row]}${state.chosen.has(row) ? ", chosen" : ""}`;
}

function listenToPointer(state) {
  const { canvas } = state;
  let held = null; // where the pointer went down, and where the map was then
  const here = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => {
    held = { from: here(event), view: { ...state.view }, moved: false };
    if (state.tool === "lasso") state.lasso = [here(event)];
    if (state.tool === "lasso" || event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = here(event);
    if (!held) { point(state, nearestPoint(state, x, y)); return; }
    held.moved ||= Math.hypot(x - held.from[0], y - held.from[1]) > 4;
    if (state.lasso) { state.lasso.push([x, y]); drawMarks(state); }
    else if (held.moved && event.pointerType === "mouse") {
      state.view = { ...held.view, x: held.view.x + x - held.from[0], y: held.view.y + y - held.from[1] };
      point(state, -1);
      drawAtlas(state);
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (state.lasso) closeLasso(state, event.shiftKey);
    else if (held && !held.moved) {
      const row = nearestPoint(state, ...here(event));
      point(state, row);
      if (row >= 0) state.ask(row);
    }
    held = null;
  });
  canvas.addEventListener("pointercancel", () => { held = state.lasso = null; drawMarks(state); });
  canvas.addEventListener("pointerleave", () => { if (!held) point(state, -1); });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // the page scrolls; Ctrl, or two fingers, zoom
    event.preventDefault();
    zoomAtlas(state, Math.exp(-event.deltaY / 200), ...here(event));
  }, { passive: false });
}

/** Larger or smaller, what is at (x, y) stays there. */
function zoomAtlas(state, by, x, y) {
  const { view, canvas } = state;
  const zoom = Math.min(60, Math.max(1, view.zoom * by));
  const [right, down] = [x - canvas.clientWidth / 2, y - canvas.clientHeight / 2];
  const ratio = zoom / view.zoom;
  state.view = zoom === 1 ? { zoom, x: 0, y: 0 } : { zoom, x: right + ratio * (view.x - right), y: down + ratio * (view.y - down) };
  drawAtlas(state);
}

// --- choosing ---

function closeLasso(state, more) {
  const { lasso, at, shown } = state;
  state.lasso = null;
  const inside = at.flatMap((place, row) => (shown[row] && encloses(lasso, place) ? [row] : []));
  select(state, more ? [...state.chosen, ...inside] : inside);
}

/** Whether a polygon encloses a place: a ray from it crosses the border an odd number of times. */
function encloses(polygon, [x, y]) {
  return polygon.reduce((inside, [x1, y1], corner) => {
    const [x2, y2] = polygon[(corner + 1) % polygon.length];
    return (y1 > y) !== (y2 > y) && x < x1 + ((x2 - x1) * (y - y1)) / (y2 - y1) ? !inside : inside;
  }, false);
}

function select(state, rows) {
  state.chosen = new Set(rows);
  drawAtlas(state);
  state.choose([...state.chosen].sort((one, other) => one - other));
}

// --- keys ---

function atlasKey(state, event) {
  const ways = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
  const acts = {
    Enter: () => { if (state.current >= 0) state.ask(state.current); },
    " ": () => toggle(state, state.current),
    "+": () => zoomAtlas(state, 1.5, ...(state.at[state.current] ?? [0, 0])),
    "-": () => zoomAtlas(state, 1 / 1.5, ...(state.at[state.current] ?? [0, 0])),
    Escape: () => point(state, -1),
    ...Object.fromEntries(Object.entries(ways).map(([key, way]) => [key, () => point(state, nextPoint(state, way), true)])),
  };
  if (!(event.key in acts) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  acts[event.key]();
}

/** The nearest point in a direction, as in reports; the first one shown at the beginning. */
function nextPoint({ at, shown, current, ring }, [right, down]) {
  if (current < 0) return ring.query >= 0 && shown[ring.query] ? ring.query : shown.indexOf(true);
  const [x, y] = at[current];
  let [best, least] = [current, Infinity];
  at.forEach(([left, top], row) => {
    const [ahead, aside] = [(left - x) * right + (top - y) * down, Math.abs((left - x) * down) + Math.abs((top - y) * right)];
    if (row !== current && shown[row] && ahead > 0.01 && aside <= 2 * ahead && ahead + 2 * aside < least) [best, least] = [row, ahead + 2 * aside];
  });
  return best;
}

function toggle(state, row) {
  if (row < 0) return;
  const rows = new Set(state.chosen);
  if (!rows.delete(row)) rows.add(row);
  select(state, rows);
  state.news.textContent = `${titleOf(state.about, row)} ${rows.has(row) ? "chosen" : "no longer chosen"}`;
}
