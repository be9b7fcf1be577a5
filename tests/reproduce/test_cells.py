"""What a cell is: the same key for the same numbers, another one for others; what it will take; what is kept of it."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import tyro
from small import command

from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config
from wingbar.errors import UserError
from wingbar.methods import METHODS, _entry
from wingbar.reproduce import cells, plan
from wingbar.reproduce.bench.step import Timing
from wingbar.reproduce.cells import Cell, Splits, find_splits, make_cell
from wingbar.reproduce.making import recorded_seconds
from wingbar.reproduce.options import Reproduce
from wingbar.reproduce.plan import estimated, make_plan
from wingbar.reproduce.results import append, read, read_values, write_values
from wingbar.reproduce.tables import FROZEN, SUPERVISED, TABLES, Row
from wingbar.train.shelf import DecoderShelf
from wingbar.train.stages import build_method

KEYS, RESULTS = Path(__file__).parent / "keys.json", Path(__file__).parents[2] / "results"
RESNET50 = "c6c2d4aeebef17b2e4cf01bc959b902a40a45d17becdd1a21a3aad1965c96ba0"
BENCH = Path(__file__).parents[2] / "docs" / "bench" / "h200-train.json"
OURS, INITIAL = Row("Ours", "default"), Row("ResNet50", FROZEN)


@pytest.fixture
def asked(tmp_path) -> Reproduce:
    return tyro.cli(Reproduce, args=command(tmp_path, epochs=4)[1:])


def cell(asked: Reproduce, *, row: Row = OURS, seed: int = 0, settings: tuple[str, ...] = ()) -> Cell:
    asked = replace(asked, set=(*asked.set, *settings))
    return make_cell(row, "lookalike", seed, asked, find_splits("lookalike", asked))


# --- the key ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["optim.lr=0.5", "pairs.nu=0.1", "run.precision=fp32", "data.images=48"])
def test_another_setting_is_another_cell(asked, setting):
    other = cell(asked, settings=(setting,))
    assert other.key != cell(asked).key and other.variant != cell(asked).variant
    assert other.config.run.out != cell(asked).config.run.out


@pytest.mark.parametrize(
    "setting", ["data.workers=3", "run.log_every=7", "run.device=cuda:1", "data.cache=false", "run.save_minutes=5"]
)
def test_what_changes_no_number_changes_no_key(asked, setting):
    assert cell(asked, settings=(setting,)).key == cell(asked).key


def test_a_seed_is_another_cell_of_the_same_variant(asked):
    assert cell(asked, seed=1).key != cell(asked).key
    assert cell(asked, seed=1).variant == cell(asked).variant


def test_a_row_is_known_by_its_settings_whatever_it_is_called(asked):
    same = Row("0.5", "default", {"pairs.nu": 0.5})
    assert cell(asked, row=same).config == cell(asked).config and cell(asked, row=same).key == cell(asked).key


def test_a_setting_that_is_added_later_leaves_earlier_cells_alone(asked, monkeypatch):
    """What is at its default does not count, or every new setting would orphan all results."""
    before, everything, usual = cell(asked).key, cells.named, cells.defaults
    monkeypatch.setattr(cells, "named", lambda config: everything(config) | {"data.invented": 1})
    monkeypatch.setattr(cells, "defaults", lambda config: usual(config) | {"data.invented": 1})
    assert cell(asked).key == before


def test_the_initialisation_depends_on_nothing_that_trains(asked):
    initial = cell(asked, row=INITIAL)
    assert initial.key == cell(asked, row=INITIAL, seed=3, settings=("optim.lr=9", "run.epochs=2")).key
    assert initial.key != cell(asked, row=INITIAL, settings=("data.size=64",)).key


def test_the_initialisation_is_no_trained_cell_even_if_nothing_is_set(asked):
    plain = replace(asked, set=("data.images=64",), encoder="resnet50", weights="random", epochs=None)
    keys = {cell(plain, row=row).key for row in (INITIAL, Row("Ours", "default"), Row("all", SUPERVISED))}
    assert len(keys) == 3


def test_other_numerics_are_other_cells(asked, monkeypatch):
    before = cell(asked).key
    monkeypatch.setattr("wingbar.reproduce.cells.NUMERICS", 0)
    assert cell(asked).key != before


def test_weights_are_known_by_their_content(asked, tmp_path):
    def key(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return cell(replace(asked, weights=str(tmp_path / name))).key

    assert key("a.pth", b"one") == key("b.pth", b"one") != key("c.pth", b"two")
    with pytest.raises(UserError, match=r"missing\.pth does not exist"):
        cell(replace(asked, weights=str(tmp_path / "missing.pth")))


def test_the_users_settings_do_not_overrule_the_rows(asked):
    row = Row("1.0", "default", {"pairs.nu": 1.0})
    assert cell(asked, row=row, settings=("pairs.nu=0.3", "pairs.alpha=2")).config.settings_of("pairs").nu == 1.0
    assert cell(asked, row=row, settings=("pairs.nu=0.3", "pairs.alpha=2")).config.settings_of("pairs").alpha == 2.0


def test_a_cell_that_two_tables_have_is_planned_once(asked):
    jobs = make_plan(replace(asked, tables=("main", "nu")))
    (shared,) = (job for job in jobs if len(job.places) == 2)
    assert shared.places == (("main", "Ours"), ("nu", "0.5"))
    assert len(jobs) == 4 + 4 - 1 and len({job.cell.config.run.out for job in jobs}) == len(jobs)


def test_every_table_can_be_planned(asked):
    for table, described in TABLES.items():
        jobs = make_plan(replace(asked, tables=(table,)))
        assert {job.places[0].row for job in jobs} == {row.name for row in described.rows if row.recipe != "not here"}


def test_what_was_measured_under_old_names_is_found_again(monkeypatch):
    """Keys of every row of every table as they were when `synth.on` was a setting, for made-up splits."""
    monkeypatch.setattr(cells, "roots", lambda asked: dict.fromkeys(cells.DATASETS, "/data"))
    places = json.loads(KEYS.read_text())
    assert len(places) > 100
    for place, recorded in places.items():
        table, _, rest = place.partition(": ")
        name, _, seed = rest.rpartition(", seed ")
        row = next(row for row in TABLES[table].rows if row.name == name)
        plain, splits = Reproduce(tables=(table,)), Splits("train", "test", 100)
        made = make_cell(row, TABLES[table].datasets[0], int(seed), plain, splits)
        now = {"key": made.key, "variant": made.variant, "folder": Path(made.config.run.out).name}
        assert now == {part: recorded[part] for part in now}, place


def test_every_cell_on_record_has_the_key_it_was_recorded_with(monkeypatch):
    """By the lines in results/, the weights known by their hash. The one that no row has any more was made by an older
    `moco-tuned`, and still has its key under those settings."""
    monkeypatch.setattr(cells, "roots", lambda asked: dict.fromkeys(cells.DATASETS, "/data"))
    monkeypatch.setattr(cells, "_weights", lambda given: RESNET50)
    found = {}
    for table in ("main", "sota", "tuned", "readings"):
        for line in map(json.loads, (RESULTS / f"{table}.jsonl").read_text().splitlines()):
            found[line["key"]] = (table, line["row"], line["seed"], line["split"])
    assert len(found) == 11
    earlier = {"cfe5e7435e93": {"method.kept": None, "method.momentum": 0.9998}}
    for key, (table, name, seed, split) in found.items():
        row = next(row for row in TABLES[table].rows if row.name == name)
        asked = Reproduce(tables=(table,), encoder="resnet50", weights="resnet50_imagenet1k.safetensors")
        row = row._replace(settings={**row.settings, **earlier.get(key, {})})
        assert make_cell(row, "cub200", seed, asked, Splits(split["train"], split["test"], 5994)).key == key, name


def test_a_raised_entry_orphans_its_own_results_only(asked, monkeypatch):
    before = {name: cell(asked, row=Row(name, name)).key for name in ("moco", "simsiam")}
    entry = replace(METHODS["simsiam"], numerics=2)
    monkeypatch.setattr(type(METHODS), "__getitem__", lambda self, name: entry if name == "simsiam" else _entry(name))
    after = {name: cell(asked, row=Row(name, name)).key for name in ("moco", "simsiam")}
    assert after["moco"] == before["moco"] and after["simsiam"] != before["simsiam"]


# --- what it will take -----------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_bench():
    (figure,) = json.loads((Path(plan.__file__).parent / "speed.json").read_text())
    bench = json.loads(BENCH.read_text())
    measured = {row["name"]: row["images/s"] for row in bench["rows"] if "images/s" in row}
    assert figure["gpu"] == bench["machine"]["gpu"] and figure["encoder"] == bench["options"]["encoder"]
    assert figure["images/s"] == pytest.approx(measured, rel=1e-3)


def on_an_h200(asked: Reproduce, recipe: str, monkeypatch) -> float:
    """Estimated seconds for a recipe with the paper's settings on a data set of CUB's size."""
    monkeypatch.setattr(plan, "gpu_name", lambda device: "NVIDIA H200")
    birds = cell(asked, row=Row("", recipe))._replace(config=recipe_named(recipe))
    return plan.remaining_seconds(birds._replace(splits=birds.splits._replace(images=5994)), {}, probe_epochs=100)


def test_an_estimate_is_near_what_was_measured(asked, monkeypatch):
    """docs/performance.md: CUB's 100 epochs take MoCo v2 145 s and the method 560 s, its decoder 163 s before."""
    probe = 5994 * 100 * 2 / (4046.8 * 4)
    assert on_an_h200(asked, "moco", monkeypatch) == pytest.approx(148 + probe, rel=0.02)
    whole = on_an_h200(asked, "default", monkeypatch)
    assert 560 + 163 < whole < 1.2 * (560 + 163) + probe


