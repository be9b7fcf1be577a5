"""The explorer in Chromium: every control does what it should, by keys and on a phone; nothing leaves the machine."""

from __future__ import annotations

import csv
import os
import re
import shutil
from pathlib import Path

import pytest
from explored_run import CLASSES, IMAGES, make_run, opened, serving
from PIL import Image

playwright = pytest.importorskip("playwright.sync_api", reason='pip install -e ".[browser]"')

CHROMIUM = os.environ.get("WINGBAR_CHROMIUM", "/usr/bin/chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason=f"{CHROMIUM} is missing: apt install chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ROWS = "JSON.stringify([...document.querySelectorAll('.encoder.after button')].map((one) => Number(one.dataset.row)))"
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
# Chromium's own words on what is refused, and on a server that is gone.
EXPECTED = re.compile("Failed to load resource: .*(status of 400|ERR_INTERNET_DISCONNECTED)")


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    return opened(make_run(tmp_path_factory.mktemp("explore")) / "run")


@pytest.fixture(scope="module")
def server(explorer):
    with serving(explorer) as running:
        yield running


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, server):
    """Opens the page; whatever it says on the console, or asks of anybody but its server, fails the test."""
    contexts, complaints = [], []

    def open_it(viewport=WIDE, address=server.address, **how):
        context = chromium.new_context(viewport=viewport, reduced_motion="reduce", **how)
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda one: complaints.append(one.text) if not EXPECTED.match(one.text) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        own = (address, "data:", f"blob:{address}")
        page.on("request", lambda one: None if one.url.startswith(own) else complaints.append(one.url))
        page.goto(address)
        page.wait_for_selector(".near button img")
        settle(page)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page(open_page):
    return open_page()


def ask(page, row: int) -> None:
    """As a link to an image does."""
    page.evaluate("(row) => { location.hash = row; location.reload(); }", row)
    page.wait_for_selector(".near button img")
    settle(page)


def until(page, condition: str) -> None:
    """Playwright's own way of waiting would need `eval`, which the page's policy forbids."""
    for _ in range(400):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never: {condition}")


def settle(page) -> None:
    """Until the last question is answered, and its pictures are there."""
    until(page, "document.querySelector('#found').getAttribute('aria-busy') === 'false'")
    until(page, "[...document.querySelectorAll('.near img, #twins img')].every((one) => one.complete)")


def near(page, which: str = "after") -> list[int]:
    return page.locator(f".encoder.{which} button").evaluate_all("(all) => all.map((one) => Number(one.dataset.row))")


def found(explorer, row: int, which: int = -1, classes: tuple[int, ...] = ()) -> list[int]:
    return [one for one, _ in explorer.ask(row, classes=classes)["encoders"][which]["near"]]


def twin(page, name: str = "twin") -> str:
    return page.locator(f"#twins figure[data-name={name}] img").get_attribute("src")


def place_of(page, row: int) -> tuple[float, float]:
    """Where a point of the first map is, in the window; as the map's own rule has it, computed here."""
    page.locator(".marks").scroll_into_view_if_needed()
    box = page.locator(".marks").bounding_box()
    places = page.evaluate("fetch('/about').then((reply) => reply.json()).then((about) => about.maps[0].places)")
    left, right = min(x for x, _ in places), max(x for x, _ in places)
    low, high = min(y for _, y in places), max(y for _, y in places)
    unit = min((box["width"] - 40) / (right - left), (box["height"] - 40) / (high - low))
    x, y = places[row]
    across, down = unit * (x - (left + right) / 2), unit * (y - (low + high) / 2)
    return box["x"] + box["width"] / 2 + across, box["y"] + box["height"] / 2 - down


def alert(page) -> str:
    page.wait_for_selector("#alert:not([hidden])")
    return page.locator("#alert").inner_text()


# --- every control ---------------------------------------------------------------------------------------------------


def test_the_first_screen_says_what_there_is(page, explorer):
    assert page.locator("h1").inner_text() == "run" and page.title() == "run · wingbar explore"
    assert page.locator("#facts").inner_text() == f"{IMAGES} images, 3 classes"
    assert page.locator("#alert").is_hidden() and near(page) == found(explorer, 0)


