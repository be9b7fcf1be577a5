"""What stages are made of: weaker colour, a slower encoder, features that are computed once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from wingbar.config.sections import VIEW_NAMES
from wingbar.config.settings import Config, changed, fitting
from wingbar.data.store import Store
from wingbar.data.views import VIEWS
from wingbar.train import machine
from wingbar.train.loop import train
from wingbar.train.machine import PAYS, choose_compile, is_compiled
from wingbar.train.stages import build_method, build_optimizers, build_stages, build_views, prepare, train_steps
from wingbar.types import Probe

CPU = torch.device("cpu")
SMALL = {
    "data.size": 32,
    "data.batch": 8,
    "encoder.name": "timm/test_resnet",
    "encoder.weights": "random",
    "method.queue": 32,
    "pairs.bank": 16,
    "pairs.decoder.name": "tiny",
    "pairs.decoder.epochs": 2,
    "run.device": "cpu",
}


def config(**settings) -> Config:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    chosen = changed(Config(), {name: given[name] for name in ("method.name", "wrappers") if name in given})
    return changed(chosen, fitting(SMALL, chosen) | given)


def images(count: int = 20) -> Store:
    generator = torch.Generator().manual_seed(0)
    return Store(
        torch.randint(256, (count, 3, 40, 40), dtype=torch.uint8, generator=generator),
        torch.rand(count, generator=generator) + 0.5,
    )


# --- views -----------------------------------------------------------------------------------------------------------


def test_without_colour_views_are_crops_of_the_image_in_its_own_colours():
    """A picture of one colour has views of that colour, blurred or not; with jitter most of them have another."""
    colour = torch.tensor([200, 90, 30], dtype=torch.uint8).view(1, 3, 1, 1).expand(16, 3, 40, 40)

    def spread(strength: float) -> torch.Tensor:
        views = build_views(config(data__colour=strength))(
            colour, torch.ones(16), None, torch.Generator().manual_seed(1)
        )
        return torch.cat(views).mean((2, 3)).std(0).max()

    assert spread(0.0) < 1e-4
    assert 0.05 < spread(0.25) < spread(1.0)


def test_full_colour_is_the_recipe_itself():
    (recipe, *_) = build_views(config()).recipes
    assert recipe.jitter == (0.4, 0.4, 0.4, 0.1) and recipe.grey_p == 0.2
    (half, *_) = build_views(config(data__colour=0.5)).recipes
    assert half == replace(recipe, jitter=(0.2, 0.2, 0.2, 0.05), grey_p=0.1)
    (sharp, *_) = build_views(config(data__blur=0.0)).recipes
    assert sharp == replace(recipe, blur_p=0.0)


# --- rates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, others", [("moco", {"projector"}), ("simsiam", {"projector", "predictor"})])
def test_the_encoder_alone_learns_at_its_share_of_the_rate(name, others):
    settings = config(method__name=name, optim__lr=0.1, optim__lr_rule="literal", optim__encoder=0.01)
    rates = {group["name"]: group["lr"] for group in build_optimizers(settings, build_method(settings)).groups}
    assert rates == {"encoder": pytest.approx(0.001), "decoder": 1e-4} | dict.fromkeys(others, 0.1)


def test_an_encoder_without_a_rate_stays_while_its_head_learns():
    settings = config(optim__encoder=0.0, wrappers=())
    method = build_method(settings)
    (stage,) = build_stages(settings, method, images(), CPU)
    before = {name: value.clone() for name, value in method.named_parameters()}
    train(method, stage.batches, stage.optimizers, stage.schedule, start=0, stop=2)
    moved = {name for name, value in method.named_parameters() if not torch.equal(value, before[name])}
    assert any(name.startswith("projector") for name in moved)
    assert not any(name.startswith("encoder") for name in moved)


# --- compilation -----------------------------------------------------------------------------------------------------


def test_a_training_that_is_too_short_to_gain_the_time_back_compiles_its_views_alone(monkeypatch):
    """CUB's 5,994 images in batches of 128: 20 epochs are 920 steps, 100 are 4,600; where a method is alone, all."""
    monkeypatch.setattr(machine, "choose_device", lambda name: torch.device("cuda"))
    short, long = (config(run__epochs=epochs, data__batch=128) for epochs in (20, 100))
    assert (train_steps(short, 5994), train_steps(long, 5994)) == (920, 4600)
    assert [choose_compile(one, steps=train_steps(one, 5994)) for one in (short, long)] == ["views", "on"]
    assert choose_compile(short) == choose_compile(short, steps=PAYS) == "on"
    assert choose_compile(config(run__compile="off"), steps=10**6) == "off"
    assert choose_compile(config(run__compile="on"), steps=1) == "on"


