// Pictures: generated pairs, twins over growing noise, attention, neighbours.

/** Image, rebuilt image, twin and difference, with what was measured of each image. */
function showPairs(pairs) {
  const columns = ["image", "rebuilt", "twin", "difference"];
  const cards = pairs.names.map((name, row) =>
    make("li", { class: "card" },
      make("p", { class: "name" }, name),
      make("div", { class: "row four" }, columns.map((column, place) =>
        captioned(tile(pairs.sheet, 4 * row + place, `${column} of ${name}`), column))),
      make("p", { class: "facts" }, `PSNR ${pairs.psnr[row]?.toFixed(1) ?? "∞"} dB · ${percent(pairs.perturbed[row])} of dimensions perturbed`)));
  const heads = [{ title: "image" }, { title: "PSNR, dB", number: true }, { title: "perturbed", number: true }, { title: "mean |twin − rebuilt|", number: true }];
  const rows = pairs.names.map((name, row) => [
    words(name), number(pairs.psnr[row]), number(pairs.perturbed[row], percent(pairs.perturbed[row], 1)), number(pairs.change[row]),
  ]);
  return figure(make("ul", { class: "cards" }, cards), pairs.caption,
    unfold("The numbers", sortable(`Pairs of ${pairs.encoder}`, heads, rows)));
}

/** Twins under growing noise: a slider goes through them, all steps are there to unfold. */
function showNoise(ladder) {
  const per = ladder.steps.length + 1;
  const field = unique("noise");
  const said = make("output", { for: field });
  const twins = ladder.change.map(() => make("canvas", { class: "tile", width: ladder.sheet.width, height: ladder.sheet.height, role: "img" }));
  const slider = make("input", { type: "range", id: field, min: 0, max: ladder.steps.length - 1, step: 1, oninput: () => show(Number(slider.value)) });
  function show(step) {
    const mean = ladder.change.reduce((sum, row) => sum + row[step], 0) / ladder.change.length;
    said.textContent = `${ladder.steps[step]}: the twins differ by ${mean.toPrecision(2)} on average`;
    slider.setAttribute("aria-valuetext", said.textContent);
    twins.forEach((canvas, row) => showTile(canvas, ladder.sheet, row * per + 1 + step, `twin of image ${row + 1} at noise ${ladder.steps[step]}`));
  }
  slider.value = Math.max(0, ladder.steps.indexOf("×1"));
  show(Number(slider.value));
  const cards = twins.map((canvas, row) =>
    make("li", { class: "card" }, make("div", { class: "row two" },
      captioned(tile(ladder.sheet, row * per, `rebuilt image ${row + 1}`), "rebuilt"), captioned(canvas, "twin"))));
  return figure(
    [
      make("p", { class: "slider" }, make("label", { for: field }, "Noise, in units of the run’s ε"), slider, said),
      make("ul", { class: "cards small" }, cards),
    ],
    ladder.caption, unfold("All steps side by side", strip(ladder), ladderNumbers(ladder)));
}

/** Twins by one criterion at a time, side by side. */
function showCriteria(ladder) {
  return figure(strip(ladder), ladder.caption, unfold("The numbers", ladderNumbers(ladder)));
}

function strip(ladder) {
  const per = ladder.steps.length + 1;
  const rows = ["rebuilt", ...ladder.steps].map((step, place) =>
    make("tr", {}, make("th", { scope: "row" }, step), ladder.change.map((_, image) =>
      make("td", {}, tile(ladder.sheet, image * per + place, place ? `twin of image ${image + 1}, ${ladder.kind} ${step}` : `rebuilt image ${image + 1}`)))));
  const table = make("table", { class: "strip" }, make("caption", { class: "unseen" }, `Twins by ${ladder.kind}, an image a column`), make("tbody", {}, rows));
  return scrollable(table, `Twins by ${ladder.kind}`);
}

function ladderNumbers(ladder) {
  const columns = [{ title: "image" }, ...ladder.steps.map((step) => ({ title: step, number: true }))];
  const rows = ladder.change.map((changes, row) => [number(row + 1, String(row + 1)), ...changes.map((change) => number(change))]);
  return sortable(`Mean |twin − rebuilt| by ${ladder.kind}`, columns, rows);
}

// --- attention -------------------------------------------------------------------------------------------------------

