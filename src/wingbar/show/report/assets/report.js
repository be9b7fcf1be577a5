// The page: sections in order, their links, light and dark, and what is unfolded.

function section(id, title, content, missing) {
  const note = missing ? make("p", { class: "note" }, missing) : null;
  const parts = [content].flat(3).filter(Boolean);
  if (!parts.length && !note) return null;
  return make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), note, parts);
}

function sections(report) {
  const { missing } = report;
  return [
    headSection(report),
    section("tests", "Paired tests", report.tests.length ? testSection(report) : null),
    section("pairs", "Pairs", pairSection(report), missing.pairs),
    section("cam", "Attention", report.attended.map(showAttended), missing.cam),
    section("neighbours", "Neighbours", report.ranking ? showRanking(report.ranking) : null, missing.neighbours),
    section("map", "Map", report.flocks.maps.length ? showMaps(report.flocks) : null, missing.map),
    section("spread", "Spread", report.spreads.map((spreads) => [make("h3", {}, spreads.encoder), showSpreads(spreads)]), missing.spread),
    section("curves", "Curves", report.panels.length ? curveSection(report) : null, missing.curves),
    section("settings", "Settings", settingSection(report)),
    section("origin", "Origin", originSection(report)),
    section("again", "Run it again", commandSection(report)),
  ].filter(Boolean);
}

/** Links to the sections; the one that is read now is marked. */
function contents(found) {
  const links = found.map((one) => {
    const title = one.id === "result" ? "Result" : one.querySelector("h2").textContent;
    return make("a", { href: `#${one.id}` }, title);
  });
  document.getElementById("contents").append(...links.map((link) => make("li", {}, link)));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((seen) => seen.isIntersecting)) {
      links.forEach((link) => {
        if (link.getAttribute("href") === `#${entry.target.id}`) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      });
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  found.forEach((one) => watch.observe(one));
}

// --- light and dark --------------------------------------------------------------------------------------------------

/** As the system has it until somebody chooses; the choice is kept where the browser lets us. */
function themes(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`); };
  try {
    const kept = localStorage.getItem("wingbar-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* a browser that keeps nothing for files: the choice lasts as long as the page */ }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("wingbar-theme", root.dataset.theme); } catch { /* as above */ }
    name();
  });
  system.addEventListener("change", name);
  name();
}

// --- all of it -------------------------------------------------------------------------------------------------------

/** What is made late is made when its fold opens; on paper everything is open. */
function folds() {
  document.addEventListener("toggle", (event) => {
    if (event.target.open) event.target.querySelectorAll(".lazy").forEach((place) => place.build());
  }, true);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => { fold.open = true; }));
}

function begin() {
  const report = JSON.parse(document.getElementById("report").textContent);
  themes(document.getElementById("theme"));
  folds();
  const found = sections(report);
  document.getElementById("main").append(...found);
  document.getElementById("foot").append(make("p", {}, report.made));
  contents(found);
}

begin();