def test_other_seeds_tell_best(asked, monkeypatch):
    lines = {"x": {"gpu": None, "train_seconds": 100.0, "evaluate_seconds": 11.0}}
    assert plan.remaining_seconds(cell(asked), lines, probe_epochs=2) == 111.0


def test_an_unknown_machine_is_timed(asked, monkeypatch):
    """4 images in 2 s at 14 passes each are 28 passes a second."""
    plan.TIMED.clear()
    monkeypatch.setattr(plan, "time_step", lambda config, **options: Timing(2000.0, (2000.0, 2000.0), None))
    passes = 24 * (2 * 1 + 14 * 4) + 24 * 2 * 2  # decoder, training, probe
    assert plan.remaining_seconds(cell(asked), {}, probe_epochs=2) == pytest.approx(passes / 28)


def test_what_is_done_need_not_be_done_again(asked, monkeypatch):
    lines = {"x": {"gpu": None, "train_seconds": 60.0, "evaluate_seconds": 10.0}}
    begun = cell(asked)
    out = Path(begun.config.run.out)
    out.mkdir(parents=True)
    (out / "metrics.jsonl").write_text('{"stage": "train", "epoch": 2.0, "step": 10}\n{"stage": "tr')
    # of 2 decoder passes and 4 epochs of 14, the decoder and two epochs are done: 30 of 58
    assert plan.remaining_seconds(begun, lines, probe_epochs=2) == pytest.approx(60 * (1 - 30 / 58) + 10)


