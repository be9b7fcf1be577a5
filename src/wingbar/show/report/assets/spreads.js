// How much feature dimensions vary: two of them with their densities, and all of them as a histogram.

function showSpreads(spreads) {
  const titles = { least: "Least spread", most: "Most spread" };
  const densities = ["least", "most"].map((which) => {
    const one = spreads[which];
    const curves = one.density.map((density, place) => ({ name: `${spreads.classes[place]} (${one.count[place]})`, x: one.grid[place], y: density, kind: "ours", series: place }));
    const label = `${titles[which]} dimension, number ${one.dimension}, spread ${short(one.spread)}: density of its value`;
    return make("div", {}, make("h4", {}, `${titles[which]}: dimension ${one.dimension}`),
      chart({ label, xLabel: "feature value", yLabel: "density", curves, zero: true, ticks: one.values.map((values, place) => ({ series: place, values })) }));
  });
  const kappa = spreads.kappa === null ? [] : [{ x: spreads.kappa, label: `κ = ${short(spreads.kappa)}` }];
  const histogram = make("div", {}, make("h4", {}, "All dimensions"),
    chart({ label: `Histogram of the spreads of ${spreads.dimensions} dimensions`, xLabel: "spread", yLabel: "dimensions", curves: [], bars: spreads.histogram, rules: kappa, zero: true }));
  return figure(make("div", { class: "charts three" }, densities, histogram), spreads.caption,
    unfold("The numbers", lazily(() => make("div", {}, spreadNumbers(spreads), histogramNumbers(spreads)))));
}

function spreadNumbers(spreads) {
  const columns = [{ title: "class" }, { title: "dimension", number: true }, { title: "feature value", number: true }];
  const rows = ["least", "most"].flatMap((which) => spreads[which].values.flatMap((values, place) =>
    values.map((value) => [words(spreads.classes[place]), number(spreads[which].dimension, String(spreads[which].dimension)), number(value)])));
  return sortable("Values of the two dimensions, one image a row", columns, rows);
}

function histogramNumbers(spreads) {
  const { edges, counts } = spreads.histogram;
  const columns = [{ title: "spread from", number: true }, { title: "to", number: true }, { title: "dimensions", number: true }];
  return sortable("How many dimensions spread how much", columns, counts.map((count, place) => [number(edges[place]), number(edges[place + 1]), number(count)]));
}
