// Tables that can be sorted by any column, with a mouse, a finger or a keyboard.

/**
 * A table. Columns are {title, number}; a cell is {key, content}, sorted by key and showing content.
 * The first cell of a row is its heading.
 */
function sortable(caption, columns, rows) {
  const body = make("tbody", {}, rows.map((cells) => tableRow(cells, columns)));
  const heads = columns.map((column, place) =>
    make("th", { scope: "col", "aria-sort": "none", class: column.number ? "number" : null },
      make("button", { type: "button", onclick: () => sortBy(body, rows, heads, place) }, column.title)));
  const table = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, heads)), body);
  return scrollable(table, caption);
}

function tableRow(cells, columns) {
  const row = make("tr", {}, cells.map((cell, place) =>
    make(place ? "td" : "th", { scope: place ? null : "row", class: columns[place].number ? "number" : null }, cell.content)));
  cells.row = row;
  return row;
}

/** Ascending, descending, and back; what has no value stays at the end. */
function sortBy(body, rows, heads, place) {
  const next = heads[place].getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  heads.forEach((head, other) => head.setAttribute("aria-sort", other === place ? next : "none"));
  const sign = next === "ascending" ? 1 : -1;
  const sorted = [...rows].sort((a, b) => {
    const [first, second] = [a[place].key, b[place].key];
    if (first === null || second === null) return (first === null) - (second === null);
    return sign * (typeof first === "number" ? first - second : first.localeCompare(second, "en", { numeric: true }));
  });
  body.append(...sorted.map((cells) => cells.row));
}

/** A cell of words, and one of a number. */
const words = (text) => ({ key: text, content: text });
const number = (value, text = short(value)) => ({ key: value ?? null, content: text });

/** A frame in which wide things scroll, so that the page never does; it takes the focus only where there is need. */
function scrollable(content, label) {
  const frame = make("div", { class: "scroll", role: "region", "aria-label": label }, content);
  new ResizeObserver(() => {
    if (frame.scrollWidth > frame.clientWidth) frame.setAttribute("tabindex", "0");
    else frame.removeAttribute("tabindex");
  }).observe(frame);
  return frame;
}

// --- scores ----------------------------------------------------------------------------------------------------------

/** Encoders against metrics: the value, its interval in figures and as a line, and the paper's value where it has one. */
function scoreTable(scores, caption, wanted) {
  const places = scores.metrics.map((metric, place) => place).filter((place) => wanted(scores.metrics[place]));
  const columns = [{ title: "encoder" }, ...places.map((place) => ({ title: scores.metrics[place].name, number: true }))];
  const scales = new Map(places.map((place) => [place, whiskerScale(scores.rows.map((row) => row.cells[place]))]));
  const rows = scores.rows.map((row) => [
    words(row.name),
    ...places.map((place) => scoreCell(row.cells[place], scales.get(place))),
  ]);
  return sortable(caption, columns, rows);
}

function scoreCell(cell, scale) {
  if (!cell) return { key: null, content: "–" };
  const [value, side] = cell.text.split(" ");
  const paper = cell.paper === null ? null : make("span", { class: "paper" }, `paper ${cell.paper.toFixed(1)}`);
  return {
    key: cell.value,
    content: [
      make("span", { class: "value" }, value), " ", make("span", { class: "side" }, side),
      whisker(cell, scale), paper,
    ],
  };
}

/** From shares to pixels: every column has its own scale, from its lowest to its highest end. */
function whiskerScale(cells) {
  const ends = cells.filter(Boolean).flatMap((cell) => [cell.low, cell.high, ...(cell.paper === null ? [] : [cell.paper / 100])]);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  return (share) => 5 + (78 * (share - low)) / (high - low || 1);
}

/** The interval as a line with its value as a dot; the paper's value is a diamond. */
function whisker(cell, scale) {
  const paper = cell.paper === null ? null : draw("path", { class: "diamond", d: `M${scale(cell.paper / 100)} 2l4 4l-4 4l-4 -4z` });
  return draw("svg", { class: "whisker", viewBox: "0 0 88 12", width: 88, height: 12, "aria-hidden": "true" },
    draw("line", { x1: scale(cell.low), x2: scale(cell.high), y1: 6, y2: 6 }),
    draw("circle", { cx: scale(cell.value), cy: 6, r: 3.2 }), paper);
}

/** Paired tests on the same images: how much the second encoder gains over the first. */
function testTable(tests, caption) {
  const columns = [
    { title: "encoder" }, { title: "against" }, { title: "metric" }, { title: "gain, points", number: true },
    { title: "95 % interval", number: true }, { title: "McNemar’s p", number: true }, { title: "reading" },
  ];
  const rows = tests.map((test) => [
    words(test.second), words(test.first), words(test.metric), number(test.value, signed(test.value)),
    number(test.low, `${signed(test.low)} to ${signed(test.high)}`), number(test.p, likely(test.p)),
    { key: test.differ ? "differs" : "may be chance", content: make("span", { class: test.differ ? "sure" : "unsure" }, test.differ ? "differs" : "may be chance") },
  ]);
  return sortable(caption, columns, rows);
}
