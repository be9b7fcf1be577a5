"""What is measured is the same work; what is written is what was measured."""

import json
import os
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch.distributed import TCPStore
from torch.testing import assert_close

from forked import FORKS
from wingbar.config.limits import check_together
from wingbar.config.recipes import recipe_named
from wingbar.config.sections import DataSettings as Settings
from wingbar.config.settings import Config, changed
from wingbar.errors import UserError
from wingbar.reproduce.bench import devices, memory, step, systems
from wingbar.reproduce.bench.command import CASES, SYSTEMS, BenchData, Step, Train, bench, check
from wingbar.reproduce.bench.data import bench_data, torchvision_views
from wingbar.reproduce.bench.literal import Pseudocode
from wingbar.reproduce.bench.step import bench_step, bench_train
from wingbar.reproduce.bench.table import BenchRow, bars, write_results
from wingbar.train import starting
from wingbar.train.stages import build_method
from wingbar.types import Batch

SMALL = {
    "data.size": 32,
    "data.batch": 4,
    "encoder.name": "timm/test_resnet",
    "encoder.weights": "random",
    "method.queue": 16,
    "pairs.bank": 16,
    "pairs.decoder.name": "tiny",
}


def method(**settings):
    return build_method(changed(Config(), {**SMALL, **settings})).train()