def test_an_image_is_asked_about_and_a_neighbour_is_the_next(page, explorer):
    ask(page, 3)
    assert near(page, "before") == found(explorer, 3, 0) and near(page) == found(explorer, 3)
    assert page.locator(".looks img").count() == 2
    known = [explorer.album.labels[row] == explorer.album.labels[3] for row in near(page)]
    assert page.locator(".encoder.after li.right").count() == sum(known)
    assert page.locator(".encoder.after li.wrong").count() == len(known) - sum(known)
    second = near(page)[1]
    page.locator(".encoder.after button").nth(1).click()
    until(page, f"location.hash === '#{second}'")
    settle(page)
    assert near(page) == found(explorer, second)
    assert CLASSES[0] in page.locator("#filter").inner_html() and "<b>" not in page.locator("#found").inner_html()


def test_any_image_is_one_of_them(page, explorer):
    page.evaluate("Math.random = () => 0.5")
    page.locator("#any").click()
    until(page, f"location.hash === '#{IMAGES // 2}'")
    settle(page)
    assert near(page) == found(explorer, IMAGES // 2)


GIVE = """([bytes, name, way]) => {
    const bag = new DataTransfer();
    bag.items.add(new File([new Uint8Array(bytes)], name));
    document.querySelector(".drop").dispatchEvent(way === "dropped"
        ? new DragEvent("drop", { dataTransfer: bag, bubbles: true })
        : new ClipboardEvent("paste", { clipboardData: bag, bubbles: true }));
}"""


@pytest.mark.parametrize("way", ["chosen", "dropped", "pasted"])
def test_a_file_of_ones_own_is_asked_about(way, page, explorer):
    path = Path(explorer.album.rows[7].path)
    if way == "chosen":
        page.locator("input[type=file]").set_input_files(path)
    else:
        page.evaluate(GIVE, [list(path.read_bytes()), path.name, way])
    until(page, f"document.querySelector('#asked').textContent === '{path.name}'")
    settle(page)
    assert near(page)[0] == 7 and page.evaluate("location.hash") == ""


def test_the_class_filter_reaches_neighbours_map_and_choice(page, explorer):
    ask(page, 3)
    label = explorer.album.classes.index("striped")
    count = int((explorer.album.labels == label).sum())
    page.get_by_label("Class", exact=True).fill("strip")
    until(page, f"{ROWS} == '{found(explorer, 3, classes=(label,))}'.replaceAll(' ', '')")
    assert page.locator("#filter output").inner_text() == f"{count} of {IMAGES} images"
    page.locator("#everything").click()
    assert page.locator("#count").inner_text() == f"{count} images chosen"
    page.get_by_label("Class", exact=True).fill("no such class")
    until(page, "document.querySelectorAll('.near button').length === 0")
    page.get_by_label("Class", exact=True).fill("")
    until(page, "document.querySelectorAll('.near button').length === 10")


def test_noise_and_every_criterion_change_the_twin(page):
    ask(page, 2)
    page.wait_for_selector("#twins img")
    first = twin(page)
    slider = page.get_by_label("Noise")

    def after(act) -> str:
        with page.expect_response(re.compile("/twin/")):
            act()
        page.wait_for_timeout(50)
        return twin(page)

    loud = after(lambda: slider.fill("6"))
    assert page.locator("#twins output").inner_text() == "×16" and loud != first
    alone = [after(lambda name=name: page.get_by_label(name).uncheck()) for name in ("Grad-CAM", "low variance")]
    assert len({loud, *alone}) == 3 and alone[1] == twin(page, "rebuilt")
    again = after(lambda: page.get_by_label("Grad-CAM").check())
    assert again not in (loud, *alone)
    assert after(lambda: slider.fill("0")) == twin(page, "rebuilt")


def test_pointing_shows_a_picture_and_a_click_asks(page, explorer):
    x, y = place_of(page, 5)
    page.mouse.move(x, y)
    assert "/picture/5?" in page.locator(".bubble img").get_attribute("src")
    page.mouse.click(x, y)
    until(page, "location.hash === '#5'")
    assert near(page) == found(explorer, 5)


def drawn(page) -> str:
    return page.locator(".points").evaluate("(one) => one.toDataURL()")


def test_the_other_map_is_another(page):
    first = drawn(page)
    page.locator("label", has_text="before training").click()
    before = drawn(page)
    page.locator("label", has_text="after training").click()
    assert drawn(page) == first != before


def test_the_map_is_made_larger_smaller_and_moved(page):
    x, y = place_of(page, 5)
    first = drawn(page)
    page.get_by_label("Larger").click()
    assert drawn(page) != first
    page.get_by_label("Smaller").click()
    assert drawn(page) == first
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    until(page, "document.querySelector('.points').toDataURL() !== " + repr(first))
    shown = page.locator(".bubble img")
    page.mouse.move(x + 1, y)
    assert "/picture/5?" in shown.get_attribute("src")  # what is pointed at stays there
    page.mouse.down()
    page.mouse.move(x + 61, y + 40, steps=4)
    page.mouse.up()
    page.mouse.move(x + 60, y + 40)
    assert "/picture/5?" in shown.get_attribute("src")
    page.get_by_role("button", name="Fit").click()
    assert drawn(page) == first


def test_day_and_night_are_a_button(page):
    def paper() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    theme, day, map_by_day = page.locator("#theme"), paper(), drawn(page)
    assert theme.inner_text() == "Dark"
    theme.click()
    assert theme.inner_text() == "Light" and paper() != day and drawn(page) != map_by_day
    theme.click()
    assert (paper(), drawn(page)) == (day, map_by_day)


def test_a_chosen_picture_is_asked_about(page, explorer):
    page.locator("#everything").click()
    page.locator(".chosen button").nth(4).click()
    until(page, "location.hash === '#4'")
    settle(page)
    assert near(page) == found(explorer, 4)


def test_a_lasso_chooses_what_it_encloses_to_be_taken_away(page, explorer, tmp_path):
    x, y = place_of(page, 5)
    inside = [
        row for row in range(IMAGES) if max(abs(a - b) for a, b in zip(place_of(page, row), (x, y), strict=True)) < 40
    ]
    page.locator("label", has_text="lasso").click()
    page.mouse.move(x - 40, y - 40)
    page.mouse.down()
    for corner in ((x + 40, y - 40), (x + 40, y + 40), (x - 40, y + 40)):
        page.mouse.move(*corner, steps=3)
    page.mouse.up()
    assert page.locator("#count").inner_text() == f"{len(inside)} image{'s' * (len(inside) > 1)} chosen"
    with page.expect_download() as got:
        page.locator("#table").click()
    got.value.save_as(tmp_path / "chosen.csv")
    lines = list(csv.DictReader((tmp_path / "chosen.csv").open()))
    assert [line["path"] for line in lines] == [explorer.album.rows[row].path for row in inside]
    with page.expect_download() as got:
        page.locator("#sheet").click()
    got.value.save_as(tmp_path / "chosen.png")
    assert Image.open(tmp_path / "chosen.png").width > 100
    page.locator("#clear").click()
    assert page.locator("#count").inner_text() == "Nothing chosen"


def test_everything_can_be_done_with_keys(page):
    canvas = page.locator(".marks")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    first = page.locator(".bubble img").get_attribute("src")
    seen = {first}
    for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
        seen.add(page.locator(".bubble img").get_attribute("src"))
    assert len(seen) > 2
    page.keyboard.press("Space")
    assert page.locator("#count").inner_text() == "1 image chosen"
    row = re.search(r"/picture/(\d+)", page.locator(".bubble img").get_attribute("src"))[1]
    page.keyboard.press("Enter")
    until(page, f"location.hash === '#{row}'")
    page.keyboard.press("Escape")
    assert page.locator(".bubble").is_hidden()
    stops = set()
    page.locator(".skip").focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        stops.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "any", "everything", "CANVAS", "table", "sheet"} <= stops
    assert any(stop.startswith("file-") for stop in stops) and any(stop.startswith("noise-") for stop in stops)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, content, why",
    [
        ("broken.png", b"\x89PNG\r\n\x1a\n" + bytes(50), "no image"),
        ("notes.txt", b"no image at all", "no image in a format we read"),
        ("../../../etc/passwd.png", b"root:x:0:0", "no image in a format we read"),
        ("empty.jpg", b"", "empty"),
    ],
)
def test_what_is_no_image_is_refused_with_a_sentence(name, content, why, page, explorer):
    ask(page, 3)
    page.locator("input[type=file]").set_input_files({"name": name, "mimeType": "image/png", "buffer": content})
    assert why in alert(page)
    assert near(page) == found(explorer, 3)  # what was there before is still there
    page.locator(".encoder.after button").first.click()
    page.wait_for_selector("#alert", state="hidden")