@pytest.fixture
def timed(monkeypatch):
    """A machine that makes 28 passes a second."""
    plan.TIMED.clear()
    monkeypatch.setattr(plan, "time_step", lambda config, **options: Timing(2000.0, (2000.0, 2000.0), None))
    monkeypatch.setattr(plan, "step_passes", lambda config: 14)
    yield
    plan.TIMED.clear()


def planned(asked: Reproduce, **options) -> dict[tuple[str, int], float]:
    asked = replace(asked, tables=("noise",), **options)
    return {(job.places[0].row, job.cell.seed): job.seconds for job in estimated(make_plan(asked), {}, asked)}


def test_a_decoder_that_several_cells_begin_with_is_planned_once(asked, timed):
    """24 images, one epoch of 2 passes: 48 passes, which only the first cell of every seed makes."""
    made, once = planned(asked, seeds=(0, 1)), 24 * 2 / 28
    for seed in (0, 1):
        first, *others = (made[name, seed] for name in ("Ours - Grad-CAM", "Ours - low-var", "Ours"))
        assert others == [pytest.approx(first - once)] * 2


@pytest.mark.parametrize("options", [{"jobs": 2, "device": ("cpu", "cpu")}, {"minutes": 9.0}], ids=["jobs", "minutes"])
def test_a_plan_counts_on_nothing_that_may_not_be(asked, timed, options):
    made = planned(asked, **options)
    assert made["Ours - Grad-CAM", 0] == made["Ours - low-var", 0] == made["Ours", 0]


