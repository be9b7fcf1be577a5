"""What only a CUDA device can show: reduced precision and torch.compile at full size, pinned memory, a full GPU."""

import json
import signal
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

import wingbar
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config, changed, fitting
from wingbar.data.batches import Batches
from wingbar.data.cache import cached
from wingbar.data.ondisk import OnDisk
from wingbar.data.placement import ReadAhead, place
from wingbar.data.store import Files, Store
from wingbar.data.walking import find_images
from wingbar.errors import Interrupted, UserError
from wingbar.reproduce.bench.memory import peak
from wingbar.train import checkpoint, course
from wingbar.train.loop import train
from wingbar.train.machine import choose_autocast, memory_given_back
from wingbar.train.stages import build_method, build_stages

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = torch.device("cuda")


def losses_of(steps: int, **settings):
    """Loss terms of the first steps of a run at the paper's size, on smooth random images."""
    full = {"encoder.weights": "random", "wrappers": ("pairs",), "run.epochs": 10, "run.compile": "on", **settings}
    config = changed(Config(), full | ({"pairs.decoder.epochs": 0} if "pairs" in full["wrappers"] else {}))
    noise = torch.randn(256, 3, 256, 256, generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.avg_pool2d(noise, 17, stride=1, padding=8) * 900 + 128
    store = Store(smooth.clamp(0, 255).to(torch.uint8), torch.ones(256))
    (stage,) = build_stages(config, build_method(config), store, DEVICE)
    lines = []
    train(
        stage.method,
        stage.batches,
        stage.optimizers,
        stage.schedule,
        start=0,
        stop=steps,
        autocast=choose_autocast(config.run.precision, DEVICE),
        after=[
            lambda step, outputs: lines.append({key: float(loss.detach()) for key, loss in outputs[0].losses.items()})
        ],
    )
    return lines


@pytest.mark.parametrize("base", ["moco", "simsiam"])
def test_ten_steps_at_full_size_are_finite_and_start_like_fp32(base):
    """ResNet-50, 224 px, batch 128; bfloat16 has 8 bits, so terms agree to a few parts in a hundred."""
    name = {"method.name": base}
    fast = losses_of(10, **name)
    exact = losses_of(1, **name, **{"run.precision": "fp32", "run.compile": "off"})
    print(f"\n{base}\nbf16 + compile: {fast[0]} … {fast[-1]}\nfp32, eager:    {exact[0]}")
    assert len(fast) == 10 and all(torch.isfinite(torch.tensor(list(line.values()))).all() for line in fast)
    for term, value in exact[0].items():
        assert fast[0][term] == pytest.approx(value, rel=0.03, abs=0.01), term


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[str, Store]:
    """The same images in memory, mapped and in their files."""
    folder, generator = tmp_path_factory.mktemp("photos"), torch.Generator().manual_seed(0)
    for number in range(300):
        pixels = torch.randint(256, (64, 64, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(folder / f"{number:03d}.png", compress_level=1)
    paths = find_images(folder)
    root = tmp_path_factory.mktemp("cache")
    mapped = cached(paths, side=64, root=root)
    inside = mapped._replace(images=mapped.images.clone())
    return {
        "memory": inside,
        "mapped": mapped,
        "disk": inside._replace(images=OnDisk(next(root.glob("*/images.u8")), (300, 3, 64, 64))),
        "files": inside._replace(images=Files(paths, side=64)),
    }


@pytest.mark.parametrize("kind", ["memory", "mapped", "disk", "files"])
@pytest.mark.parametrize("where", ["auto", "device", "pinned", "streamed"])
def test_batches_are_the_same_wherever_images_lie(kind, where, stores):
    """While the device is busy and nobody waits for it: a buffer that was filled too early would show."""
    placed = place(stores[kind], DEVICE, placement=where, workers=3)
    held = placed.images.images if isinstance(placed.images, ReadAhead) else placed.images
    assert isinstance(placed.images, ReadAhead) == (where in ("pinned", "streamed"))
    assert where != "pinned" or held.is_pinned()
    assert where not in ("auto", "device") or held.is_cuda
    made = Batches(placed, lambda images, *others: (images,), lambda images, aspect: images.float(), size=50)
    truth, busy, right = stores["memory"].images.to(DEVICE), torch.randn(3000, 3000, device=DEVICE), []
    for step in [*range(60), 3, 90, 2]:
        (batch,) = made(step)
        for _ in range(3):
            busy = torch.tanh(busy @ busy)
        right.append((batch.views[0] == truth[batch.index]).all() & (batch.image == truth[batch.index]).all())
    assert torch.stack(right).all()


@pytest.mark.parametrize("wrapper", ["lcr", "sam"])
def test_where_a_compiled_encoder_looks_is_where_it_looks_uncompiled(wrapper):
    """Its map has a gradient of the loss, though a CUDA graph returns map and vector side by side."""
    around = {"wrappers": (wrapper,), "method.queue": 4096}
    fast, exact = losses_of(3, **around), losses_of(1, **around, **{"run.precision": "fp32", "run.compile": "off"})
    for term, value in exact[0].items():
        assert fast[0][term] == pytest.approx(value, rel=0.05, abs=0.01), term


# --- below: fp16, and a GPU that is too small -------------------------------------------------------------------------

FP16 = {
    "data.root": "lookalike",
    "data.images": 96,
    "data.size": 64,
    "data.stored": 64,
    "data.batch": 16,
    "encoder.weights": "random",
    "method.queue": 64,
    "run.epochs": 3,
    "run.precision": "fp16",
    "run.compile": "off",
    "run.doctor": 0,
    "run.log_every": 1,
    "run.save_minutes": 0.0,
    "run.tensorboard": False,
}


def test_losses_in_fp16_start_like_fp32():
    """11 bits where bf16 has 8; nothing is skipped at torch's first scale, and ten steps are finite."""
    half = losses_of(10, **{"run.precision": "fp16", "run.compile": "off"})
    exact = losses_of(1, **{"run.precision": "fp32", "run.compile": "off"})
    assert all(torch.isfinite(torch.tensor(list(line.values()))).all() for line in half)
    for term, value in exact[0].items():
        assert half[0][term] == pytest.approx(value, rel=0.01, abs=0.005), term


def test_fp16_skips_what_overflows_and_resumes_bit_for_bit(tmp_path, monkeypatch):
    """From a first scale that is too large: stopped in the middle of the steps that are skipped."""
    monkeypatch.setattr(torch.amp, "GradScaler", partial(torch.amp.GradScaler, init_scale=2.0**30))
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    fit = lambda name: wingbar.fit("lookalike", out=tmp_path / name, recipe="moco", settings=FP16)  # noqa: E731
    whole = fit("whole").out
    asked = iter([0] * 3 + [signal.SIGTERM])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(course, "stop_signals", lambda **_: nullcontext(lambda: next(asked, 0)))
        with pytest.raises(Interrupted):
            fit("cut")
    wingbar.resume(tmp_path / "cut")
    first, second = (checkpoint.read(tmp_path / name / "checkpoint.pt")[1] for name in ("whole", "cut"))
    print("\n", first["scale"])
    assert first["scale"] == second["scale"] and 2 <= first["scale"]["skipped"] < 18
    assert first["scale"]["scaler"]["scale"] == 2.0 ** (30 - first["scale"]["skipped"])
    assert (whole / "encoder.safetensors").read_bytes() == (tmp_path / "cut" / "encoder.safetensors").read_bytes()


@pytest.fixture
def small_gpu(monkeypatch):
    """This GPU, of which so many GB are there."""
    total = torch.cuda.get_device_properties(DEVICE).total_memory

    def shrink(gigabytes):
        own = torch.cuda.get_device_properties(DEVICE)
        about = SimpleNamespace(name="a small one", total_memory=int(gigabytes * 1e9), major=own.major, minor=own.minor)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
        torch.cuda.set_per_process_memory_fraction(gigabytes * 1e9 / total)

    yield shrink
    torch.cuda.set_per_process_memory_fraction(1.0)


def small_run(out, **settings):
    """Two steps at full size."""
    recipe = recipe_named("default")
    about = {
        **{"data.images": 256, "data.stored": 224, "encoder.weights": "random", "run.epochs": 1, "run.doctor": 0},
        **{"pairs.decoder.epochs": 0, "run.compile": "off", "run.tensorboard": False, **settings},
    }
    return wingbar.fit("lookalike", out=out, recipe="default", settings=fitting(about, recipe)).out


@pytest.mark.parametrize("gigabytes, precision", [(8, "fp16"), (12, "fp16"), (24, "bf16")])
def test_fit_finds_what_a_small_gpu_holds(gigabytes, precision, small_gpu, tmp_path):
    """It trains there; what was asked for does not, and would be told; nor do half as many passes, not recomputed."""
    wanted = {"run.precision": precision}
    with memory_given_back():
        needed = peak(lambda: small_run(tmp_path / "free", **wanted), DEVICE)
    small_gpu(gigabytes)
    with memory_given_back():
        out = small_run(tmp_path / "fitted", **wanted, **{"run.fit": "auto"})
    chosen = json.loads((out / "environment.json").read_text())["fit"]
    print(f"\n{gigabytes} GB, {precision}: {chosen}; as asked it needs {needed / 1e9:.1f} GB")
    assert needed > 0.9e9 * gigabytes and chosen != {"accumulate": 1, "recompute": False}
    with memory_given_back(), pytest.raises(UserError, match="does not fit this GPU"):
        small_run(tmp_path / "refused", **wanted, **{"run.accumulate": max(1, chosen["accumulate"] // 2)})
