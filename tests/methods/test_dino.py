"""DINO against lightly's loss and head, slow loops and closed forms; what is saved, frozen and resumed."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import torch
from lightly.loss import DINOLoss
from lightly.models.modules.heads import DINOProjectionHead
from lightly.utils.scheduler import cosine_schedule
from torch import Tensor, nn
from torch.testing import assert_close

from wingbar import changed, resume, run
from wingbar.config.recipes import recipe_named
from wingbar.config.settings import Config
from wingbar.errors import Interrupted, UserError
from wingbar.methods.dino import (
    DINO,
    DINOSettings,
    Taught,
    by_resolution,
    cross_view_entropy,
    sharpened,
    teacher_temperature,
)
from wingbar.models.embedder import embedder_of, open_embedder
from wingbar.models.trunks import build_encoder
from wingbar.models.weights import load_encoder, weights_hash
from wingbar.train import checkpoint, course
from wingbar.train.loop import train
from wingbar.train.optim import Rule, build_optimizers
from wingbar.train.stages import build_method, build_views
from wingbar.train.stages import build_optimizers as optimizers_of
from wingbar.types import Batch

K, DIM = 24, 8
SMALL = DINOSettings(prototypes=K, hidden=12, dim=DIM, momentum=0.9)
RUN = {
    **{"data.size": 32, "data.stored": 32, "data.batch": 4, "data.images": 8, "data.local": 2, "data.local_size": 48},
    **{"encoder.name": "timm/test_resnet", "encoder.weights": "random", "method.prototypes": K, "method.hidden": 12},
    **{"method.dim": DIM, "method.warming": 3, "method.teacher_temperature": 0.07, "optim.warmup": 0.0},
    **{"run.epochs": 3, "run.log_every": 1, "run.save_minutes": 0.0, "run.pictures_every": 0, "run.doctor": 0},
    **{"run.tensorboard": False, "run.device": "cpu"},
}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dino(name: str = "timm/test_resnet", settings: DINOSettings = SMALL, *, epochs: int = 1) -> DINO:
    torch.manual_seed(0)
    return DINO(build_encoder(name), settings, epochs=epochs)


def batch(seed: int = 0, *, sizes: tuple[int, ...] = (32, 32, 16, 16), images: int = 4, at: tuple[int, int] = (0, 1)):
    views = tuple(drawn(images, 3, size, size, seed=10 * seed + place) for place, size in enumerate(sizes))
    return Batch(drawn(images, 3, 32, 32, seed=seed), views, torch.arange(images), step=at[0], steps=at[1])


# --- the loss --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [2, 3, 10])
def test_the_loss_with_its_centre_and_the_next_centre_are_lightlys(views: int):
    teacher, student, centre = drawn(2, 5, K), drawn(views, 5, K, seed=1), drawn(K, seed=2)
    theirs = DINOLoss(output_dim=K, center_momentum=0.9)
    theirs.center.copy_(centre)
    expected = theirs(list(teacher), list(student), teacher_temp=0.05)
    target = sharpened(teacher, centre, temperature=0.05)
    assert_close(cross_view_entropy(target, student, temperature=0.1), expected, rtol=1e-5, atol=1e-6)
    method = dino()
    method.centre.copy_(centre)
    method.after_step([Taught(0.9, one.mean(dim=0)) for one in teacher])  # as two accumulated parts of a step
    assert_close(method.centre, theirs.center.flatten())


def test_pairs_of_views_are_those_of_a_slow_loop():
    teacher, student, centre = (drawn(*shape).double().numpy() for shape in ((2, 3, K), (4, 3, K), (K,)))
    terms = []
    for a in range(2):
        for b in range(4):
            for image in range(3):
                if a != b:
                    t, s = np.exp((teacher[a, image] - centre) / 0.04), np.exp(student[b, image] / 0.1)
                    terms.append(-sum(t / t.sum() * np.log(s / s.sum())))
    assert len(terms) == 6 * 3
    target = sharpened(*map(torch.from_numpy, (teacher, centre)), temperature=0.04)
    assert float(cross_view_entropy(target, torch.from_numpy(student), temperature=0.1)) == pytest.approx(
        np.mean(terms), rel=1e-12
    )


def test_forward_is_the_equations_on_student_and_teacher_outputs():
    method, given = dino().eval(), batch()
    method.centre.copy_(drawn(K) / 10)
    logits = [method.prototypes(method.project(method.encoder(view).vector)) for view in given.views]
    taught = [method.teacher_prototypes(method.teach(view)) for view in given.views[:2]]
    theirs = DINOLoss(output_dim=K, teacher_temp=0.04)
    theirs.center.copy_(method.centre)
    out = method(given)
    assert_close(out.losses["base"], theirs(taught, logits), rtol=1e-5, atol=1e-6)
    assert_close(out.carry.mean, torch.cat(taught).mean(dim=0))
    assert out.facts["chance/base"] == pytest.approx(math.log(K))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
def test_the_head_is_lightlys_with_the_same_weights():
    ours, theirs = dino(), DINOProjectionHead(96, 12, DIM, K, norm_last_layer=True)
    linear = [layer for layer in theirs.layers if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for mine, other in zip([ours.projector[0], ours.projector[2], ours.projector[4]], linear, strict=True):
            other.weight.copy_(mine.weight)
            other.bias.copy_(mine.bias)
            assert 0.01 < mine.weight.std() < 0.03 and not mine.bias.any()
        theirs.last_layer.weight_v.copy_(ours.prototypes.weight)
    feature = drawn(5, 96)
    assert_close(ours.prototypes(ours.project(feature)), theirs(feature))
    assert [name for name, _ in ours.prototypes.named_parameters()] == ["weight"]  # the gain is no parameter


def test_the_facts_tell_both_collapses_apart_from_health():
    method = dino()
    method.teacher_prototypes.module.weight.data[:] = method.teacher_prototypes.module.weight.data[:1]
    flat = method(batch()).facts
    assert float(flat["target_entropy"]) == pytest.approx(math.log(K), rel=1e-4)
    assert float(flat["batch_entropy"]) == pytest.approx(math.log(K), rel=1e-4)
    method.centre[0] = -100.0
    one = method(batch()).facts
    assert abs(float(one["target_entropy"])) < 1e-6 and abs(float(one["batch_entropy"])) < 1e-6


# --- views -----------------------------------------------------------------------------------------------------------


def test_groups_of_one_resolution_give_what_each_view_gives_by_itself():
    encoder, views, seen = build_encoder("timm/test_resnet").eval(), batch().views, []
    encoder.register_forward_hook(lambda part, given, out: seen.append(tuple(given[0].shape)))
    together = by_resolution(encoder, views)
    assert seen == [(8, 3, 32, 32), (8, 3, 16, 16)]
    assert_close(together, torch.cat([encoder(view).vector for view in views]), rtol=1e-4, atol=1e-5)


def test_its_own_views_are_two_large_and_eight_small_and_its_probe_is_large():
    config = changed(Config(), {"method.name": "dino", "wrappers": [], "data.size": 64})
    images = torch.randint(0, 255, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    views = build_views(config)(images, torch.ones(2), torch.arange(2), torch.Generator().manual_seed(0))
    assert [view.shape[-1] for view in views] == [64, 64] + [96] * 8
    given = batch(sizes=(32, 32, 32, 16))
    assert dino().probe(given) is given.views[2]  # a third large one is fresh


@pytest.mark.parametrize("name", ["moco", "simsiam"])
def test_pairs_around_others_compare_with_a_large_view_too(name: str):
    small = {
        "data.size": 32,
        "encoder.name": "timm/test_resnet",
        "encoder.weights": "random",
        "data.views": "multicrop",
    }
    method = build_method(changed(Config(), {**small, "method.name": name, "wrappers": []}))
    given = batch()
    assert method.probe(given) is given.views[1]


def test_a_trunk_that_cannot_take_small_crops_is_refused_in_one_sentence():
    words = {"method.name": "dino", "wrappers": [], "encoder.weights": "random", "encoder.name": "timm/test_vit"}
    with pytest.raises(UserError, match=r"test_vit cannot take images of 40 px .*choose another data\.local_size"):
        build_method(changed(Config(), {**words, "data.size": 32, "data.local_size": 40}))
    none = {"data.size": 32, "data.local_size": 40, "data.local": 0}
    assert build_method(changed(Config(), {**words, **none, "method.prototypes": K}))


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"method.first_temperature": 0.02}, "without method.warming"),
        ({"data.batch": 4, "run.accumulate": 4}, "two or more at once"),
    ],
)
def test_settings_that_do_not_go_together_are_one_sentence(settings, words):
    with pytest.raises(UserError, match=words):
        build_method(changed(Config(), {"method.name": "dino", "wrappers": [], **settings}))


# --- schedules -------------------------------------------------------------------------------------------------------


def test_the_teachers_temperature_is_lightlys():
    settings = DINOSettings(first_temperature=0.04, teacher_temperature=0.07, warming=30)
    theirs = DINOLoss(output_dim=2, warmup_teacher_temp=0.04, teacher_temp=0.07, warmup_teacher_temp_epochs=30)
    expected = [*theirs.teacher_temp_schedule.tolist(), 0.07, 0.07]
    assert [teacher_temperature(settings, epoch) for epoch in range(32)] == pytest.approx(expected)
    assert teacher_temperature(DINOSettings(), 0) == 0.04


def test_momentum_and_temperature_follow_the_run():
    """Six steps of two epochs: momentum at every step by a cosine that ends at 1, temperature with the epoch."""
    settings = DINOSettings(prototypes=K, hidden=12, dim=DIM, warming=2, teacher_temperature=0.07)
    method = dino(settings=settings, epochs=2)
    facts = [method(batch(at=(step, 6))).facts for step in range(6)]
    expected = [cosine_schedule(step, 7, 0.996, 1.0) for step in range(6)]
    assert [fact["momentum"] for fact in facts] == pytest.approx(expected, abs=1e-12)
    assert [fact["teacher_temperature"] for fact in facts] == pytest.approx([0.04] * 3 + [0.07] * 3)


def test_centre_and_teacher_follow_in_closed_form():
    method, means = dino(), [drawn(K, seed=seed) for seed in range(3)]
    start = method.teacher_prototypes.module.weight.clone()
    with torch.no_grad():
        method.prototypes.weight.add_(1.0)
    for momentum, mean in zip((0.5, 0.75, 1.0), means, strict=True):
        method.after_step([Taught(momentum, mean)])
    expected = sum(0.1 * 0.9 ** (2 - place) * mean for place, mean in enumerate(means))
    assert_close(method.centre, expected)
    assert_close(method.teacher_prototypes.module.weight, start + 1 - 0.5 * 0.75)


# --- training --------------------------------------------------------------------------------------------------------


def test_prototypes_rest_in_the_first_epoch_and_learn_in_the_second():
    """Neither gradient, momentum nor weight decay: the same bits."""
    method = dino(epochs=2)
    optimizers = build_optimizers(method.param_groups(), Rule(lr=0.1, weight_decay=0.1, clip_each=3.0))
    seen = [(method.prototypes.weight.detach().clone(), method.projector[0].weight.detach().clone())]

    def after(step: int, outputs: object) -> None:
        seen.append((method.prototypes.weight.detach().clone(), method.projector[0].weight.detach().clone()))

    train(
        method, lambda step: [batch(step, at=(step, 4))], optimizers, lambda step: 1.0, start=0, stop=4, after=[after]
    )
    prototypes, projectors = zip(*seen, strict=True)
    assert [torch.equal(one, prototypes[0]) for one in prototypes] == [True, True, True, False, False]
    assert not any(torch.equal(one, projectors[0]) for one in projectors[1:])
    assert_close(method.teacher_prototypes.module.weight[0], prototypes[0][0], rtol=0.2, atol=0.2)


@pytest.mark.parametrize("name", ["timm/test_resnet", "timm/test_vit"])
def test_two_steps_with_every_trunk_move_the_student_and_slowly_the_teacher(name: str):
    method, given = dino(name), batch(at=(1, 2))
    before = copy.deepcopy(method)
    optimizers = build_optimizers(method.param_groups(), Rule(lr=0.05, spare=True))
    losses = []
    after = [lambda step, outputs: losses.append(outputs[0].losses["base"].item())]
    train(method, lambda step: [given], optimizers, lambda step: 1.0, start=0, stop=2, after=after)
    assert all(map(math.isfinite, losses))
    for part, teacher in (("encoder", "teacher_encoder"), ("projector", "teacher_projector")):
        old, new, taught = (
            dict(one.named_parameters())
            for one in (getattr(before, part), getattr(method, part), getattr(method, teacher).module)
        )
        moved = [key for key in old if not torch.equal(old[key], new[key])]
        assert len(moved) > len(old) / 2
        assert all((taught[key] - old[key]).norm() < (new[key] - old[key]).norm() for key in moved)


def test_forward_writes_nothing_and_draws_nothing():
    method = dino().eval()
    before, stream = copy.deepcopy(method.state_dict()), torch.get_rng_state()
    first, again = method(batch()), method(batch())
    assert_close(method.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), stream)
    assert_close(first.losses, again.losses, rtol=0, atol=0)


def test_every_trained_parameter_is_in_one_group_and_the_authors_rule_is_the_default():
    config = changed(
        recipe_named("dino"), {name: RUN[name] for name in RUN if name != "optim.warmup"} | {"run.epochs": 20}
    )
    method = build_method(config)
    grouped = [id(parameter) for group in method.param_groups() for parameter in group.parameters]
    assert sorted(grouped) == sorted(id(one) for one in method.parameters() if one.requires_grad)
    optim = config.optimised
    assert (optim.name, optim.clip_each, optim.warmup, optim.schedule, optim.weight_decay) == (
        "sgd",
        3.0,
        10.0,
        "step",
        1e-4,
    )
    groups = optimizers_of(config, method).groups
    assert {group["lr"] for group in groups} == {0.03 * 4 / 256}
    assert all(group["weight_decay"] == (1e-4 if one.ndim > 1 else 0.0) for group in groups for one in group["params"])


# --- a run -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("dino") / "run"
    return run(changed(recipe_named("dino"), {**RUN, "run.out": str(out)}), recipe="dino", quiet=True)


def test_the_teacher_is_evaluated_and_saved(finished):
    method, image = finished.method, drawn(3, 3, 32, 32)
    with torch.no_grad():
        feature = method.embed(image)
        saved = load_encoder(finished.out / "encoder.safetensors").eval()
        assert_close(saved(image).vector, feature, rtol=1e-4, atol=1e-5)  # another memory layout
        assert_close(open_embedder(finished.out)(image), feature, rtol=1e-4, atol=1e-5)
        assert (method.encoder(image).vector - feature).abs().max() > 1e-3
    assert weights_hash(saved) == weights_hash(method.teacher_encoder.module) != weights_hash(method.encoder)
    assert json.loads((finished.out / "embedder" / "embedder.json").read_text())["feature"] == "pooled"
    assert embedder_of(method, changed(recipe_named("dino"), RUN)).own is None


def test_stopped_and_resumed_it_ends_with_the_same_bits(finished, tmp_path, monkeypatch):
    """Centre and prototypes included; stopped when prototypes have begun to learn."""
    config = changed(recipe_named("dino"), {**RUN, "run.out": str(tmp_path / "run")})
    with monkeypatch.context() as patch:
        patch.setattr(course, "train_stage", stopping(course.train_stage, 3))
        with pytest.raises(Interrupted):
            run(config, recipe="dino", quiet=True)
    assert checkpoint.read(tmp_path / "run" / "checkpoint.pt")[0].step == 3
    resume(tmp_path / "run")
    (_, one), (_, other) = (checkpoint.read(out / "checkpoint.pt") for out in (finished.out, tmp_path / "run"))
    assert_close(one["method"], other["method"], rtol=0, atol=0)
    assert one["method"]["centre"].abs().sum() > 0
    assert not torch.equal(one["method"]["prototypes.weight"], build_method(config).prototypes.weight)
    lines = [(out / "metrics.jsonl").read_text().splitlines() for out in (finished.out, tmp_path / "run")]
    assert len({tuple(json.loads(line)["base"] for line in some) for some in lines}) == 1


def stopping(whole, step: int):
    """The loop of a stage, interrupted after so many steps as Ctrl-C would."""

    def stopped(stage, later, *, after, **options):
        def interrupt(number: int, outputs: object) -> None:
            if number + 1 == step:
                raise Interrupted("enough")

        return whole(stage, later, after=(*after, interrupt), **options)

    return stopped
