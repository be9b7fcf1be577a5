// One kind of chart: axes, curves with bands, bars, rules; values on hover and by arrow keys, curves on and off by legend.

const MARGIN = { left: 52, right: 14, top: 24, bottom: 40 };
const SHAPES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 2"]; // of lines, so that colour is not all that differs

/** Round numbers between two ends, about `count` of them. */
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(high / step + 1e-9) - first + 1) }, (_, place) => Number(((first + place) * step).toPrecision(12)));
}

/** Powers of ten between two ends, with 2 and 5 where there are few. */
function logTicks(low, high) {
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low)) + 1 }, (_, place) => 10 ** (Math.floor(Math.log10(low)) + place));
  const factors = Math.log10(high / low) < 3 ? [1, 2, 5] : [1];
  return powers.flatMap((power) => factors.map((factor) => Number((factor * power).toPrecision(6)))).filter((value) => value >= low && value <= high);
}

/** From numbers to pixels. */
function scale([low, high], [start, end], log = false) {
  const bend = log ? Math.log10 : (value) => value;
  const span = bend(high) - bend(low) || 1;
  return (value) => start + ((bend(value) - bend(low)) / span) * (end - start);
}

/** Lowest and highest of the finite ones, a little apart. */
function extent(values, roomy = 0) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  const [low, high] = [Math.min(...known), Math.max(...known)];
  if (!known.length) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * roomy;
  return [low - room, high + room];
}

/**
 * A chart of {label, xLabel, yLabel, logX, xNames, curves, bars, ticks, rules, zero}: xNames stand at 0, 1, 2, …;
 * curves are {name, x, y, low, high, kind, fill}, bars {edges, counts}, ticks [{series, values}], rules [{x, label}].
 */
function chart(spec) {
  const hidden = new Set();
  const plot = make("div", { class: "plot", tabindex: "0", role: "group", "aria-label": `${spec.label}. Left and right arrow keys read values.` });
  const bubble = make("div", { class: "bubble", hidden: "" });
  const news = announcer();
  const frame = make("div", { class: "chart" }, spec.curves.length ? legend(spec, hidden, () => render()) : null, plot, news);
  let drawn = null;

  function render() {
    const width = plot.clientWidth;
    if (!width) return;
    drawn = drawChart(spec, hidden, width);
    plot.replaceChildren(drawn.svg, bubble);
    bubble.hidden = true;
  }
  function point(place, aloud) {
    if (!drawn?.stops.length) return;
    drawn.place = Math.max(0, Math.min(drawn.stops.length - 1, place));
    const lines = pointAt(drawn, drawn.stops[drawn.place]);
    fillBubble(bubble, spec, drawn, drawn.stops[drawn.place], lines);
    if (aloud) news.textContent = [`${spec.xLabel} ${named(spec, drawn.stops[drawn.place])}`, ...lines.map((line) => `${line.name} ${short(line.y)}`)].join(", ");
  }
  function leave() {
    bubble.hidden = true;
    drawn?.cursor.replaceChildren();
  }

  plot.addEventListener("pointermove", (event) => {
    const x = event.clientX - plot.getBoundingClientRect().left;
    if (drawn) point(nearest(drawn.stops.map(drawn.toX), x), false);
  });
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("blur", leave);
  plot.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") leave();
    if (!(event.key in moves) || !drawn) return;
    event.preventDefault();
    const start = drawn.place ?? (moves[event.key] > 0 ? -1 : drawn.stops.length);
    point(start + moves[event.key], true);
  });
  new ResizeObserver(render).observe(plot);
  return frame;
}

/** Where in sorted or unsorted numbers the nearest one is. */
function nearest(numbers, wanted) {
  let best = 0;
  numbers.forEach((value, place) => { if (Math.abs(value - wanted) < Math.abs(numbers[best] - wanted)) best = place; });
  return best;
}

/** A button for every curve: pressed while it is shown. */
function legend(spec, hidden, changed) {
  const entries = spec.curves.map((curve) =>
    make("li", {}, make("button", {
      type: "button", class: `key series-${curve.series} kind-${curve.kind}`, "aria-pressed": "true",
      onclick: (event) => {
        const shown = hidden.delete(curve.name) || (hidden.add(curve.name), false);
        event.currentTarget.setAttribute("aria-pressed", String(shown));
        changed();
      },
    }, draw("svg", { width: 26, height: 10, "aria-hidden": "true" }, sample(curve)), curve.name)));
  return make("ul", { class: "legend", "aria-label": "Curves" }, entries);
}

