"""Feature pairs: noise as it should be, the base's own loss, and what takes part in it."""

import copy
import math

import pytest
import torch
from torch.testing import assert_close

from wingbar.config.settings import Config, changed
from wingbar.errors import UserError
from wingbar.methods import perturb, synth
from wingbar.methods.losses import nt_xent
from wingbar.train.stages import build_method
from wingbar.types import Batch, Targeted

SMALL = {
    "encoder.name": "timm/test_resnet",
    "encoder.weights": "random",
    "data.size": 32,
    "data.batch": 8,
    "wrappers": ["featurepairs"],
    "featurepairs.bank": 16,
}
OWN = {"moco": {"method.queue": 16, "method.dim": 8}, "simsiam": {"method.dim": 32, "method.hidden": 8}}


def built(base="moco", **settings):
    method = build_method(changed(Config(), {**SMALL, "method.name": base, **OWN[base], **settings}))
    return method.double().train()


def batch_of(seed=0):
    generator = torch.Generator().manual_seed(seed)
    image, *views = (torch.randn(8, 3, 32, 32, generator=generator, dtype=torch.float64) for _ in range(3))
    return Batch(image, tuple(views), torch.arange(8), seed=seed)


def importances(count=2):
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(6, 10, generator=generator, dtype=torch.float64) for _ in range(count)]


# --- noise -----------------------------------------------------------------------------------------------------------


def test_noises_of_several_criteria_add_up_like_independent_draws():
    judged, eps = importances(), [1.0, 0.5]
    generator = torch.Generator().manual_seed(0)
    draws = [
        perturb.Noise()(torch.zeros(6, 10, dtype=torch.float64), judged, eps, generator) for _ in range(4000)
    ]  # the paper's: one draw per criterion
    assert_close(perturb.as_judged(judged, eps, generator), torch.stack(draws).std(dim=0), rtol=0.06, atol=0)


@pytest.mark.parametrize("control", [perturb.alike, perturb.upside_down])
def test_controls_are_as_long_for_every_image(control):
    judged, eps = importances(), [1.0, 0.5]
    own = perturb.as_judged(judged, eps, torch.Generator())
    assert_close(control(judged, eps, torch.Generator()).norm(dim=1), own.norm(dim=1))


def test_controls_go_elsewhere():
    judged, eps = importances(1), [1.0]
    own, generator = perturb.as_judged(judged, eps, torch.Generator()), torch.Generator()
    assert perturb.alike(judged, eps, generator).std(dim=1).max() < 1e-12
    flipped = perturb.upside_down(judged, eps, generator)
    assert torch.equal(flipped.argsort(dim=1), own.argsort(dim=1).flip(1))  # loud where it was quiet
    for _ in range(20):
        other = perturb.of_another(judged, eps, generator)
        assert sorted(map(tuple, other.tolist())) == sorted(map(tuple, own.tolist()))
        assert not (other == own).all(dim=1).any()  # nobody keeps its own


def test_the_draw_has_the_asked_length_in_units_of_the_features():
    method = built(**{"featurepairs.length": 0.25})
    feature = torch.randn(8, 96, dtype=torch.float64) * 7
    judged = [torch.rand(8, 96, dtype=torch.float64) for _ in method.criteria]
    many = torch.stack([method.noise(feature, judged, seed) for seed in range(300)])
    length = many.square().sum(dim=2).mean().sqrt()
    assert_close(length, 0.25 * feature.norm(dim=1).mean(), rtol=0.02, atol=0)
    method.running.fill_(100.0)  # what it remembers comes before what it sees
    assert_close(method.noise(feature, judged, 0).norm() / many[0].norm(), 100 / feature.norm(dim=1).mean())


def test_the_running_length_follows_the_features():
    method, lengths = built(), []
    for seed in range(3):
        batch = batch_of(seed)
        method.after_step([method(batch).carry])
        lengths.append(method(batch).carry.feature.norm(dim=1).mean())
    by_hand = 0.9 * (0.9 * lengths[0] + 0.1 * lengths[1]) + 0.1 * lengths[2]
    assert_close(method.running, by_hand)


# --- the loss --------------------------------------------------------------------------------------------------------


def test_without_noise_the_plain_image_is_a_third_view_of_moco():
    quiet = {"featurepairs.eps_g": 0.0, "featurepairs.eps_var": 0.0, "featurepairs.nu": 0.7}
    method, batch = built(**quiet), batch_of()
    plain = Batch(batch.image, (batch.image, batch.views[1]), batch.index, seed=batch.seed)
    assert_close(method(batch).losses["pair"], 0.7 * method.base(plain).losses["base"])
    assert_close(method(batch).losses["base"], method.base(batch).losses["base"])


