"""Wherever the images lie, a batch has the same bits."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from PIL import Image

import wingbar
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import fitting
from wingbar.data import placement
from wingbar.data.batches import Batches
from wingbar.data.cache import cached
from wingbar.data.datasets import load
from wingbar.data.listing import Listing
from wingbar.data.memory import free_host_memory
from wingbar.data.ondisk import OnDisk
from wingbar.data.placement import ReadAhead, choose_placement, place
from wingbar.data.store import Files, Store, decode
from wingbar.data.walking import find_images
from wingbar.errors import UserError
from wingbar.train.progress import Bar

CPU = torch.device("cpu")
SIDE = 20
COUNT = 23


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    generator = torch.Generator().manual_seed(0)
    for number in range(COUNT):
        pixels = torch.randint(256, (30 + number, 40, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(folder / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def stores(photos, tmp_path_factory) -> dict[str, Store]:
    """The same images in memory, mapped, on disk and in their files."""
    paths, root, inside = find_images(photos), tmp_path_factory.mktemp("cache"), decode(find_images(photos), side=SIDE)
    return {
        "memory": inside,
        "mapped": cached(paths, side=SIDE, root=root),
        "disk": cached(paths, side=SIDE, root=root, read=OnDisk),
        "files": inside._replace(images=Files(paths, side=SIDE)),
    }


def batches(store: Store, **options: int) -> Batches:
    def view(images: torch.Tensor, aspect: torch.Tensor, index, generator: torch.Generator) -> tuple[torch.Tensor]:
        noise = torch.rand(images.shape, generator=generator, device=images.device)
        return (images * noise * aspect[:, None, None, None],)

    return Batches(store, view, lambda images, aspect: images.float(), size=6, **options)


def bits(made: Batches, steps: list[int]) -> list[bytes]:
    """Everything in the batches of these steps."""
    return [
        tensor.numpy().tobytes()
        for step in steps
        for part in made(step)
        for tensor in (part.image, *part.views, part.index)
    ]


@pytest.mark.parametrize("kind", ["memory", "mapped", "disk", "files"])
@pytest.mark.parametrize("where", ["auto", "device", "streamed"])
@pytest.mark.parametrize("workers", [1, 3])
def test_batches_are_the_same_wherever_images_lie(kind, where, workers, stores):
    """In order, as in training, and jumping about, as no reader ahead can foresee."""
    steps = [0, 1, 2, 3, 4, 11, 2, 2, 7, 6, 5, 0]
    plain, placed = stores["memory"], place(stores[kind], CPU, placement=where, workers=workers)
    for parts in (1, 2):
        assert bits(batches(placed, parts=parts), steps) == bits(batches(plain, parts=parts), steps)


def test_what_is_in_memory_or_mapped_stays_where_it_is(stores):
    for kind in ("memory", "mapped"):
        assert place(stores[kind], CPU).images.data_ptr() == stores[kind].images.data_ptr()
    for kind in ("disk", "files"):
        assert isinstance(place(stores[kind], CPU).images, ReadAhead)
    assert torch.equal(place(stores["files"], CPU, placement="device").images, stores["memory"].images)


def test_more_than_one_chunk_is_copied_whole(stores, monkeypatch):
    monkeypatch.setattr(placement, "CHUNK", 7)
    assert torch.equal(place(stores["files"], CPU, placement="device").images, stores["memory"].images)


class Watched:
    """Images that remember who read which rows."""

    def __init__(self, images: torch.Tensor) -> None:
        self.images, self.read, self.shape = images, [], images.shape

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: torch.Tensor) -> torch.Tensor:
        self.read.append((threading.current_thread(), rows.tolist()))
        return self.images[rows]


def test_coming_steps_are_read_ahead_once_and_by_others(stores):
    watched = Watched(stores["memory"].images)
    made = batches(place(stores["memory"]._replace(images=watched), CPU, placement="streamed", workers=1))
    made(0)
    reader = made.store.images
    for part in [part for parts in reader.announced.values() for part in parts]:
        part.result()
    order = [row for step in range(3) for part in batches(stores["memory"])(step) for row in part.index.tolist()]
    assert [row for _, rows in watched.read for row in rows] == order, "this step and two more"
    made(1)
    made(2)
    assert len(reader.announced) == 2
    for part in [part for parts in reader.announced.values() for part in parts]:
        part.result()
    assert len(watched.read) == 5 and threading.main_thread() not in {thread for thread, _ in watched.read}


def test_what_goes_wrong_in_a_reader_is_raised_where_it_matters(photos, tmp_path):
    paths = [tmp_path / "gone.png", *find_images(photos)]
    reader = ReadAhead(Files(paths, side=SIDE), CPU, workers=2)
    reader.expect([torch.tensor([0, 1]), torch.tensor([2, 3])])
    assert torch.equal(reader[torch.tensor([2, 3])], Files(paths, side=SIDE)[torch.tensor([2, 3])])
    with pytest.raises(UserError, match=r"gone\.png"):
        reader[torch.tensor([0, 1])]


# --- what fits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "on_device, on_host, chosen",
    [(6000, 0, "device"), (5999, 8192, "pinned"), (5999, 8191, "streamed"), (0, 0, "streamed")],
)
def test_the_first_memory_with_twice_the_room_is_chosen(on_device, on_host, chosen, monkeypatch):
    """3,000 bytes of images; pinned memory comes in powers of two, 4,096."""
    monkeypatch.setattr(placement, "free_device_memory", lambda device: on_device)
    monkeypatch.setattr(placement, "free_host_memory", lambda: on_host)
    images = torch.zeros(1000, 3, 1, 1, dtype=torch.uint8)
    assert choose_placement(images, torch.device("cuda")) == chosen


def test_pinned_memory_is_for_cuda(stores):
    with pytest.raises(UserError, match=r"data\.placement pinned .* use auto"):
        place(stores["memory"], CPU, placement="pinned")


def write(path: Path, text: str | int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.mark.parametrize("place_of_group", ["sys/fs/cgroup", "sys/fs/cgroup/slurm/job"], ids=["container", "job"])
def test_the_limits_of_a_container_count(place_of_group, tmp_path):
    """8 GB free on the machine; the group may have 3 GB and holds 2, of which 0.5 are page cache."""
    group = tmp_path / place_of_group
    write(tmp_path / "proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB")
    write(tmp_path / "proc/self/cgroup", "0::/slurm/job")
    assert free_host_memory(tmp_path) == 8000000 * 1024
    write(group / "memory.max", "max")
    assert free_host_memory(tmp_path) == 8000000 * 1024
    write(group / "memory.max", 3 * 10**9)
    write(group / "memory.current", 2 * 10**9)
    write(group / "memory.stat", f"anon {15 * 10**8}\nfile_mapped 7\nfile {5 * 10**8}")
    assert free_host_memory(tmp_path) == 15 * 10**8


def test_the_limits_of_an_old_container_count(tmp_path):
    write(tmp_path / "proc/meminfo", "MemAvailable: 8000000 kB")
    write(tmp_path / "proc/self/cgroup", "5:cpu:/a\n4:memory:/b\n0::/")
    group = tmp_path / "sys/fs/cgroup/memory/b"
    write(group / "memory.limit_in_bytes", 10**9)
    write(group / "memory.usage_in_bytes", 4 * 10**8)
    write(group / "memory.stat", f"cache 1\ntotal_cache {10**8}")
    assert free_host_memory(tmp_path) == 7 * 10**8


def test_this_machine_has_some_memory():
    assert 10**6 < free_host_memory() < 10**15


def test_more_than_half_the_memory_stays_on_disk(photos, tmp_path, monkeypatch):
    listing = Listing(photos, tuple(path.name for path in find_images(photos)))
    size = COUNT * 3 * SIDE * SIDE
    monkeypatch.setattr("wingbar.data.datasets.free_host_memory", lambda: 2 * size)
    assert isinstance(load(listing, side=SIDE).images, torch.Tensor)
    assert isinstance(load(listing, side=SIDE, cache=tmp_path).images, torch.Tensor)
    monkeypatch.setattr("wingbar.data.datasets.free_host_memory", lambda: 2 * size - 2)
    assert isinstance(load(listing, side=SIDE).images, Files)
    assert isinstance(load(listing, side=SIDE, cache=tmp_path).images, OnDisk)


# --- whole runs ------------------------------------------------------------------------------------------------------

SMALL = {
    "data.size": 32, "data.stored": 40, "data.batch": 8, "encoder.name": "timm/test_resnet",
    "encoder.weights": "random", "method.queue": 32, "pairs.bank": 16, "pairs.decoder.name": "tiny",
    "pairs.decoder.epochs": 1,
    "run.epochs": 2, "run.log_every": 1, "run.device": "cpu", "run.tensorboard": False,
}  # fmt: skip


def numbers(out: Path) -> list[dict[str, float]]:
    """The record without what depends on the clock."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "images_per_s"} for line in lines]