@pytest.mark.parametrize("asked, compiled", [("auto", False), ("views", False), ("on", True), ("off", False)])
def test_on_a_cpu_nothing_is_compiled_unless_asked_for(asked, compiled):
    settings = config(run__compile=asked)
    assert is_compiled(prepare(settings, build_method(settings), CPU, steps=10**6)) == compiled


# --- pairs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("centred", [True, False])
def test_centred_pairs_do_not_hear_of_what_all_images_share(centred):
    compare = build_method(config(pairs__centred=centred)).readings.pair_loss
    first, second = torch.randn(2, 6, 128, generator=torch.Generator().manual_seed(0)).double()
    assert torch.isclose(compare(first + 3, second + 3), compare(first, second)) == centred


def test_ranked_scores_spare_the_upper_half_of_dimensions_and_minmax_a_few():
    """Scores have a long tail. ReLU makes half of them 0, the others have ranks from 0.5 to 1: 0.375 on average."""
    second = torch.randn(8, 128, generator=torch.Generator().manual_seed(0))
    mean = {}
    for ranked in (False, True):
        method = build_method(config(pairs__ranked=ranked))
        feature = torch.randn(8, method.encoder.dim, generator=torch.Generator().manual_seed(1)).abs()
        mean[ranked] = method.criteria[0].importance(Probe(feature, method.project, lambda: second)).mean().item()
    assert mean[False] < 0.25 and mean[True] == pytest.approx(0.375, abs=0.05)


# --- decoder initialisation ------------------------------------------------------------------------------------------


def test_remembered_features_are_those_of_the_images():
    settings = config()
    stage, _ = build_stages(settings, build_method(settings), images(), CPU)
    for step in (0, 3):
        (batch,) = stage.batches(step)
        assert_close(stage.method.features()[batch.index], stage.method.embed(batch.image))


def test_with_remembered_features_the_decoder_becomes_the_same():
    """Up to rounding: batches are cut elsewhere."""

    def initialised(*, remember: bool) -> dict[str, torch.Tensor]:
        settings = config()
        method = build_method(settings)
        stage, _ = build_stages(settings, method, images(), CPU)
        stage.method.features = stage.method.features if remember else None
        train(stage.method, stage.batches, stage.optimizers, stage.schedule, start=0, stop=stage.steps)
        return dict(method.decoder.named_parameters())

    assert_close(initialised(remember=True), initialised(remember=False), rtol=1e-3, atol=1e-5)


def test_the_encoder_is_asked_once_per_image_and_not_at_all_when_training_goes_on():
    settings, asked = config(), []
    method = build_method(settings)
    stage, _ = build_stages(settings, method, images(), CPU)
    method.encoder.register_forward_hook(lambda part, args, out: asked.append(len(args[0])))
    assert not asked  # nothing before the first step: a run that is resumed later needs none of it
    train(stage.method, stage.batches, stage.optimizers, stage.schedule, start=0, stop=stage.steps)
    assert sum(asked) == 20 < stage.steps * settings.data.batch


def test_nothing_is_remembered_that_depends_on_the_batch_or_does_not_fit(monkeypatch):
    settings = config(pairs__readings__decoder_init_bn="batch")
    assert build_stages(settings, build_method(settings), images(), CPU)[0].method.features is None
    monkeypatch.setattr("wingbar.methods.pairs.MEMORY", 10)
    settings = config()
    assert build_stages(settings, build_method(settings), images(), CPU)[0].method.features is None


def test_every_name_of_views_makes_some():
    """The names are checked without torch, where the makers are not known."""
    assert set(VIEW_NAMES) == set(VIEWS)
    made = build_views(config(data__views="multicrop", data__local=3, data__local_size=32))
    shapes = [view.shape[-1] for view in made(images(4).images, images(4).aspect, None, torch.Generator())]
    assert shapes == [config().data.size] * 2 + [32] * 3
