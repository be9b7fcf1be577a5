"""Ranks compute what one process computes, end together, and go on in any number."""

import json
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sharing import Trained, cases, work
from torch.distributed import TCPStore
from torch.testing import assert_close

from forked import FORKS, Command
from wingbar.train.distributed import Ranks

# Every method and wrapper once or twice, and every way in which rows of a batch meet; all cases are run by hand.
TESTED = (
    *("moco-parts", "moco-shuffled", "moco-before", "simsiam", "byol", "lewel", "diet", "simclr", "dino-resting"),
    *("simsiam-synth", "moco-synth-readings", "byol-synth-native", "moco-cvsa_like", "moco-others-noise"),
    *("moco-lcr-official", "moco-sam", "simsiam-recomputed"),
)
STEPS = 3
STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}  # of sub-batches: all at once, not one by one
SMALL = {
    "data.images": 24,
    "data.batch": 12,
    "data.size": 32,
    "data.stored": 32,
    "encoder.name": "timm/test_resnet",
    "encoder.weights": "random",
    "method.queue": 24,
    "run.epochs": 4,
    "device": "cpu",
    "run.log-every": 1,
    "run.doctor": 0,
}


# --- the same numbers ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """All cases by one process, and by two that share every batch."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = [
        FORKS.Process(target=work, args=(ranks, folder, TESTED, STEPS)) for ranks in (Ranks(), Ranks(0, 2), Ranks(1, 2))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=300)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    return lambda name, who: Trained(*torch.load(folder / f"{name}.{who}.pt", weights_only=False))


def test_every_case_is_known():
    assert set(TESTED) <= set(cases())


@pytest.mark.parametrize("name", TESTED)
def test_two_ranks_compute_what_one_does(name, trained):
    """Losses, weights, teachers, queues and banks row by row; in float64, where only the order of sums differs."""
    one, first, second = (trained(name, who) for who in ("0of1", "0of2", "1of2"))
    for alone, shared in zip(one.losses, first.losses, strict=True):
        assert shared == pytest.approx(alone, rel=1e-8)
    for key, value in one.state.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(first.state[key], second.state[key]), key
        if name != "moco-shuffled" or not STATISTICS & set(key.split(".")):
            torch.testing.assert_close(first.state[key], value, rtol=1e-7, atol=1e-9, msg=key)


# --- runs ------------------------------------------------------------------------------------------------------------


def rank_environment(rank: int, count: int, port: int) -> dict[str, str]:
    """What torchrun tells a process."""
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), **where}


@pytest.fixture
def together(tmp_path):
    """Starts a command in so many processes that know of one another, and where they meet, as torchrun does."""
    meeting = []

    def start(count: int, *words: str, cache: Path = tmp_path / "cache") -> list[Command]:
        meeting.append(TCPStore("localhost", 0, is_master=True, wait_for_workers=False))
        known = [rank_environment(rank, count, meeting[-1].port) if count > 1 else {} for rank in range(count)]
        known = [{**told, "WINGBAR_CACHE": str(cache)} for told in known]
        return [Command(list(words), tmp_path / f"{count}-{rank}", environment=told) for rank, told in enumerate(known)]

    return start


def train(out: Path, **more: object) -> list[str]:
    settings = {**SMALL, **more, "out": out}
    return ["train", "try-moco", "--run.no-tensorboard", *(f"--{name}={value}" for name, value in settings.items())]


def lines(out: Path) -> list[dict]:
    path = out / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def said(commands: list[Command]) -> str:
    return "".join(command.complained.read_text() for command in commands)


