"""A report opened from disk in Chromium: quiet, alone, every part reacts, numbers as measured, usable by anybody."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from contents_for_reports import HOSTILE, some_report

from wingbar.show.report.page import make_page, panel_json

playwright = pytest.importorskip("playwright.sync_api", reason='pip install -e ".[browser]"')

CHROMIUM = os.environ.get("WINGBAR_CHROMIUM", "/usr/bin/chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"{CHROMIUM} is missing: apt install chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def report():
    return some_report()


@pytest.fixture(scope="module")
def file(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(make_page(report), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, file):
    """Opens the report; whatever it says on the console or asks of the world fails the test."""
    contexts, complaints = [], []

    def open_it(viewport=WIDE, scheme="light"):
        context = chromium.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if request.url != file.as_uri() else None)
        page.goto(file.as_uri())
        _settle(page)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page(open_page):
    return open_page()


def _settle(page) -> None:
    """Wait until every picture shows what it was last asked for."""
    page.wait_for_function(
        "[...document.querySelectorAll('canvas')].every((one) => one.dataset.drawn === one.dataset.tile)"
    )


def _unfold(page) -> None:
    """Open every fold; what is made when it opens is there then."""
    page.locator("details").evaluate_all("(folds) => folds.forEach((fold) => { fold.open = true; })")
    page.wait_for_function("[...document.querySelectorAll('.lazy')].every((one) => one.firstChild)")
    _settle(page)


def _column(table, number: int) -> list[str]:
    return table.locator(f"tbody tr > :nth-child({number})").all_inner_texts()


# --- what is drawn ---------------------------------------------------------------------------------------------------


def test_the_first_screen_says_what_how_well_and_whether_healthy(page, report):
    assert page.locator("h1").inner_text() == report.title
    seen = page.evaluate(
        """() => [...document.querySelectorAll("h1, .summary li, .verdict .word, #result table tbody .value")]
              .filter((one) => one.getBoundingClientRect().bottom < innerHeight).map((one) => one.textContent)"""
    )
    assert report.title in seen and "try-synth: healthy" in seen and "try-moco: warning" in seen
    assert sum(text.replace(".", "").isdigit() for text in seen) == 3 * 5


def test_drawn_scores_are_the_measured_ones(page, report):
    table = page.locator("#result table").first
    metrics = [text.split()[0] for text in table.locator("thead button").all_inner_texts()[1:]]
    for row, scored in enumerate(report.scored):
        cells = table.locator(f"tbody tr:nth-child({row + 1}) td")
        for place, metric in enumerate(metrics):
            words = cells.nth(place).inner_text().split()
            assert " ".join(words[:2]) == str(scored.scores[metric].interval)
            assert words[2:] == (["paper", f"{scored.paper[metric]:.1f}"] if metric in scored.paper else [])


def test_drawn_curves_pass_through_their_numbers(page, report):
    """The last point of a path, taken back from pixels to numbers by two ticks of each axis."""
    panel = panel_json(report.figures.panels[0])
    plot = page.locator("#curves .plot").first
    plot.scroll_into_view_if_needed()
    texts = plot.evaluate(
        """(plot) => [...plot.querySelectorAll(".axes text:not(.axis)")].map((text) => [
             text.getAttribute("text-anchor"), Number(text.getAttribute("x")), Number(text.getAttribute("y")),
             Number(text.textContent)])"""
    )
    up = [(y - 4, value) for anchor, _, y, value in texts if anchor == "end"]
    across = [(x, value) for anchor, x, _, value in texts if anchor == "middle"]
    for curve in panel["curves"]:
        path = plot.locator(f'[data-curve="{curve["name"]}"] path.curve').get_attribute("d")
        x, y = map(float, path.split("L")[-1].split())
        assert abs(_back(across, x) - curve["x"][-1]) < 0.05
        assert abs(_back(up, y) - curve["y"][-1]) < 0.01


def _back(ticks: list[tuple[float, float]], pixel: float) -> float:
    (first, low), (last, high) = ticks[0], ticks[-1]
    return low + (pixel - first) / (last - first) * (high - low)


def test_the_table_behind_a_chart_has_all_its_numbers(page, report):
    curve = report.figures.panels[0].curves[0]
    fold = page.locator("#curves details").first
    fold.locator("summary").click()
    fold.locator("table").wait_for()
    shown = [float(text) for text in _column(fold.locator("table"), 3)]
    expected = [value for curve in report.figures.panels[0].curves for value in curve.y]
    assert shown == pytest.approx(expected, rel=5e-4) and len(curve.x) == 40


def test_names_that_look_like_code_are_shown_as_text(page):
    assert page.locator("h1").inner_text().endswith(HOSTILE)
    assert page.locator("#neighbours .name", has_text=HOSTILE).count() >= 1
    assert page.locator("script").count() == 2


# --- what reacts -----------------------------------------------------------------------------------------------------


def test_tables_sort_by_mouse_and_keyboard(page):
    table = page.locator("#result table").first
    button, head = table.locator("thead button").nth(1), table.locator("thead th").nth(1)
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    ascending = _column(table, 2)
    assert [float(text.split()[0]) for text in ascending] == sorted(float(text.split()[0]) for text in ascending)
    button.focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending" and _column(table, 2) == ascending[::-1]


@pytest.mark.parametrize(("section", "card"), [("cam", ".card"), ("neighbours", ".query")])
def test_pictures_are_filtered_by_class(page, section, card):
    field, cards = page.locator(f"#{section} input[type=search]"), page.locator(f"#{section} {card}:visible")
    everything = cards.count()
    field.fill("BARRED")
    assert 0 < cards.count() < everything
    assert all("barred" in text for text in page.locator(f"#{section} {card}:visible .name").all_inner_texts())
    assert page.locator(f"#{section} output").inner_text().startswith(f"{cards.count()} of {everything}")
    field.fill("")
    assert cards.count() == everything


def test_the_map_is_filtered_by_class(page):
    page.locator("#map input[type=search]").fill("script")
    on = page.locator("#map .map").first.locator("circle:not(.off)")
    assert on.count() == 24 and set(on.evaluate_all("(all) => all.map((one) => one.ariaLabel)")) == {HOSTILE}


def test_points_show_their_picture_to_mouse_and_keyboard(page):
    frame = page.locator("#map .map").first
    bubble = frame.locator(".bubble")
    frame.scroll_into_view_if_needed()
    frame.locator("circle").nth(7).hover(force=True)
    assert bubble.is_visible() and bubble.locator("canvas").count() == 1
    page.mouse.move(0, 0)
    assert bubble.is_hidden()
    frame.locator("circle[tabindex='0']").focus()
    assert bubble.is_visible()
    before = page.evaluate("document.activeElement.dataset.place")
    for key in ("ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    after = page.evaluate("document.activeElement.dataset.place")
    assert before is not None and after is not None
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.place") != before
    assert bubble.inner_text() == page.evaluate("document.activeElement.ariaLabel")
    assert frame.locator("circle[tabindex='0']").count() == 1


def test_curves_tell_values_on_hover_and_by_arrow_keys(page, report):
    curve = report.figures.panels[0].curves[0]
    plot = page.locator("#curves .plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert curve.name in plot.locator(".bubble").inner_text()
    plot.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    said = page.locator("#curves .chart").first.locator("[aria-live]").inner_text()
    assert said.startswith(f"epoch {curve.x[1]:g}") and f"{curve.name} {curve.y[1]:.4g}" in said


def test_the_legend_takes_curves_away_and_back(page):
    chart = page.locator("#curves .chart").first
    key = chart.locator(".key").first
    name = key.inner_text().strip()
    key.click()
    assert key.get_attribute("aria-pressed") == "false" and chart.locator(f'[data-curve="{name}"]').count() == 0
    key.press("Enter")
    assert key.get_attribute("aria-pressed") == "true" and chart.locator(f'[data-curve="{name}"]').count() == 1


def test_the_slider_goes_through_the_twins(page, report):
    ladder = report.figures.ladders["try-synth"][0]
    slider, twin = page.locator("#pairs input[type=range]"), page.locator("#pairs .cards.small canvas").nth(1)
    pixels = "(canvas) => canvas.toDataURL()"
    seen = {twin.evaluate(pixels)}
    slider.focus()
    page.keyboard.press("End")
    _settle(page)
    last = slider.get_attribute("aria-valuetext")
    assert last.startswith("×8") and f"{ladder.change[:, -1].mean():.2g}" in last
    seen.add(twin.evaluate(pixels))
    page.keyboard.press("Home")
    _settle(page)
    assert slider.get_attribute("aria-valuetext").startswith("×0")
    assert len(seen | {twin.evaluate(pixels)}) == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_until_somebody_chooses(open_page, scheme):
    page = open_page(scheme=scheme)
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = "rgb(22, 24, 28)"
    assert (page.evaluate(paper) == dark) == (scheme == "dark")
    page.locator("#theme").click()
    assert (page.evaluate(paper) == dark) == (scheme == "light")
    page.locator("#theme").click()
    assert (page.evaluate(paper) == dark) == (scheme == "dark")


def test_commands_are_copied(page, report):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#again button").first.click()
    page.locator("#again [role=status]", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == report.commands[0].line


def test_settings_that_are_as_usual_show_on_demand(page):
    rows = page.locator("#settings tbody tr:visible")
    assert rows.count() == 2
    page.locator("#settings input[type=checkbox]").check()
    assert rows.count() == 3 and page.locator("#settings .moved").count() == 2


def test_links_lead_to_every_section(page):
    links = page.locator("nav a")
    assert links.count() == page.locator("main > section").count() == 11
    links.last.click()
    assert page.locator("#again").evaluate("(one) => one.getBoundingClientRect().top < innerHeight")


# --- for anybody -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["1280", "390"])
def test_the_page_never_scrolls_sideways(open_page, viewport):
    page = open_page(viewport)
    _unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]


def test_headings_are_in_order_and_landmarks_there(page):
    levels = page.locator("h1, h2, h3, h4, h5, h6").evaluate_all("(all) => all.map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(lower <= upper + 1 for upper, lower in pairwise(levels))
    assert all(page.locator(landmark).count() == 1 for landmark in ("main", "nav[aria-label]", "header", "footer"))
    assert page.evaluate("document.documentElement.lang") == "en"
    ids = page.locator("[id]").evaluate_all("(all) => all.map((one) => one.id)")
    assert len(ids) == len(set(ids))


def test_everything_has_a_name(page):
    _unfold(page)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("img, canvas, svg, button, input, a, [tabindex='0'], table, [role=img]")]
          .filter((one) => !one.closest("[aria-hidden=true]") && !(
             one.ariaLabel || one.alt || one.labels?.length || one.caption?.textContent || one.id === "main" ||
             (["BUTTON", "A"].includes(one.tagName) && one.textContent.trim())))
          .map((one) => one.outerHTML.slice(0, 120))"""
    )
    assert nameless == []


def test_what_has_the_focus_is_seen(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(12):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", page.evaluate("document.activeElement.outerHTML")[:100]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(open_page, scheme):
    """WCAG's contrast of every text with the first opaque colour behind it: 4.5 at least."""
    page = open_page(scheme=scheme)
    pale = page.evaluate(CONTRASTS)
    assert pale == []


CONTRASTS = """() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const own = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll("body *:not(script):not(option)")]
    .filter((one) => own(one) && one.getClientRects().length)
    .map((one) => {
      const style = getComputedStyle(one);
      const [a, b] = [light(parse(one instanceof SVGElement ? style.fill : style.color)), light(behind(one))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.outerHTML.slice(0, 90)];
    }).filter(([ratio]) => ratio < 4.5);
}"""


def test_on_paper_everything_is_open_and_light(open_page, tmp_path):
    page = open_page(scheme="dark")
    page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    page.locator("#theme").click()
    page.locator("#theme").click()  # chosen, dark
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('.top')).display") == "none"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(22, 24, 28)"
    assert page.locator("details:not([open])").count() == 0


def test_the_data_inside_is_the_report(page, report):
    data = json.loads(page.locator("#report").inner_text())
    assert data["title"] == report.title and len(data["flocks"]["maps"]) == 2
