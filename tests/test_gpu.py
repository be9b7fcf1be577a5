"""What only a CUDA device can show: bf16, channels_last and torch.compile at full size; images in pinned memory."""

import pytest
import torch
from PIL import Image

from wingbar.config.settings import Config, changed
from wingbar.data.batches import Batches
from wingbar.data.cache import cached
from wingbar.data.ondisk import OnDisk
from wingbar.data.placement import ReadAhead, place
from wingbar.data.store import Files, Store
from wingbar.data.walking import find_images
from wingbar.train.loop import train
from wingbar.train.machine import choose_autocast
from wingbar.train.stages import build_method, build_stages

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = torch.device("cuda")


def losses_of(steps: int, **settings):
    """Loss terms of the first steps of a run at the paper's size, on smooth random images."""
    full = {"encoder.weights": "random", "wrappers": ("pairs",), "run.epochs": 10, **settings}
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