def test_a_huge_file_is_refused_before_it_is_sent(page, tmp_path):
    huge = tmp_path / "huge.png"
    with huge.open("wb") as file:
        file.truncate(60_000_000)
    page.locator("input[type=file]").set_input_files(huge)
    assert alert(page) == "huge.png has 60 MB, which are too many; send at most 25."


def test_many_pixels_in_a_small_file_are_refused(page, tmp_path):
    Image.new("1", (9000, 9000)).save(tmp_path / "bomb.png")
    page.locator("input[type=file]").set_input_files(tmp_path / "bomb.png")
    assert "9000 × 9000 pixels are too many" in alert(page)


def test_a_page_of_another_site_gets_nothing(chromium, server):
    """It may send what it likes; it is not answered, and cannot read."""
    context = chromium.new_context()
    page = context.new_page()
    page.route(
        "http://elsewhere.example/**", lambda route: route.fulfill(body="<h1>elsewhere</h1>", content_type="text/html")
    )
    page.goto("http://elsewhere.example/")
    statuses = []
    page.on("response", lambda reply: statuses.append(reply.status) if reply.url.startswith(server.address) else None)
    outcome = page.evaluate(
        """async (address) => {
            const told = [() => "answered", () => "blocked"];
            const sent = await fetch(address + "table", { method: "POST", body: "[0]" }).then(...told);
            const picture = new Image();
            picture.src = address + "picture/0";
            return [sent, await picture.decode().then(...told)];
        }""",
        server.address,
    )
    assert outcome == ["blocked", "blocked"] and set(statuses) <= {403}
    context.close()


