"""`wingbar data pick`: centroids, rounds and their end against slow twins; what overlaps; an end in between."""

from __future__ import annotations

import csv
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.cluster import KMeans
from torch import Generator, Tensor
from torch.testing import assert_close

from wingbar.cli import main
from wingbar.data.readers import read
from wingbar.models.embedder import open_embedder
from wingbar.models.trunks import build_encoder
from wingbar.models.weights import save_encoder
from wingbar.use import coreset, openset, pick
from wingbar.use.coreset import centroids, choose, lloyd, rounds

# --- the algorithm ---------------------------------------------------------------------------------------------------


def unit_points(count: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(count, 5, generator=Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(drawn + 2 * torch.eye(5, dtype=torch.float64)[torch.arange(count) % 5])


def test_lloyd_is_scikit_learns():
    points = unit_points(80)
    start = points[:5]
    expected = KMeans(5, init=start.numpy(), n_init=1, max_iter=300, tol=0, algorithm="lloyd").fit(points.numpy())
    assert_close(lloyd(points, start), torch.from_numpy(expected.cluster_centers_))


def test_centroids_have_length_one_find_groups_and_are_the_points_where_these_are_few():
    points = unit_points(80)
    found = centroids(points, k=5)
    assert_close(found.norm(dim=1), torch.ones(5, dtype=torch.float64))
    assert sorted((found @ torch.eye(5, dtype=torch.float64)).argmax(dim=1).tolist()) == [0, 1, 2, 3, 4]
    assert torch.equal(centroids(points, k=80), points) and torch.equal(centroids(points[:3], k=100), points[:3])
    assert centroids(torch.ones(9, 4) / 2, k=3).shape == (3, 4)  # fewer different points than centroids


def slow_rounds(similarity: np.ndarray, free: set[int]) -> list[list[tuple[int, float]]]:
    """In every round the best pair of a centroid and an image, again and again, both gone when they are a pair."""
    found, free = [], set(free)
    while free:
        waiting, taken = set(range(similarity.shape[1])), []
        while waiting and free:
            value, row, centroid = max(
                (similarity[row, centroid], row, centroid) for row in free for centroid in waiting
            )
            waiting.remove(centroid)
            free.remove(row)
            taken.append((row, value))
        found.append(taken)
    return found


def test_rounds_are_those_of_a_slow_twin(monkeypatch):
    monkeypatch.setattr(coreset, "AT_ONCE", 4)  # so that candidates run out and are looked up again
    similarity = torch.rand(41, 6, generator=Generator().manual_seed(3), dtype=torch.float64)
    free = torch.ones(41, dtype=torch.bool)
    free[[4, 17]] = False
    expected = slow_rounds(similarity.numpy(), set(range(41)) - {4, 17})
    found = [list(zip(one.rows, one.similarity, strict=True)) for one in rounds(similarity, free)]
    assert found == expected
    assert [len(one) for one in found] == [6] * 6 + [3] and free.sum() == 39  # the mask that was given stays


def test_two_centroids_never_take_the_same_image():
    """In the original both would, and the round would hold one image."""
    similarity = torch.tensor([[0.9, 0.8], [0.5, 0.1], [0.2, 0.3]])
    first, second = rounds(similarity, torch.ones(3, dtype=torch.bool))
    assert first.rows == [0, 2] and second.rows == [1]
    assert_close(torch.tensor(first.similarity), torch.tensor([0.9, 0.3]))


def falling(count: int) -> Tensor:
    """One centroid, images less and less like it: round r takes image r."""
    return (1 - 0.01 * torch.arange(count, dtype=torch.float64))[:, None]


def test_it_ends_before_a_round_that_is_less_than_a_share_of_the_twentieth():
    """Round 20 has 0.81; 0.95 × that is 0.7695, which round 25 with 0.76 is the first to fall below."""
    similarity, free = falling(60), torch.ones(60, dtype=torch.bool)
    found = choose(similarity, free, budget=1000)
    assert [one.rows for one in found.rounds] == [[row] for row in range(24)] and "round 25" in found.end
    assert len(choose(similarity, free, budget=1000, stop=0.0).rounds) == 60
    steep = choose(falling(60) ** 50, free, budget=15)  # early rounds may fall as they like
    assert len(steep.rounds) == 15 and "budget" in steep.end


def test_the_budget_cuts_the_last_round_to_its_best():
    similarity = torch.rand(41, 6, generator=Generator().manual_seed(3))
    free = torch.ones(41, dtype=torch.bool)
    whole, cut = (choose(similarity, free, budget=budget) for budget in (41, 14))
    assert [len(one.rows) for one in cut.rounds] == [6, 6, 2] and cut.rounds[2].rows == whole.rounds[2].rows[:2]
    assert "no image is left" in choose(similarity, free, budget=99).end


# --- the command -----------------------------------------------------------------------------------------------------


def picture(seed: int, side: int = 128) -> Image.Image:
    noise = torch.rand(1, 3, 12, 12, generator=Generator().manual_seed(seed)) * 255
    large = torch.nn.functional.interpolate(noise, side, mode="bicubic").clamp(0, 255)[0]
    return Image.fromarray(large.permute(1, 2, 0).byte().numpy())


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A target of two splits, an open set that overlaps with both, and an encoder."""
    home = tmp_path_factory.mktemp("pick")
    for folder in ("target/train/a", "target/train/b", "target/test/a", "target/test/b", "open/deep"):
        (home / folder).mkdir(parents=True)
    for row in range(6):
        picture(row).save(home / "target" / "train" / "ab"[row % 2] / f"{row}.png")
    for row in (6, 7):
        picture(row).save(home / "target" / "test" / "ab"[row % 2] / f"{row}.png")
    for row in range(100, 118):
        picture(row).save(home / "open" / "deep" / f"{row}.png")
    (home / "open" / "copy.png").write_bytes((home / "target" / "train" / "a" / "2.png").read_bytes())
    picture(7).resize((120, 120)).save(home / "open" / "again.jpg", quality=90)  # of a test image
    (home / "open" / "twice.png").write_bytes((home / "open" / "deep" / "100.png").read_bytes())
    (home / "open" / "broken.png").write_text("no image")
    torch.manual_seed(0)
    save_encoder(build_encoder("timm/test_resnet"), home / "encoder.safetensors", size=32)
    return home


def words(home: Path, out: Path, *more: str) -> list[str]:
    encoder = ["--encoder", str(home / "encoder.safetensors"), "--k", "4", "--stop", "0", "--device", "cpu"]
    return ["data", "pick", str(home / "target"), str(home / "open"), "-o", str(out), *encoder, *more]


@pytest.fixture(scope="module")
def said(home) -> str:
    """What a whole pick says."""
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        main(words(home, home / "out" / "list.csv"))
    return text.getvalue()


@pytest.fixture(scope="module")
def whole(home, said) -> Path:
    return home / "out" / "list.csv"


@pytest.fixture
def undrawn(monkeypatch):
    """Nobody looks at the contact sheet: drawing it takes longer than everything else."""
    monkeypatch.setattr(pick, "draw_cells", lambda rows, *, title, names: None)
    monkeypatch.setattr(pick, "save", lambda page, stem, kinds: None)


def lines(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_what_is_written(home, whole):
    found, summary = lines(whole), json.loads(whole.with_suffix(".json").read_text())
    names = [Path(line["path"]).name for line in found]
    assert len(set(names)) == len(names) == 18 and not {"copy.png", "again.jpg", "broken.png"} & set(names)
    assert len({"100.png", "twice.png"} & set(names)) == 1
    assert [int(line["round"]) for line in found] == sorted([*range(1, 5)] * 4 + [5, 5])
    for number in range(1, 6):
        likeness = [float(line["similarity"]) for line in found if line["round"] == str(number)]
        assert likeness == sorted(likeness, reverse=True)
    pairs = {Path(one["open"]).name: Path(one["target"]).name for one in summary["overlap"]}
    assert pairs == {"copy.png": "2.png", "again.jpg": "7.png"}
    assert summary["open"] | {"path": ""} == {"path": "", "images": 22, "unreadable": 1, "repeated": 1}
    assert summary["picked"] == 18 and len(summary["rounds"]) == 5 and summary["target"]["images"] == 6
    with Image.open(whole.with_suffix(".png")) as sheet:
        assert sheet.width > 1000
    both = read("csv", whole.with_name("list-and-target.csv"), "train")
    assert len(both.names) == 24 and all(path.exists() for path in both.paths)


def test_similarities_are_cosines_with_centroids_of_the_training_images(home, whole, undrawn):
    """With as many centroids as images, these are the images, and a similarity is that of the most similar one."""
    out = home / "points" / "list.csv"
    main([*words(home, out, "--quiet", "--k", "100", "--budget", "3")])
    found = {Path(line["path"]).name: float(line["similarity"]) for line in lines(out)}
    files, others = openset.target_files(str(home / "target"))
    assert len(files) == 6 and len(others) == 2
    embedder = open_embedder(home / "encoder.safetensors").eval()
    paths = [home / "open" / "deep" / f"{number}.png" for number in range(100, 118)]
    parts = [openset._embedded(some, embedder, 5, 1)[:, :96] for some in (files, paths)]
    cosine = torch.nn.functional.cosine_similarity(parts[0][:, None], parts[1][None], dim=2)
    best = {f"{100 + row}.png": value for row, value in enumerate(cosine.amax(dim=0).tolist())}
    assert len(found) == 3
    for name, value in found.items():
        assert value == pytest.approx(best["100.png" if name == "twice.png" else name], abs=2e-6)


def test_an_end_in_between_costs_one_chunk_and_changes_nothing(home, tmp_path, monkeypatch, undrawn):
    """Features are kept chunk by chunk: the same command computes those that are missing, and no other."""
    monkeypatch.setattr(openset, "CHUNK", 6)  # also undisturbed: a picture's last bits know its batch
    monkeypatch.setenv("WINGBAR_CACHE", str(tmp_path / "undisturbed"))
    main(words(home, tmp_path / "whole", "--quiet"))
    monkeypatch.setenv("WINGBAR_CACHE", str(tmp_path / "cache"))
    compute, computed = openset._embedded, []

    def failing(paths, *settings):
        if len(computed) == 4:
            raise KeyboardInterrupt
        computed.append([path.name for path in paths])
        return compute(paths, *settings)

    monkeypatch.setattr(openset, "_embedded", failing)
    with pytest.raises(SystemExit) as stop:
        main(words(home, tmp_path / "out", "--quiet"))
    assert stop.value.code == 130 and not (tmp_path / "out").exists()
    again = []
    monkeypatch.setattr(openset, "_embedded", lambda paths, *rest: again.append(len(paths)) or compute(paths, *rest))
    main(words(home, tmp_path / "out", "--quiet"))
    assert len(computed) == 4 and again == [6, 4]  # two chunks of the target's 8, four of the 22 open files
    assert (tmp_path / "out" / "picked.csv").read_text() == (tmp_path / "whole" / "picked.csv").read_text()
    main(words(home, tmp_path / "out", "--quiet"))  # once more: everything is there
    assert again == [6, 4]


def test_it_says_what_was_left_out(said):
    assert "Picked 18 of 22 images in 5 rounds" in said and "no image is left" in said
    assert "2 open images are the target's and were left out" in said and "1 open files are no readable" in said


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"open": "target"}, "nothing is left to pick"),
        ({"out": "taken/list.csv"}, "no earlier pick left it"),
        ({"out": "open/deep/list.csv"}, "lies among the images"),
    ],
)
def test_mistakes_are_one_sentence(home, change, sentence, capsys):
    (home / "taken").mkdir(exist_ok=True)
    (home / "taken" / "list.csv").write_text("mine")
    asked = words(home, home / change.get("out", "new"), "--quiet")
    asked[3] = str(home / change.get("open", "open"))
    with pytest.raises(SystemExit) as stop:
        main(asked)
    refused = capsys.readouterr().err
    assert stop.value.code == 2 and sentence in refused and len(refused.splitlines()) == 1
    assert (home / "taken" / "list.csv").read_text() == "mine"
