"""The page without a browser: nothing from outside, every number as it was given, any name, any size."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from hashlib import sha256
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from contents_for_reports import (
    HOSTILE,
    NAMES,
    birds,
    some_flock,
    some_pairs,
    some_panels,
    some_ranking,
    some_report,
    some_spreads,
)
from PIL import Image
from scipy.integrate import trapezoid

from wingbar.show.figures.contents import Curve, Panel
from wingbar.show.report.contents import Figures
from wingbar.show.report.figures import MOST_POINTS, flocks_json, make_sheet, pairs_json
from wingbar.show.report.page import make_page, panel_json, plain, report_json, spreads_json
from wingbar.terminal import printable


class Reader(HTMLParser):
    """Elements with their attributes, and the texts of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.inside = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, text):
        if self.inside in self.texts:
            self.texts[self.inside][-1] += text


@pytest.fixture(scope="module")
def report():
    return some_report()


@pytest.fixture(scope="module")
def page(report):
    return make_page(report)


@pytest.fixture(scope="module")
def read(page):
    return Reader(page)


def embedded(page: str) -> dict:
    return json.loads(Reader(page).texts["script"][0])


# --- nothing from outside --------------------------------------------------------------------------------------------


def test_nothing_is_loaded_from_anywhere(read):
    for tag, attributes in read.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")), f"<{tag} {name}={target}>"
        assert tag not in ("iframe", "object", "embed", "base", "form")
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes)
    assert "@import" not in read.texts["style"][0] and "url(" not in read.texts["style"][0]
    assert not re.search(
        r"fetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(|innerHTML|eval\(", read.texts["script"][1]
    )


def test_policy_allows_our_style_and_script_only(read):
    policy = next(each["content"] for tag, each in read.elements if each.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    digests = {
        kind: "'sha256-" + base64.b64encode(sha256(text.encode()).digest()).decode() + "'"
        for kind, text in (("style-src", read.texts["style"][0]), ("script-src", read.texts["script"][1]))
    }
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    assert {kind: rules[kind] for kind in digests} == digests


def test_names_that_look_like_code_stay_names(page, read, report):
    assert [tag for tag, _ in read.elements].count("script") == 2
    assert HOSTILE not in page and "<!--" not in page
    assert read.texts["title"][0].startswith(f"MoCo v2 + pairs on {HOSTILE}")
    data = embedded(page)
    assert data["title"] == report.title and data["flocks"]["maps"][0]["classes"] == [*map(printable, NAMES)]
    assert data["settings"][2]["values"] == [HOSTILE, HOSTILE]


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_every_number_of_a_table_is_the_one_that_was_measured(page, report):
    data = embedded(page)
    metrics = [metric["name"] for metric in data["scores"]["metrics"]]
    for row, scored in zip(data["scores"]["rows"], report.scored, strict=True):
        for metric, cell in zip(metrics, row["cells"], strict=True):
            score = scored.scores[metric]
            assert (cell["value"], cell["low"], cell["high"]) == tuple(score.interval)
            assert cell["text"] == str(score.interval) and cell["paper"] == scored.paper.get(metric)
            assert math.isclose(cell["value"], score.values.double().mean(), abs_tol=1e-12)


def test_runs_that_differ_in_their_seed_have_a_mean(report):
    data = report_json(some_report(seeds=[("try-moco", "try-synth")]))["scores"]
    place = [metric["name"] for metric in data["metrics"]].index("linear")
    values = [row["cells"][place]["value"] for row in data["rows"]]
    assert data["rows"][3]["name"] == "mean of 2 seeds: try-moco, try-synth"
    assert values[3] == pytest.approx((values[1] + values[2]) / 2)
    half = 12.706 * abs(values[1] - values[2]) / 2  # Student's t of one degree of freedom
    assert data["rows"][3]["cells"][place]["high"] == pytest.approx(values[3] + half, rel=1e-3)


def test_paired_tests_are_of_every_two_encoders(page, report):
    tests = embedded(page)["tests"]
    assert len(tests) == 3 * len(report.scored[0].scores)
    for test in tests:
        first, second = (
            next(one for one in report.scored if one.name == test[side]).scores[test["metric"]].values.double()
            for side in ("first", "second")
        )
        assert math.isclose(test["value"], (second - first).mean(), abs_tol=1e-12)
        assert test["low"] <= test["value"] <= test["high"]


def test_curves_are_the_ones_that_were_given(page):
    for drawn, given in zip(embedded(page)["panels"], some_panels(), strict=True):
        for curve, own in zip(drawn["curves"], given.curves, strict=True):
            assert (curve["x"], curve["y"], curve["low"], curve["high"]) == (own.x, own.y, own.low, own.high)


def test_listed_values_of_x_have_names_and_places():
    panel = Panel("κ", "κ", "linear, %", [Curve("ours", [0.02, math.inf], [58.0, 57.0])], listed_x=True)
    drawn = panel_json(panel)
    assert drawn["x_names"] == ["0.02", "∞"] and drawn["curves"][0]["x"] == [0, 1]


@pytest.mark.parametrize("labelled", [True, False])
def test_densities_and_histogram_hold_all_images_and_dimensions(labelled):
    spreads = some_spreads(labelled=labelled)
    drawn = plain(spreads_json("a", spreads))
    assert sum(drawn["histogram"]["counts"]) == len(spreads.spreads) == drawn["dimensions"]
    assert drawn["below"] == sum(value < spreads.kappa for value in spreads.spreads.tolist())
    assert drawn["most"]["count"] == ([40, 30] if labelled else [40])
    for grid, density in zip(drawn["most"]["grid"], drawn["most"]["density"], strict=True):
        assert 0.8 < trapezoid(density, grid) <= 1.001  # without the tails beyond the images


def test_numbers_that_json_does_not_know_are_left_empty():
    pairs = some_pairs(2)._replace(psnr=torch.tensor([math.inf, 12.5]))
    assert plain(pairs_json("a", pairs))["psnr"] == [None, 12.5]
    make_page(some_report(figures=Figures(pairs={"a": pairs})))  # json.dumps refuses what is no JSON


# --- pictures --------------------------------------------------------------------------------------------------------


def test_tiles_are_where_the_page_looks_for_them():
    tiles = birds(7)
    sheet = make_sheet(tiles, side=48)
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet.source.split(",")[1]))))
    for number, tile in enumerate(tiles):
        row, column = divmod(number, sheet.columns)
        found = picture[row * 48 : row * 48 + 48, column * 48 : column * 48 + 48].astype(float)
        assert abs(found - tile.permute(1, 2, 0).numpy()).mean() < 6  # of 255: WebP loses a little