@pytest.fixture(scope="module")
def reference(photos, tmp_path_factory) -> Path:
    return wingbar.fit(photos, out=tmp_path_factory.mktemp("runs") / "auto", settings=SMALL).out


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("where", ["device", "streamed"])
def test_a_run_is_the_same_wherever_its_images_lie(where, cache, reference, photos, tmp_path):
    other = {**SMALL, "data.placement": where, "data.cache": cache, "data.workers": 2}
    assert numbers(wingbar.fit(photos, out=tmp_path / "run", settings=other).out) == numbers(reference)


@pytest.mark.parametrize("where", ["auto", "streamed"])
def test_nobody_trains_on_a_damaged_cache(where, photos, tmp_path, monkeypatch, capsys):
    """200 kB of zeros in the middle of 442, images 6 to 16: said, mended, and the numbers are as with a whole cache."""
    monkeypatch.setenv("WINGBAR_CACHE", str(tmp_path / "cache"))
    settings = {**SMALL, "data.stored": 80, "run.epochs": 1, "data.placement": where}
    settings = fitting(settings, recipe_named("moco"))
    whole = wingbar.fit(photos, out=tmp_path / "whole", recipe="moco", settings=settings)
    (held,) = (tmp_path / "cache").glob("*/images.u8")
    before = held.read_bytes()
    with held.open("r+b") as file:
        file.seek(len(before) // 2 - 100_000)
        file.write(bytes(200_000))
    capsys.readouterr()
    if where == "streamed":
        with pytest.raises(UserError, match="is not as it was written"):
            wingbar.fit(photos, out=tmp_path / "run", recipe="moco", settings=settings)
    wingbar.fit(photos, out=tmp_path / "run", recipe="moco", settings=settings)
    if where == "auto":
        assert "are made anew: 11 of its 23 images are not as they were written" in capsys.readouterr().err
    assert numbers(tmp_path / "run") == numbers(whole.out) and held.read_bytes() == before


class Stop(Exception):
    """Somebody pulls the plug."""


def test_a_run_goes_on_elsewhere(reference, photos, tmp_path, monkeypatch):
    """Interrupted with mapped images, it goes on streaming from the files."""

    def stop(line: dict[str, float]) -> None:
        if line["stage"] == "train" and line["step"] == 2:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(Bar, "tell", lambda bar, line: stop(line))
        with pytest.raises(Stop):
            wingbar.fit(photos, out=tmp_path / "run", settings={**SMALL, "run.save_minutes": 0})
    other = {"data.placement": "streamed", "data.cache": False, "data.workers": 1, "data.strict": True}
    wingbar.fit(photos, out=tmp_path / "run", settings={**SMALL, **other, "run.resume": True})
    assert numbers(tmp_path / "run") == numbers(reference)
