// The sections of a report, from what people look at first to what they need to do it again.

function headSection(report) {
  return make("section", { class: "head", id: "result", "aria-labelledby": "title" },
    make("h1", { id: "title" }, report.title),
    make("ul", { class: "summary" }, report.summary.map((sentence, place) => make("li", {}, make("b", {}, report.runs[place]), `: ${sentence}`))),
    make("div", { class: "verdicts", role: "group", "aria-label": "Verdict of the collapse doctor" }, report.verdicts.map(verdictCard)),
    make("h2", { id: "scores" }, "Scores"),
    report.unscored ? make("p", { class: "note" }, report.unscored) : scoreFigure(report));
}

/** What the collapse doctor says: a sign, a word, and sentences. */
function verdictCard(verdict) {
  const signs = { healthy: "✓", warning: "!", collapsed: "✕" };
  return make("div", { class: `verdict ${verdict.severity}` },
    make("span", { class: "sign", "aria-hidden": "true" }, signs[verdict.severity]),
    make("div", {},
      make("p", { class: "word" }, make("b", {}, `${verdict.encoder}: ${verdict.severity}`)),
      verdict.sentences.map((sentence) => make("p", {}, sentence)),
      make("p", { class: "facts" }, verdict.seen)));
}

function scoreFigure(report) {
  const details = report.scores.metrics.some((metric) => metric.detail)
    ? unfold("More numbers", scoreTable(report.scores, "Further metrics, % with 95 % interval", (metric) => metric.detail)) : null;
  const papers = report.scores.rows.some((row) => row.cells.some((cell) => cell && cell.paper !== null));
  const caption = papers ? `${report.basis} Diamonds: what the paper reports.` : report.basis;
  return figure(scoreTable(report.scores, "% on the test images, with 95 % interval", (metric) => !metric.detail), caption, details);
}

function testSection(report) {
  const [main, rest] = [report.tests.filter((test) => !test.detail), report.tests.filter((test) => test.detail)];
  return [
    figure(testTable(main, "Differences on the same images"),
      "Gain of the encoder over the one it is held against, by paired bootstrap; McNemar’s exact test where every image is a hit or a miss. " +
      "“Differs”: the choice of test images alone would look like this less than 1 time in 20. Another training seed may move results further.",
      rest.length ? unfold("More numbers", testTable(rest, "Differences in further metrics")) : null),
  ];
}

/** Everything about pairs: of each run the pairs, then the noise's slider, then the criteria. */
function pairSection(report) {
  return report.pairs.flatMap((pairs) => {
    const ladders = report.ladders.filter((ladder) => ladder.encoder === pairs.encoder);
    return [
      make("h3", {}, pairs.encoder), showPairs(pairs),
      ...ladders.filter((ladder) => ladder.kind === "noise scale").flatMap((ladder) => [make("h3", {}, `More and less noise: ${pairs.encoder}`), showNoise(ladder)]),
      ...ladders.filter((ladder) => ladder.kind === "criterion").flatMap((ladder) => [make("h3", {}, `One criterion at a time: ${pairs.encoder}`), showCriteria(ladder)]),
    ];
  });
}

const FIRST = 6; // charts that are seen before anything is unfolded

function curveSection(report) {
  const panels = report.panels.map(curvePanel);
  const rest = panels.splice(FIRST);
  return [
    make("div", { class: "charts three" }, panels),
    rest.length ? unfold(`${counted(rest.length, "more curve")}: rates, speed, diagnostics`, make("div", { class: "charts three" }, rest)) : null,
  ];
}

function curvePanel(panel) {
  const colours = new Map(); // a chance level has the colour of nobody, the others theirs in order
  const curves = panel.curves.map((curve) => {
    if (curve.kind !== "chance") colours.set(curve.name, colours.size);
    return { ...curve, series: colours.get(curve.name) % 7 || 0 };
  });
  const label = `${panel.title}: ${panel.y_label} over ${panel.x_label}`;
  const spec = { label, xLabel: panel.x_label, yLabel: panel.y_label, logX: panel.log_x, xNames: panel.x_names, curves };
  return make("div", {}, make("h3", {}, panel.title[0].toUpperCase() + panel.title.slice(1)),
    figure(chart(spec), panel.caption, chartNumbers(label, spec)));
}

// --- origin ----------------------------------------------------------------------------------------------------------

/** Every setting of every run; what differs from the recipe is marked, and at first only that is shown. */
function settingSection(report) {
  const several = report.runs.length > 1;
  const rows = report.settings.map((setting) => {
    const moved = setting.values.map((value, run) => value !== setting.defaults[run]);
    const apart = several && new Set(setting.values).size > 1;
    const row = [words(setting.name), ...setting.values.map((value, run) => ({ key: value, content: settingCell(value, setting.defaults[run], moved[run]) }))];
    row.plain = !moved.some(Boolean) && !apart;
    return row;
  });
  const table = sortable("Settings; those that differ from the recipe’s are marked", [{ title: "setting" }, ...report.runs.map((run) => ({ title: run }))], rows);
  const box = unique("all");
  const said = make("output", { for: box });
  const input = make("input", { type: "checkbox", id: box, onchange: () => show(input.checked) });
  function show(everything) {
    rows.forEach((row) => { row.row.classList.toggle("plain", row.plain && !everything); });
    const moved = rows.filter((row) => !row.plain).length;
    said.textContent = everything ? counted(rows.length, "setting") : `${moved} of ${counted(rows.length, "setting")} differ from the recipe${several ? " or between the runs" : ""}`;
  }
  show(false);
  return [make("p", { class: "filter" }, input, make("label", { for: box }, "Show all settings"), said), table];
}

function settingCell(value, usual, moved) {
  if (!moved) return make("code", {}, value);
  return [make("code", { class: "moved" }, value), make("span", { class: "facts" }, ` recipe: ${usual || "nothing"}`)];
}

/** A row for every fact, a column for every run. */
function originSection(report) {
  const names = [...new Set(report.origins.flatMap((origin) => Object.keys(origin.facts)))];
  const rows = names.map((name) => [words(name), ...report.origins.map(({ facts }) => ({ key: facts[name] ?? null, content: make("code", {}, facts[name] ?? "–") }))]);
  return sortable("Versions, machine, hashes", [{ title: "fact" }, ...report.runs.map((run) => ({ title: run }))], rows);
}

/** Commands with a button that copies each. */
function commandSection(report) {
  return report.commands.map((command) => {
    const said = make("span", { class: "facts", role: "status" });
    const code = make("code", {}, command.line);
    const button = make("button", { type: "button", class: "quiet", "aria-label": `Copy: ${command.purpose}`, onclick: async () => {
      said.textContent = (await copy(command.line)) ? "Copied" : "Select it and press Ctrl+C";
    } }, "Copy");
    return make("div", { class: "command" }, make("p", {}, command.purpose), make("pre", { tabindex: "0", role: "region", "aria-label": command.purpose }, code), button, said);
  });
}

/** Whether the text could be put on the clipboard. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = make("textarea", { class: "unseen", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