/** A short piece of the curve's line. */
function sample(curve) {
  if (curve.kind === "paper") return draw("path", { class: "diamond", d: "M13 0l5 5l-5 5l-5 -5z" });
  return draw("line", { class: "curve", x1: 1, x2: 25, y1: 5, y2: 5, "stroke-dasharray": dashes(curve) });
}

const dashes = (curve) => (curve.kind === "chance" ? "1 4" : SHAPES[curve.series % SHAPES.length] || null);

// --- drawing ---------------------------------------------------------------------------------------------------------

function drawChart(spec, hidden, width) {
  const height = Math.round(Math.min(300, Math.max(200, width * 0.55)));
  const curves = spec.curves.filter((curve) => !hidden.has(curve.name));
  const known = curves.length ? curves : spec.curves;
  const rangeX = extent([...known.flatMap((curve) => curve.x), ...(spec.bars?.edges ?? []), ...(spec.rules ?? []).map((rule) => rule.x)]
    .filter((x) => !spec.logX || x > 0));
  const rangeY = extent([...known.flatMap((curve) => [...curve.y, ...(curve.low ?? []), ...(curve.high ?? [])]), ...(spec.bars?.counts ?? [])], 0.06);
  if (spec.zero) rangeY[0] = 0;
  const toX = scale(rangeX, [MARGIN.left, width - MARGIN.right], spec.logX);
  const toY = scale(rangeY, [height - MARGIN.bottom, MARGIN.top]);
  const cursor = draw("g", { class: "cursor" });
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.label },
    axes(spec, { width, height, rangeX, rangeY, toX, toY }),
    bars(spec.bars, toX, toY), tickMarks(spec.ticks, toX, height),
    curves.map((curve) => drawCurve(curve, toX, toY, spec.logX, spec.zero)),
    rules(spec.rules, toX, width, height), cursor);
  const middles = spec.bars ? spec.bars.counts.map((_, place) => (spec.bars.edges[place] + spec.bars.edges[place + 1]) / 2) : [];
  const stops = [...new Set([...curves.flatMap((curve) => curve.x), ...middles])].filter((x) => !spec.logX || x > 0).sort((a, b) => a - b);
  return { svg, toX, toY, cursor, stops, curves, bars: spec.bars, middles, width, height };
}

