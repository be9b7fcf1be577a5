"""Pictures have the size and the words they should; a file is whole or as it was."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from wingbar.errors import UserError
from wingbar.files import NotWritten
from wingbar.show.figures.cells import TextCell, draw_cells, draw_ladder, draw_pairs, laid_over
from wingbar.show.figures.contents import Ladder, Neighbourhood, Pairs, Ranking
from wingbar.show.figures.sheet import drawable, sheet, shortened
from wingbar.show.figures.style import DARK, LIGHT, THEMES, figure, save
from wingbar.show.neighbours import draw_ranking

SEED = torch.Generator().manual_seed(0)


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=SEED)


def flat(colour: tuple[int, int, int]) -> torch.Tensor:
    return torch.tensor(colour, dtype=torch.uint8)[:, None, None].expand(3, 8, 8)


def drawn(page, folder: Path) -> np.ndarray:
    (path,) = save(page, folder / "picture", ("png",))
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def text(page, folder: Path) -> str:
    (path,) = save(page, folder / "picture", ("svg",))
    return path.read_text(encoding="utf-8")


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    parts = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


# --- style -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", THEMES.values(), ids=THEMES)
def test_words_and_verdicts_are_readable_on_their_paper(style):
    def contrast(colour: str) -> float:
        light, dark = sorted((luminance(colour), luminance(style.paper)), reverse=True)
        return (light + 0.05) / (dark + 0.05)

    assert contrast(style.ink) > 7 and contrast(style.pale) > 4.5
    assert contrast(style.right) > 3 and contrast(style.wrong) > 3


def test_somebodys_own_matplotlibrc_changes_nothing_and_is_left_as_it_was(tmp_path):
    import matplotlib

    def draw() -> bytes:
        with figure(2.0, 1.0, DARK) as page:
            page.subplots().plot([0, 1], [0, 1], label="ε")
        return save(page, tmp_path / "curve", ("svg",))[0].read_bytes()

    plain = draw()
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.facecolor": "red"}):
        assert draw() == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    page = draw_cells([[TextCell(noise(3, 8, 8))]])
    (path,) = save(page, tmp_path / "a", ("png",))
    before = path.read_bytes()

    def full(self: Path, content: bytes) -> None:
        self.touch()
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(NotWritten, match=r"a\.png could not be written: No space"):
        save(draw_cells([[TextCell(noise(3, 8, 8))]]), tmp_path / "a", ("png", "svg"))
    assert [found.name for found in tmp_path.iterdir()] == ["a.png"] and path.read_bytes() == before


def test_without_matplotlib_there_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="pip install matplotlib"), figure(1.0, 1.0, LIGHT):
        pass


# --- layout ----------------------------------------------------------------------------------------------------------


def test_pictures_stand_in_their_places(tmp_path):
    red, blue = (255, 0, 0), (0, 0, 255)
    page = draw_cells([[TextCell(flat(red)), TextCell(flat(blue))]] * 3, side=0.5)
    pixels = drawn(page, tmp_path)
    assert pixels.shape[1::-1] == tuple(round(200 * inches) for inches in page.get_size_inches())
    for colour in (red, blue):
        assert (pixels == colour).all(axis=2).sum() == pytest.approx(3 * 100 * 100, rel=0.03)
    assert np.argwhere((pixels == red).all(axis=2))[:, 1].max() < np.argwhere((pixels == blue).all(axis=2))[:, 1].min()


def test_an_outline_follows_its_region(tmp_path):
    inside = torch.zeros(16, 16)
    inside[4:12, 8:16] = 1  # touches the right border
    with sheet(1.0, 1.0, LIGHT) as (page, paper):
        paper.picture(flat((0, 128, 0)), 0.0, 0.0, 1.0, 1.0)
        paper.outline(inside, 0.0, 0.0, 1.0, 1.0)
    white = np.argwhere((drawn(page, tmp_path) > 240).all(axis=2)) / 200
    assert white.min(axis=0) == pytest.approx([0.25, 0.5], abs=0.03)
    assert white.max(axis=0) == pytest.approx([0.75, 1.0], abs=0.03)


def test_long_names_are_cut_and_strange_ones_drawn(tmp_path):
    cells = [
        [
            TextCell(noise(3, 8, 8), "a very long name of a file that ends in 0057.webp"),
            TextCell(noise(3, 8, 8), "$x$ \udcff"),
        ]
    ]
    shown = text(draw_cells(cells), tmp_path)
    assert "…" in shown and "57.webp" in shown and "a very long name of" not in shown and "$x$ �" in shown
    assert drawable("a\nb") == "a�b" and shortened("abc", len, 0.0) == "…"


def test_a_map_of_attention_leaves_the_image_to_be_seen():
    image = noise(3, 8, 8)
    mixed = laid_over(image, torch.full((8, 8), 0.7))[..., :3].mean(axis=2)
    assert np.corrcoef(mixed.flatten(), image.float().mean(dim=0).flatten())[0, 1] > 0.99
    dark, bright = (laid_over(image, torch.full((8, 8), level))[..., :3].mean() for level in (0.0, 1.0))
    assert bright > dark + 0.2


# --- figures ---------------------------------------------------------------------------------------------------------


def test_pairs_tell_their_numbers(tmp_path):
    change = torch.linspace(0, 0.25, 2 * 64).view(2, 8, 8)
    pairs = Pairs(
        ["a.png", "b.png"], *(noise(2, 3, 8, 8) for _ in range(3)), change, torch.tensor([17.26, 9.0]),
        torch.tensor([0.9999, 0.314]),
    )  # fmt: skip
    shown = text(draw_pairs(pairs, title="Pairs made by a", note="2 of 3 test images."), tmp_path)
    for words in ("PSNR 17.3 dB", "PSNR 9.0 dB", "99.9 % of dimensions", "31 % of", ">0.25<", "a.png", "2 of 3 test"):
        assert words in shown, words


def test_a_ladder_names_its_steps(tmp_path):
    ladder = Ladder("noise scale", ["×0", "×4"], noise(1, 3, 8, 8), noise(1, 2, 3, 8, 8), torch.tensor([[0.0, 0.0123]]))
    shown = text(draw_ladder(ladder), tmp_path)
    assert "ε ×0" in shown and "ε ×4" in shown and "0.0123" in shown
    assert "ε" not in text(draw_ladder(ladder._replace(kind="criterion")), tmp_path)


def test_right_and_wrong_differ_in_sign_and_colour(tmp_path):
    right = torch.tensor([[True, False, False]])
    found = Neighbourhood("a", noise(1, 3, 3, 8, 8), [["x", "y", "z"]], right, torch.tensor([[0.9, 0.8, 0.7]]))
    shown = text(draw_ranking(Ranking(noise(1, 3, 8, 8), ["x"], [found]), LIGHT), tmp_path)
    body = shown[: shown.index("✓, solid")]
    assert body.count("✓") == 1 and body.count("✗") == 2 and "1 of 3 right" in shown and "0.900" in shown
    assert shown.count("stroke-dasharray") == 2 and shown.count(LIGHT.right) >= 2 and shown.count(LIGHT.wrong) >= 4
    unlabelled = Ranking(noise(1, 3, 8, 8), ["x"], [found._replace(right=None)])
    assert "✓" not in text(draw_ranking(unlabelled, LIGHT), tmp_path)