@pytest.mark.parametrize(("eps_g", "passes"), [(0.1, 4), (0.0, 3)])
def test_silent_gradcam_costs_no_pass(eps_g, passes):
    settings = {"featurepairs.eps_g": eps_g, "featurepairs.eps_var": 0.0}
    method, batch, seen = built(**settings), batch_of(), []
    for encoder in (method.encoder, method.base.teacher_encoder.module):
        encoder.register_forward_hook(lambda *made: seen.append(1))
    method(batch)
    assert len(seen) == passes  # two views, the plain image, Grad-CAM's second view
    (pairs,) = changed(Config(), {"wrappers": ["featurepairs"], **settings}).wrappers
    assert pairs.entry.passes(pairs.settings) == passes  # of these the plain image's is worth three


def test_simsiam_predicts_its_target_from_the_perturbed_feature():
    method, batch = built("simsiam"), batch_of()
    with torch.no_grad():
        feature = method.encoder(batch.image).vector
        judged = [criterion.importance for criterion in method.criteria]
        assert len(judged) == 2
        output = method(batch)
        target = method.base.project(method.encoder(batch.views[1]).vector)
    assert isinstance(method.base, Targeted)
    assert_close(output.target, target)
    prediction = method.base.predictor(method.project(feature))
    own = -torch.nn.functional.cosine_similarity(prediction, target).mean()
    assert_close(method.base.toward(method.project(feature), target), own)


def test_compared_with_each_other_it_is_nt_xent():
    method, batch = built(**{"featurepairs.loss": "nt_xent", "featurepairs.nu": 1.0}), batch_of()
    feature = method.encoder(batch.image).vector
    with torch.no_grad():
        from wingbar.methods.synth import judge

        noise = method.noise(feature, judge(method.criteria, method.base, feature, batch), batch.seed)
        by_hand = nt_xent(method.project(feature), method.project(feature + noise), temperature=0.2)
        output = method(batch)
    assert_close(output.losses["pair"], by_hand)
    assert output.facts["chance/pair"] == pytest.approx(math.log(15))


def test_the_pair_trains_encoder_and_head_and_forward_changes_nothing():
    method, batch = built("simsiam"), batch_of()
    method.after_step([method(batch).carry])
    before = copy.deepcopy(method.base.projector.state_dict()), copy.deepcopy(method.criteria.state_dict())
    with torch.no_grad():
        method.encoder.eval(), method.base.eval(), method.base.projector.train()
        method(batch)
    after = method.base.projector.state_dict()
    views_alone = copy.deepcopy(method.base)
    views_alone.projector.load_state_dict(before[0])
    with torch.no_grad():
        views_alone(batch)  # running statistics move by the base's own pass, and by nothing else
    assert_close(after, views_alone.projector.state_dict())
    assert_close(method.criteria.state_dict(), before[1])
    method.zero_grad()
    method(batch).losses["pair"].backward()
    assert method.encoder.trunk.conv1[0].weight.grad.abs().sum() > 0
    assert all(parameter.grad is not None for parameter in method.base.projector.parameters())


def test_a_base_without_target_is_refused_in_one_sentence(monkeypatch):
    from dataclasses import replace

    from wingbar import methods

    config = changed(Config(), {**SMALL, **OWN["moco"]})
    entry = replace(methods.METHODS["moco"], offers=frozenset())
    original = methods._entry
    monkeypatch.setattr(methods, "_entry", lambda name: entry if name == "moco" else original(name))
    with pytest.raises(UserError, match=r"no target to compare a feature with; use --featurepairs\.loss nt_xent"):
        build_method(config)


def test_without_a_criterion_it_is_refused_in_one_sentence():
    with pytest.raises(UserError, match=r"featurepairs\.criteria names none; name gradcam or lowvar"):
        built(**{"featurepairs.criteria": ()})


def test_a_pair_in_the_residual_keeps_the_image_and_moves_by_what_the_noise_changed():
    image, rebuilt, twin = (torch.randn(2, 3, 4, 4) for _ in range(3))
    first, second = synth.in_residual(image, rebuilt, twin)
    assert torch.equal(first, image)
    assert_close(second - first, twin - rebuilt)
    assert synth.in_image(image, rebuilt, twin) == (rebuilt, twin)


# --- only the last stages learn ---------------------------------------------------------------------------------------


def test_only_the_last_stage_learns_and_early_statistics_rest():
    method = built(**{"encoder.last": 1}).float()
    trunk = method.encoder.trunk
    learning = {name.split(".")[0] for name, parameter in trunk.named_parameters() if parameter.requires_grad}
    assert learning == {"layer4"}
    before = copy.deepcopy(trunk.state_dict())
    method.eval().train()  # evaluations in between must not wake them
    batch = batch_of()
    images = Batch(batch.image.float(), tuple(view.float() for view in batch.views), batch.index)
    sum(method(images).losses.values()).backward()
    optimizer = torch.optim.SGD([one for group in method.param_groups() for one in group.parameters], lr=0.1)
    optimizer.step()
    moved = {name.split(".")[0] for name, value in trunk.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"layer4"}


def test_more_stages_than_there_are():
    with pytest.raises(UserError, match=r"has 5 stages; encoder\.last is 5"):
        built(**{"encoder.last": 5})