function axes(spec, { width, height, rangeX, rangeY, toX, toY }) {
  const bottom = height - MARGIN.bottom;
  const across = spec.xNames?.length ? spec.xNames.map((_, place) => place)
    : spec.logX ? logTicks(...rangeX) : ticks(...rangeX, Math.max(3, Math.floor(width / 90)));
  const up = ticks(...rangeY, 5);
  return draw("g", { class: "axes", "aria-hidden": "true" },
    up.map((value) => draw("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: toY(value), y2: toY(value) })),
    up.map((value) => draw("text", { x: MARGIN.left - 8, y: toY(value) + 4, "text-anchor": "end" }, short(value))),
    across.map((value) => draw("text", { x: toX(value), y: bottom + 17, "text-anchor": "middle" }, named(spec, value))),
    draw("line", { class: "base", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }),
    draw("text", { class: "axis", x: width - MARGIN.right, y: height - 6, "text-anchor": "end" }, spec.xLabel),
    draw("text", { class: "axis", x: 2, y: 12 }, spec.yLabel));
}

function drawCurve(curve, toX, toY, logX, filled) {
  const places = curve.x.map((x, place) => [x, curve.y[place], place]).filter(([x, y]) => y !== null && (!logX || x > 0));
  const path = (points) => points.map(([x, y], place) => `${place ? "L" : "M"}${toX(x).toFixed(1)} ${toY(y).toFixed(1)}`).join("");
  const group = draw("g", { class: `series-${curve.series} kind-${curve.kind}`, "data-curve": curve.name });
  if (curve.low && curve.high) {
    const band = [...places.map(([x, , place]) => [x, curve.high[place]]), ...places.map(([x, , place]) => [x, curve.low[place]]).reverse()];
    group.append(draw("path", { class: "band", d: `${path(band)}Z` }));
  }
  if (filled && places.length) {
    group.append(draw("path", { class: "band", d: `${path([[places[0][0], 0], ...places, [places.at(-1)[0], 0]])}Z` }));
  }
  if (curve.kind === "paper") group.append(...places.map(([x, y]) => draw("path", { class: "diamond", d: `M${toX(x)} ${toY(y) - 6}l6 6l-6 6l-6 -6z` })));
  else group.append(draw("path", { class: "curve", d: path(places), "stroke-dasharray": dashes(curve) }));
  if (places.length === 1 && curve.kind !== "paper") group.append(draw("circle", { class: "dot", cx: toX(places[0][0]), cy: toY(places[0][1]), r: 3 }));
  return group;
}

function bars(found, toX, toY) {
  if (!found) return [];
  return found.counts.map((count, place) => {
    const [left, right] = [toX(found.edges[place]), toX(found.edges[place + 1])];
    return draw("rect", { class: "column", x: left + 0.5, width: Math.max(0.5, right - left - 1), y: toY(count), height: Math.max(0, toY(0) - toY(count)) });
  });
}

/** Every image as a short line below the densities, a row for each class. */
function tickMarks(rows, toX, height) {
  return (rows ?? []).map((row, place) => draw("path", {
    class: `rug series-${row.series}`,
    d: row.values.map((value) => `M${toX(value).toFixed(1)} ${height - MARGIN.bottom - 3 - 7 * place}v-5`).join(""),
  }));
}

function rules(found, toX, width, height) {
  return (found ?? []).map((rule) => draw("g", { class: "rule" },
    draw("line", { x1: toX(rule.x), x2: toX(rule.x), y1: MARGIN.top, y2: height - MARGIN.bottom }),
    ruleLabel(rule, toX(rule.x), width)));
}

/** Beside its line, where there is room. */
function ruleLabel(rule, x, width) {
  const inside = x < width - 90;
  return draw("text", { x: inside ? x + 6 : x - 6, y: MARGIN.top + 10, "text-anchor": inside ? "start" : "end" }, rule.label);
}

// --- reading ---------------------------------------------------------------------------------------------------------

/** Mark the place x, and say what every curve has there. */
function pointAt(drawn, x) {
  const near = (drawn.width - MARGIN.left - MARGIN.right) / 40;
  const lines = drawn.curves.map((curve) => {
    const place = nearest(curve.x.map(drawn.toX), drawn.toX(x));
    return { name: curve.name, series: curve.series, kind: curve.kind, x: curve.x[place], y: curve.y[place] };
  }).filter((line) => line.y !== null && line.y !== undefined && Math.abs(drawn.toX(line.x) - drawn.toX(x)) <= near);
  if (drawn.bars) {
    const place = nearest(drawn.middles, x);
    lines.push({ name: "dimensions", series: 0, kind: "ours", x, y: drawn.bars.counts[place] });
  }
  drawn.cursor.replaceChildren(
    draw("line", { x1: drawn.toX(x), x2: drawn.toX(x), y1: MARGIN.top, y2: drawn.height - MARGIN.bottom }),
    ...lines.map((line) => draw("circle", { class: `series-${line.series}`, cx: drawn.toX(line.x), cy: drawn.toY(line.y), r: 4 })));
  return lines;
}

/** A place on the x-axis in words. */
const named = (spec, x) => spec.xNames?.[x] ?? short(x);

function fillBubble(bubble, spec, drawn, x, lines) {
  bubble.replaceChildren(
    make("p", {}, `${spec.xLabel} ${named(spec, x)}`),
    make("ul", {}, lines.map((line) => make("li", { class: `series-${line.series}` }, make("b", {}, short(line.y)), ` ${line.name}`))));
  bubble.hidden = false;
  const at = drawn.toX(x);
  const left = at > drawn.width / 2 ? at - bubble.offsetWidth - 12 : at + 12;
  bubble.style.left = `${Math.max(0, Math.min(drawn.width - bubble.offsetWidth, left))}px`;
}

/** The numbers of a chart, as a table. */
function chartNumbers(caption, { xLabel, xNames, curves }) {
  const columns = [{ title: "curve" }, { title: xLabel, number: true }, { title: "value", number: true }, { title: "band", number: true }];
  const rows = curves.flatMap((curve) => curve.x.map((x, place) => [
    words(curve.name), number(x, named({ xNames }, x)), number(curve.y[place]),
    curve.low ? number(curve.low[place], `${short(curve.low[place])} to ${short(curve.high[place])}`) : number(null),
  ]));
  return unfold("The numbers", lazily(() => sortable(caption, columns, rows)));
}

/** Content that is made when it is first unfolded: thousands of numbers need not be drawn before anybody asks. */
function lazily(build) {
  const place = make("div", {});
  place.build = () => {
    if (!place.firstChild) place.append(build());
  };
  place.classList.add("lazy");
  return place;
}