def test_large_tiles_are_shrunk_and_small_ones_left():
    assert make_sheet(birds(2), side=24)[1:] == (2, 24, 24)
    assert make_sheet(birds(2), side=96)[1:] == (2, 48, 48)


def test_a_hundred_thousand_features_make_no_heavy_page():
    count = 100_000
    flock = some_flock(8)
    generator = torch.Generator().manual_seed(0)
    crowd = flock._replace(
        places=torch.randn(count, 2, generator=generator),
        label=torch.arange(count) % 5,
        thumbnail=torch.randint(256, (1, 3, 40, 40), dtype=torch.uint8, generator=generator).expand(count, -1, -1, -1),
        of=count,
    )
    drawn = plain(flocks_json([crowd, crowd]))["maps"][1]
    assert len(drawn["places"]) == len(drawn["label"]) == MOST_POINTS
    assert "2,000 of 100,000, drawn at random" in drawn["caption"]
    places = {tuple(float(f"{value:.5g}") for value in place) for place in crowd.places.tolist()}
    assert all(tuple(place) in places for place in drawn["places"])
    page = make_page(some_report(figures=Figures(flocks=[crowd, crowd])))
    assert len(page) < 15e6


def test_reports_without_labels_or_decoder_say_so():
    figures = Figures(
        spreads={"a": some_spreads(labelled=False)},
        ranking=some_ranking(labelled=False),
        flocks=[some_flock(20, labelled=False)],
        missing={"pairs": "a makes no pairs."},
    )
    data = report_json(some_report(figures=figures, scored=[], unscored="No labels."))
    assert data["scores"]["rows"] == data["tests"] == [] and data["unscored"] == "No labels."
    assert data["missing"] == {"pairs": "a makes no pairs."} and data["flocks"]["maps"][0]["label"] is None
    assert "nobody knows which are right" in data["ranking"]["caption"]


def test_maps_of_the_same_images_share_their_pictures():
    same, other = some_flock(20), some_flock(20)
    other = other._replace(thumbnail=255 - other.thumbnail)
    drawn = flocks_json([same, other, same])
    assert [flock["sheet"] for flock in drawn["maps"]] == [0, 1, 0] and len(drawn["sheets"]) == 2


def test_captions_say_which_images_are_shown():
    figures = Figures(pairs={"a": some_pairs(2)}, sampled={"pairs": "Shown: 2 of 600 test images."})
    assert report_json(some_report(figures=figures))["pairs"][0]["caption"].endswith("Shown: 2 of 600 test images.")


def test_names_that_are_no_text_are_shown_and_never_embedded(page):
    """A lone surrogate, raw or as an escape of JSON, ends Chromium's --dump-dom; an escape code steers a terminal."""
    page.encode("utf-8")
    embedded = json.dumps(json.loads(Reader(page).texts["script"][0]), ensure_ascii=False)
    assert not re.search("[\ud800-\udfff\x1b]", embedded)
    assert r"no text \\udcff \\x1b[2J" in embedded