def wait_for(condition, commands: list[Command]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until and all(command.running for command in commands), said(commands)
        time.sleep(0.02)


def test_a_lost_rank_ends_all_and_the_run_goes_on_in_another_number(together, tmp_path):
    """Two ranks, of which the first is killed; one, which is stopped; three, which finish. No step is lost or twice."""
    out = tmp_path / "run"
    two = together(2, *train(out, **{"run.epochs": 12, "run.save-minutes": 0}))
    wait_for(lambda: len(lines(out)) >= 3, two)
    two[0].send(signal.SIGKILL)
    assert two[1].ended() == 1
    (sentence,) = [line for line in said(two).splitlines() if line.startswith("wingbar:")]
    assert sentence.startswith("wingbar: rank 1 of 2: another one is gone") and f"wingbar resume {out}" in sentence
    assert two[0].ended() == -signal.SIGKILL

    go_on = ["train", f"--config={out / 'config.json'}", "--run.resume", f"--out={out}", "--run.devices=1"]
    (one,) = together(1, *go_on)
    before = len(lines(out))
    wait_for(lambda: len(lines(out)) >= before + 3, [one])
    one.send(signal.SIGTERM)
    assert one.ended() == 128 + signal.SIGTERM
    assert "run.devices is 1, was 2" in said([one])

    three = together(3, *go_on)
    assert [command.ended() for command in three] == [0, 0, 0], said(three)
    assert [line["step"] for line in lines(out)] == list(range(1, 25))
    assert (out / "encoder.safetensors").exists()
    assert json.loads((out / "environment.json").read_text())["ranks"] == 2


def test_one_that_meets_nobody_says_so(tmp_path):
    """Another one was killed before it came: after run.wait_minutes a sentence, and no folder is left."""
    meeting = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    words = train(tmp_path / "run", **{"run.wait-minutes": 0.05})
    waiting = Command(words, tmp_path / "said", environment=rank_environment(1, 2, meeting.port))
    assert waiting.ended() == 1
    (sentence,) = [line for line in said([waiting]).splitlines() if line.startswith("wingbar:")]
    assert sentence.startswith("wingbar: rank 1 of 2: another one did not answer within run.wait_minutes 0.05, so all")
    assert "Traceback" not in said([waiting]) and not (tmp_path / "run").exists()


# --- evaluation ------------------------------------------------------------------------------------------------------


def test_evaluation_by_ranks_is_that_of_one_process_bit_for_bit(together, tmp_path):
    """Features, places, neighbours and every score; found again in the cache by another number of ranks."""
    settings = {**SMALL, "data.classes": 4, "data.images": 60, "run.epochs": 1, "method.queue": 64}
    (made,) = together(1, *train(tmp_path / "run", **settings))
    assert made.ended() == 0, said([made])
    found = {}
    for count in (1, 2, 3):  # 3 batches of 25, and one of queries, of which most ranks have none
        cache, out = tmp_path / f"cache{count}", tmp_path / f"out{count}"
        words = ["evaluate", str(tmp_path / "run"), "--batch=25", "--paper.epochs=1", f"--out={out}", "--device=cpu"]
        protocols = ["--protocols", "retrieval", "knn", "linear-paper", "linear"]
        commands = together(count, *words, *protocols, cache=cache)
        assert [command.ended() for command in commands] == [0] * count, said(commands)
        assert "".join(command.said.read_text() for command in commands).count("Every number") == 1
        (again,) = together(1, *words, "--protocols", "knn", cache=cache)
        assert again.ended() == 0, said([again])
        features = {path.name: path.read_bytes() for path in sorted(cache.rglob("features/*.safetensors"))}
        values = {path.name: load_file(path) for path in sorted(out.glob("*.safetensors"))}
        scores = [(line["metric"], line.get("value")) for line in lines(out)]
        found[count] = (features, scores, values)
    assert len(found[1][0]) == 4 and len(found[1][2]) == 4 + 4 + 3  # run, initialisation, the same half-white
    for count in (2, 3):
        assert found[count][:2] == found[1][:2]
        assert_close(found[count][2], found[1][2], rtol=0, atol=0, equal_nan=True)


def test_probes_of_ranks_are_those_of_one_process(together, tmp_path):
    """At a rate of 0, so that both have the same weights; BatchNorm has not yet forgotten where it began."""
    settings = {"data.classes": 4, "data.images": 144, "data.batch": 144, "run.epochs": 1, "method.queue": 144}
    probed = []
    for count in (1, 2):
        out = tmp_path / f"{count}"
        commands = together(count, *train(out, **settings, **{"run.probe-every": 1, "optim.lr": 0.0}))
        assert [command.ended() for command in commands] == [0] * count, said(commands)
        probed.append({name: value for name, value in lines(out)[-1].items() if name.startswith("probe/")})
    assert probed[0] == probed[1] and len(probed[0]) == 2


def test_a_rank_that_cannot_evaluate_says_so_once(together, tmp_path):
    commands = together(2, "evaluate", "timm/test_resnet", "--encoder.weights=random", f"--data.root={tmp_path}")
    assert [command.ended() for command in commands] == [2, 2]
    assert len([line for line in said(commands).splitlines() if line.startswith("wingbar:")]) == 1


def test_a_rank_that_fails_says_so_once_and_ends_all(together, tmp_path):
    """A loss that is no number is found by the first rank, whose sentence is the only one."""
    out = tmp_path / "run"
    two = together(2, *train(out, **{"optim.lr": 1e30}))
    assert two[0].ended() == 1 and two[1].ended() != 0
    (sentence,) = [line for line in said(two).splitlines() if line.startswith("wingbar:")]
    assert "step" in sentence and "base" in sentence
    assert "Traceback" not in said(two)