# --- any screen ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["1280", "390"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen(viewport, scheme, open_page):
    page = open_page(viewport, color_scheme=scheme, has_touch=viewport is NARROW)
    ask(page, 3)
    page.wait_for_selector("#twins img")
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    cut = page.locator("button, input:not(.unseen), canvas, img").evaluate_all(
        """(all) => all.map((one) => one.getBoundingClientRect())
              .filter((box) => box.width && (box.left < -1 || box.right > innerWidth + 1)).length"""
    )
    assert cut == 0
    small = page.locator("button:visible").evaluate_all("(all) => all.filter((one) => one.offsetHeight < 24).length")
    assert small == 0
    sides = page.locator(".encoder").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().top)")
    assert (sides[0] == sides[1]) == (viewport is WIDE)


def test_a_finger_asks_and_draws_a_lasso(open_page):
    page = open_page(NARROW, has_touch=True)
    page.touchscreen.tap(*place_of(page, 5))
    until(page, "location.hash === '#5'")
    assert page.locator(".marks").evaluate("(one) => getComputedStyle(one).touchAction") == "pan-y pinch-zoom"
    page.locator("label", has_text="lasso").click()
    assert page.locator(".marks").evaluate("(one) => getComputedStyle(one).touchAction") == "none"


def test_without_classes_and_twins_the_page_has_neither(open_page, explorer, tmp_path):
    for row in (0, 1):
        shutil.copy(explorer.album.rows[row].path, tmp_path)
    with serving(opened("timm/test_resnet", tmp_path, weights="random")) as other:
        page = open_page(address=other.address)
        assert page.locator(".encoder").count() == page.locator(".near button").count() == 1
        assert page.locator("#filter input").count() == page.locator(".marks").count() == 0
        assert page.locator("#twins").is_hidden() and "no decoder" in page.locator("#foot").inner_text()
        assert "three images or more" in page.locator("#map").inner_text()


def test_long_names_are_broken_and_their_folders_not_told(open_page, explorer, tmp_path):
    """A weights file as people have them, images of classes as people call them."""
    name = "an_encoder_with_a_long_name_" * 4
    weights, images = tmp_path / f"{name}.safetensors", tmp_path / "photos"
    shutil.copy(Path(explorer.album.rows[0].path).parents[2] / "first.safetensors", weights)
    for row in range(4):
        folder = images / f"{row % 2}_{name}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(explorer.album.rows[row].path, folder / f"{row}_{name}.png")
    with serving(opened(weights, images)) as other:
        page = open_page(NARROW, address=other.address)
        assert name in page.locator("#foot").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") == NARROW["width"]
        assert str(tmp_path) not in page.content()


def test_a_server_that_is_gone_is_told(open_page):
    page = open_page()
    page.context.set_offline(True)
    page.locator("#any").click()
    assert "is it still running" in alert(page)