def batch() -> Batch:
    image, *views = torch.randn(3, 4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return Batch(image, tuple(views), torch.arange(4))


# --- the listing ------------------------------------------------------------------------------------------------------


def test_the_listing_computes_the_losses_of_its_recipe():
    """Base and reconstruction loss are those of our method when keys enter the queue before the loss."""
    ours = method(**{"method.enqueue": "before", "pairs.readings.encoder_bn": "shared"})
    theirs = Pseudocode(method(**{"method.enqueue": "before"}))
    expected, got = ours(batch()).losses, theirs(batch()).losses
    assert_close(got["base"], expected["base"])
    assert_close(got["rebuild"], expected["rebuild"])
    assert got["pair"].isfinite()


def passes(module, run) -> Counter:
    """How often the trained encoder runs, with and without a graph."""
    seen = Counter()
    hook = module.encoder.register_forward_hook(lambda m, i, out: seen.update([out.vector.requires_grad]))
    run(module)
    hook.remove()
    return seen


def test_ours_saves_one_pass_and_one_graph():
    forward = lambda module: module(batch())  # noqa: E731
    assert passes(Pseudocode(method()), forward) == {True: 6}
    assert passes(method(), forward) == {True: 4, False: 1}


def test_the_listing_is_a_method_that_trains():
    listing = Pseudocode(method())
    before = [parameter.clone() for parameter in listing.key_encoder.parameters()]
    names = {id(parameter) for group in listing.param_groups() for parameter in group.parameters}
    assert names == {id(parameter) for parameter in listing.parameters() if parameter.requires_grad}
    sum(listing(batch()).losses.values()).backward()
    with torch.no_grad():
        for parameter in listing.encoder.parameters():
            parameter.add_(1.0)
    listing.after_step([None])
    assert any(not torch.equal(a, b) for a, b in zip(before, listing.key_encoder.parameters(), strict=True))


# --- the clock --------------------------------------------------------------------------------------------------------


def test_warm_up_is_not_timed_and_the_median_counts(monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr(step.time, "perf_counter", lambda: now[0])

    def work(repeat: int) -> None:
        calls.append(repeat)
        now[0] += {0: 100.0, 1: 100.0}.get(repeat, 0.001 * repeat)

    timing = step.time_repeats(work, repeats=5, warmup=2, device=torch.device("cpu"))
    assert calls == list(range(7))
    assert timing.ms == pytest.approx(4.0) and timing.quartiles == pytest.approx((3.0, 5.0))
    assert timing.gigabytes is None and timing.per_second(8) == pytest.approx(2000)


# --- tables and pictures ----------------------------------------------------------------------------------------------

ROWS = [
    BenchRow("a <b>", {"images/s": 50.0, "GB": None}),
    BenchRow("c", {"images/s": 200.0}),
    BenchRow("d", {"seconds": 1.0}),
]


def test_results_are_read_back_as_they_were(tmp_path):
    write_results(tmp_path, "step", {"size": 32}, ROWS, drawn="images/s")
    kept = json.loads((tmp_path / "step.json").read_text())
    assert kept["rows"] == [{"name": row.name, **row.values} for row in ROWS]
    assert kept["options"] == {"size": 32} and kept["machine"]["torch"] == torch.__version__


def test_bars_are_as_long_as_their_values():
    picture = ElementTree.fromstring(bars("speed", ROWS, column="images/s"))
    widths = [float(bar.get("width")) for bar in picture.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(widths) == 2 and widths[1] == pytest.approx(4 * widths[0])
    assert "a <b>" in "".join(picture.itertext())


# --- the benchmarks, tiny ---------------------------------------------------------------------------------------------


def test_ratios_of_a_step_are_those_of_its_times(tmp_path):
    cases = ("listing, PyTorch's defaults", "ours", "ours, fast", "MoCo v2")
    rows = bench_step(Step("timm/test_resnet", size=32, batch=4, repeats=1, warmup=0, cases=cases, device="cpu"))
    values = {row.name: row.values for row in rows}
    assert tuple(values) == cases
    for name in cases:
        assert values[name]["× listing"] == pytest.approx(values[cases[0]]["ms"] / values[name]["ms"])
        assert values[name]["images/s"] == pytest.approx(4000 / values[name]["ms"])
    floor = 14 / 4 * values["MoCo v2"]["ms"]
    assert values["ours"]["share of floor"] == pytest.approx(floor / values["ours"]["ms"])


def test_every_case_is_a_recipe_that_can_be_built():
    for case in CASES.values():
        built = method(**case.settings)
        assert (Pseudocode(built) if case.listing else built).param_groups()


def test_an_unknown_case_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'ours'"):
        bench_step(Step(cases=("our",)))


def test_data_and_training_on_the_embedded_images():
    settings = Settings(size=32, stored=40, batch=8, images=16)
    rows = bench_data(BenchData(settings, files=16, processes=1, device="cpu"))
    assert len(rows) == 5 and all(row.values["images/s"] > 0 for row in rows)
    ready, again, moco = bench_train(
        Train(settings, encoder="timm/test_resnet", recipes=("moco",), steps=20, device="cpu")
    )
    assert ready.values["images"] == again.values["images"] == 16
    assert moco.values["share"] == pytest.approx(moco.values["images/s"] / moco.values["images/s, random images"])


def test_torchvisions_view_is_a_normalised_square():
    from PIL import Image

    view = torchvision_views(24)(Image.new("RGB", (40, 30), (255, 0, 0)))
    assert view.shape == (3, 24, 24) and view.dtype == torch.float32 and view.abs().max() < 3


def test_the_command_writes_where_it_is_told(tmp_path, capsys):
    size = ["--encoder.name", "timm/test_resnet", "--data.size", "32", "--data.batch", "4", "--device", "cpu"]
    small = [*size, "--repeats", "1", "--warmup", "0", "--cases"]
    bench(["step", *small, "MoCo v2", "--out", str(tmp_path / "new")])
    assert "MoCo v2" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"step.json", "step.svg"}
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        bench(["step", *small, "MoCo v2", "--out", str(tmp_path / "file")])
    with pytest.raises(UserError, match="did you mean 'step'"):
        bench(["stepp"])
    with pytest.raises(SystemExit):
        bench([])
    assert "step | data | train" in capsys.readouterr().out


# --- systems ----------------------------------------------------------------------------------------------------------


def test_systems_are_held_against_moco_with_heads_and_without_and_none_ends_the_others(monkeypatch):
    """Of 4 passes in 50 ms, heads 10: 10 ms each. A system of 8 in 130, heads 30, needs 12.5; with heads 16.25."""

    def timed(config, *, repeats, warmup):
        if config.method.name == "diet":
            raise RuntimeError("no such kernel")
        passes, whole, heads = (8, 130.0, 30.0) if config.method.name == "byol" else (4, 50.0, 10.0)
        timing = lambda ms: step.Timing(ms, (ms, ms), None)  # noqa: E731
        return systems.Timed(timing(whole), timing(heads), passes)

    monkeypatch.setattr(systems, "timed", timed)
    heard: list[str] = []
    rows = systems.bench_systems(Step(recipes=("diet", "byol")), tell=heard.append)
    assert [row.name for row in rows] == ["moco", "diet", "byol"]
    assert heard == ["moco", "diet", "diet failed: RuntimeError: no such kernel", "byol"]
    moco, diet, byol = (row.values for row in rows)
    assert moco["share of MoCo's pace"] == moco["share, with heads"] == 1 and not diet
    assert byol["share of MoCo's pace"] == pytest.approx(0.8)
    assert byol["share, with heads"] == pytest.approx(12.5 / 16.25)


def test_a_step_without_the_encoders_work_is_the_same_step():
    """Maps and vectors of all sizes stay as large as they were, in student and teacher, and the step is made."""
    size = {"data.size": 64, "data.local_size": 32, "data.local": 2, "encoder.name": "timm/test_resnet"}
    config = changed(recipe_named("dino-small"), {**size, "encoder.weights": "random", "data.batch": 4})
    full, idle = build_method(config), systems.without_work(build_method(config))
    for one, other in ((full.encoder, idle.encoder), (full.teacher_encoder, idle.teacher_encoder)):
        for image in (torch.rand(2, 3, 64, 64), torch.rand(2, 3, 32, 32)):
            assert [part.shape for part in one(image)] == [part.shape for part in other(image)]
        assert sum(weights.numel() for weights in other.parameters()) == 3 * full.encoder.dim + full.encoder.dim
    found = systems.timed(changed(config, {"run.device": "cpu"}), repeats=1, warmup=1)
    assert found.passes == 12.4 and found.heads.ms > 0 < found.whole.ms


def test_every_system_can_be_timed():
    """Each is a recipe with a step of its own: none of those that change views alone."""
    for name in SYSTEMS:
        assert all(part.entry.build for part in recipe_named(name).wrappers), name


# --- memory and ranks -------------------------------------------------------------------------------------------------


def test_memory_is_what_the_allocator_says_by_method_and_batch(monkeypatch):
    """On a GPU that is played: it counts images of the steps, and has no place for more than 8 at a time."""
    seen, trained = [], memory.stepper

    def limited(config):
        step = trained(config)
        if config.data.batch > 8:
            raise torch.OutOfMemoryError
        return lambda number: (seen.append(config.data.batch), step(number))

    monkeypatch.setattr(memory, "stepper", limited)
    monkeypatch.setattr(memory, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: seen.clear())
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: sum(seen) * 1e9)
    configs = list(memory._configs(Step("timm/test_resnet", size=32, device="cpu")))
    for _, config in configs:
        check_together(config)
    names = [name for name, _ in configs]
    assert names[-4::2] == ["MoCo v2 + pairs", "MoCo v2 + feature pairs"] and len(set(names)) == len(names)
    assert all(f"{name}, recomputed" in names for name in names[::2])
    simsiam = [one for one in configs if one[1].method.name == "simsiam" and not one[1].wrappers]
    monkeypatch.setattr(memory, "_configs", lambda options: simsiam)
    monkeypatch.setattr(memory, "STEPS", 2)
    rows = memory.bench_memory(Step(batches=(4, 16), device="cpu"))
    assert [row.name for row in rows] == ["SimSiam", "SimSiam, recomputed"]
    assert all(row.values == {"GB at 4": 4.0 * memory.STEPS, "GB at 16": None} for row in rows)


def test_a_method_that_fails_costs_no_other_its_row(monkeypatch):
    def broken(config):
        if config.run.recompute:
            raise RuntimeError("the driver is gone")
        return lambda number: None

    monkeypatch.setattr(memory, "stepper", broken)
    monkeypatch.setattr(memory, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2e9)
    said = list[str]()
    rows = memory.bench_memory(Step(batches=(4,)), tell=said.append)
    assert [row.values["GB at 4"] for row in rows] == [2.0, None] * (len(rows) // 2)
    assert "SimSiam: GB at 4 2.00" in said and "SimSiam, recomputed failed: the driver is gone" in said


def test_memory_of_a_cpu_is_what_tensors_had_at_a_time():
    """By hand: two megabytes and one, of which the first is gone when three more come, and what a caller keeps."""
    kept = list[torch.Tensor]()

    def work() -> None:
        first = torch.empty(2_000_000, dtype=torch.uint8)
        kept.append(torch.empty(1_000_000, dtype=torch.uint8))
        del first
        torch.empty(3_000_000, dtype=torch.uint8)

    assert memory.peak(work, torch.device("cpu")) == 4_000_000
    assert memory.peak(lambda: None, torch.device("cpu")) == 0


def test_the_memory_of_a_step_grows_with_its_batch_on_a_cpu(monkeypatch):
    simsiam = [
        one
        for one in memory._configs(Step("timm/test_resnet", size=32, device="cpu"))
        if one[1].method.name == "simsiam" and not one[1].wrappers
    ]
    monkeypatch.setattr(memory, "_configs", lambda options: simsiam)
    plain, recomputed = (row.values for row in memory.bench_memory(Step(batches=(8, 64), device="cpu")))
    assert 0 < plain["GB at 8"] < plain["GB at 64"] and recomputed["GB at 64"] < plain["GB at 64"]


def test_two_tables_are_two_commands():
    with pytest.raises(UserError, match="two tables"):
        check(Step(memory=True, distributed=True))


def forked(file, environment):
    os.environ.update(environment)
    devices.measure(file)


def test_ranks_are_timed_beside_one_process_and_lose_nothing(monkeypatch):
    """All but torch's launcher, in whose place processes are forked: importing everything four times takes long."""

    def launch(settings, program):
        def start(*words):
            file = words[-1]
            meeting = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
            count, where = settings.nproc_per_node, {"MASTER_ADDR": "localhost", "MASTER_PORT": str(meeting.port)}
            known = where | {"WORLD_SIZE": str(count), "TORCHELASTIC_USE_AGENT_STORE": "True"}
            made = [FORKS.Process(target=forked, args=(Path(file), known | {"RANK": str(n)})) for n in range(count)]
            for process in made:
                process.start()
            for process in made:
                process.join(timeout=120)
            assert [process.exitcode for process in made] == [0] * count

        return start

    monkeypatch.setattr(starting, "elastic_launch", launch)
    rows = devices.bench_distributed(Step("timm/test_resnet", size=32, batch=8, repeats=2, warmup=1, device="cpu"))
    assert [row.name for row in rows] == [
        "one process",
        "one process, through gloo, BatchNorm local",
        "two ranks, one device, gloo",
        "one process, through gloo",
    ]
    for row in rows:
        assert row.values["× plain"] == pytest.approx(row.values["ms"] / rows[0].values["ms"])
        assert row.values["loss apart, first"] <= row.values["loss apart, most"] < 1e-5
    assert [row.values["loss apart, most"] > 0 for row in rows] == [False, False, True, True]  # sums in another order


def test_ranks_that_fail_cost_the_others_no_row(monkeypatch):
    steps = {1: 15, 2: 10}  # by ranks: the slowest are timed the least

    def started(config, options, *, meets):
        assert options.repeats == steps[config.run.devices]
        if meets and config.run.devices == 1:
            raise RuntimeError("NCCL is not here")
        return devices.Ranked(2.0 * config.run.devices, [1.0] * options.repeats)

    monkeypatch.setattr(devices, "_started", started)
    said = list[str]()
    rows = devices.bench_distributed(Step(device="cpu"), tell=said.append)
    assert [row.values.get("× plain") for row in rows] == [1.0, None, 2.0, None]
    assert "one process, through gloo failed: NCCL is not here" in said