/** Each image beside the maps of every encoder, with the energy inside the outline. */
function showAttended(attended) {
  const per = attended.encoders.length + 1;
  const cards = attended.names.map((name, row) => {
    const maps = attended.encoders.map((encoder, place) => {
      const energy = attended.energy?.[place][row] ?? null;
      const score = energy === null ? "" : `${percent(energy)} inside`;
      return captioned(tile(attended.sheet, row * per + 1 + place, `where ${encoder} looks in ${name}${score && `, ${score}`}`), encoder, score);
    });
    const chance = attended.area ? `chance ${percent(attended.area[row])}` : "";
    return make("li", { class: "card" }, make("p", { class: "name" }, name),
      make("div", { class: "row wide" }, captioned(tile(attended.sheet, row * per, `image ${name}`), "image", chance), maps));
  });
  const list = make("ul", { class: "cards" }, cards);
  const filter = filterField("Filter by class or name", attended.names, (typed) => keep(cards, attended.names, typed, "image"));
  return figure([filter, list], attended.caption, attended.energy ? unfold("The numbers", energyNumbers(attended)) : null);
}

function energyNumbers(attended) {
  const columns = [{ title: "image" }, ...attended.encoders.map((encoder) => ({ title: encoder, number: true })), { title: "chance (area)", number: true }];
  const rows = attended.names.map((name, row) => [
    words(name), ...attended.energy.map((energies) => number(energies[row], percent(energies[row], 1))), number(attended.area[row], percent(attended.area[row], 1)),
  ]);
  return sortable("Energy inside the outline", columns, rows);
}

/** Show the cards whose names hold the words; what comes back says how many they are. */
function keep(cards, names, typed, one, many) {
  cards.forEach((card, place) => { card.hidden = !mentions(typed, names[place]); });
  const left = cards.filter((card) => !card.hidden).length;
  return left === cards.length ? counted(left, one, many) : `${left} of ${counted(cards.length, one, many)}`;
}

// --- neighbours ------------------------------------------------------------------------------------------------------

/** Queries and what each encoder finds nearest, right and wrong marked by frame and sign. */
function showRanking(ranking) {
  const sizes = ranking.found.map((found) => found.labels[0]?.length ?? 0);
  const per = 1 + sizes.reduce((sum, size) => sum + size, 0);
  const cards = ranking.labels.map((label, row) =>
    make("li", { class: "card query" },
      make("div", { class: "asked" }, tile(ranking.sheet, row * per, `query: ${label}`), make("p", { class: "name" }, label)),
      make("div", { class: "answers" }, ranking.found.map((found, place) => {
        const start = row * per + 1 + sizes.slice(0, place).reduce((sum, size) => sum + size, 0);
        return answers(ranking.sheet, found, row, start);
      }))));
  const filter = filterField("Filter by class", ranking.labels, (typed) => keep(cards, ranking.labels, typed, "query", "queries"));
  return figure([filter, make("ul", { class: "queries" }, cards)], ranking.caption, unfold("The numbers", neighbourNumbers(ranking)));
}

function answers(sheet, found, row, start) {
  const cells = found.labels[row].map((label, rank) => {
    const right = found.right?.[row][rank] ?? null;
    const verdict = right === null ? "" : right ? "right: " : "wrong: ";
    const words = `${verdict}${label}, cosine ${found.similarity[row][rank].toFixed(2)}`;
    return make("li", { class: right === null ? null : right ? "right" : "wrong", title: words }, tile(sheet, start + rank, words));
  });
  const hits = found.right ? ` · ${found.right[row].filter(Boolean).length} of ${found.labels[row].length} right` : "";
  return make("div", { class: "answer" }, make("p", { class: "facts" }, `${found.encoder}${hits}`), nearList(cells));
}

function nearList(cells) {
  const list = make("ol", { class: "near" }, cells);
  list.style.setProperty("--count", cells.length);
  return list;
}

function neighbourNumbers(ranking) {
  const columns = [{ title: "query" }, { title: "encoder" }, { title: "rank", number: true }, { title: "found" }, { title: "cosine", number: true }, { title: "right" }];
  const rows = ranking.found.flatMap((found) => found.labels.flatMap((labels, row) => labels.map((label, rank) => [
    words(ranking.labels[row]), words(found.encoder), number(rank + 1), words(label), number(found.similarity[row][rank], found.similarity[row][rank].toFixed(3)),
    words(found.right ? (found.right[row][rank] ? "yes" : "no") : "–"),
  ])));
  return lazily(() => sortable("Nearest images", columns, rows));
}