def test_what_the_plan_says_begins_with_the_same_decoder_has_one_place_on_the_shelf(asked, tmp_path):
    asked = replace(asked, tables=("readings", "sota", "epsilon"), seeds=(0, 1))
    shelf, places = DecoderShelf(tmp_path, "images"), defaultdict(list)
    for job in make_plan(asked):
        if decoder := plan._decoder_of(job.cell):
            places[decoder].append(_place(shelf, job.cell.config))
    assert all(len(set(found)) == 1 for found in places.values())
    assert max(map(len, places.values())) > 15 and len(places) >= 2 * 5


def _place(shelf: DecoderShelf, config: Config) -> Path:
    method = build_method(config)
    return shelf.place(config, method.encoder, method.decoder)


def test_time_by_the_record_knows_no_pauses(asked, tmp_path):
    lines = [
        {"stage": "decoder", "step": 5, "images_per_s": 20.0},
        {"stage": "train", "step": 4, "images_per_s": 8.0},
        {"stage": "train", "step": 6, "images_per_s": 16.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert recorded_seconds(tmp_path, batch=8) == 5 * 8 / 20 + 4 * 8 / 8 + 2 * 8 / 16


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_lines_of_many_writers_stay_whole(tmp_path):
    path, text = tmp_path / "results" / "main.jsonl", "x" * 20_000

    def write(writer: int) -> None:
        for number in range(10):
            append(path, [{"key": f"{writer}", "metric": f"{number}", "text": text}])

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(line["key"], line["metric"]) for line in lines} == {(f"{a}", f"{b}") for a in range(8) for b in range(10)}
    assert len(lines) == 80 and all(line["text"] == text for line in lines)
    assert [each.name for each in path.parent.iterdir()] == ["main.jsonl"]


def test_a_half_line_harms_nobody_and_the_latest_counts(tmp_path):
    path = tmp_path / "main.jsonl"
    first = {"key": "a", "metric": "mAP", "variant": "b", "seed": 0, "value": 1, "low": 0, "high": 1.0}
    append(path, [first])
    with path.open("a") as file:
        file.write('{"key": "a", "metric": "rank-1", "va')
    damaged = [{**first, **change} for change in ({"value": "1"}, {"low": None}, {"seed": []}, {"metric": "failed"})]
    append(path, [{"name": "of another record", "rank-1": 1.0}, {**first, "value": 2}, *damaged])
    assert read(path) == {"a": {"mAP": {**first, "value": 2}}}
    assert read(tmp_path / "none.jsonl") == {}


def test_values_come_back_or_not_at_all(tmp_path):
    hits = torch.tensor([True, False])
    write_values(tmp_path, "a", {"rank-1": hits})
    (found,) = read_values(tmp_path, ["a"], "rank-1")
    assert torch.equal(found, hits)
    assert read_values(tmp_path, ["a", "b"], "rank-1") == [] == read_values(tmp_path, ["a"], "mAP")
