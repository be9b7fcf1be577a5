"""experiments/pull.py: the gradients it measures are those of training, and noise is what it says."""

from __future__ import annotations

import json

import pytest
import torch

SMALL = ("data.images=64", "data.size=32", "data.stored=40", "data.batch=16", "pairs.decoder.epochs=1", "pairs.bank=32")


@pytest.fixture(scope="module")
def pull(experiment):
    return experiment("pull")


def asked(pull, **options):
    return pull.Pull("lookalike", "random", name="flat", recipe="try-synth", holdout=0, set=SMALL, **options)


def test_noise_makes_pairs_harder_and_changes_nothing_else(pull, capsys):
    pull.main(asked(pull, noises=(0, 30), batches=2))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [(line["centred"], line["noise"]) for line in lines] == [(c, n) for c in (False, True) for n in (0, 30)]
    for silent, loud in (lines[:2], lines[2:]):
        assert silent["pair"]["loss"] < loud["pair"]["loss"]
        assert (silent["base"], silent["rebuild"]) == (loud["base"], loud["rebuild"])


def test_a_gradient_is_what_a_step_of_training_would_use(pull):
    config = pull._config(asked(pull))
    stage = pull._stages(config, pull.open_source(config, pull.find_source(config)))[-1]
    (_, loss), *_ = pull._losses(config, stage, 0)
    found = pull._gradient(loss, stage.method)
    loss.backward()
    expected = [parameter.grad.flatten() for parameter in stage.method.encoder.parameters()]
    torch.testing.assert_close(found, torch.cat(expected))
