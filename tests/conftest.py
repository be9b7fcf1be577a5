"""One thread per test process, shapes checked at run time, no network, no cache but one of our own."""

import importlib
import os
import re
import resource
import sys
import typing
from collections import Counter
from contextlib import contextmanager
from functools import cache, lru_cache, wraps
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # some virtual machines advertise AMX and crash on it
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every process that a test starts compiles all our files

import beartype  # noqa: F401  what our modules import is imported before the hook below, which compiles it all anew
import jaxtyping
import pytest
import timm  # noqa: F401
import torch
import torch._dynamo
import torchvision  # noqa: F401

CHECKED = 4  # calls of a function in a test: the shapes of ten thousand more would take two fifths of all the time
SHAPED = {"Bool", "Float", "Int", "Shaped", "UInt8"}
calls = Counter()  # of every function's code, in the test that runs


def has_shapes(function):
    """Whether a signature speaks of shapes, or of names that stand for some; mypy has checked the others."""
    words = {word for said in function.__annotations__.values() for word in re.findall(r"\w+", str(said))}
    return any("jaxtyping" in repr(type(function.__globals__.get(word))) or word in SHAPED for word in words)


def sparingly(*, typechecker, check=jaxtyping.jaxtyped):
    """In place of jaxtyping's decorator: the same checks, made when a function is called, and of its first calls."""

    def decorate(function):
        if isinstance(function, type):
            return check(typechecker=typechecker)(function)
        if not has_shapes(function):
            return function
        checked = cache(lambda: check(typechecker=typechecker)(function))

        @wraps(function)
        def call(*arguments, **options):
            calls[function.__code__] += 1
            return (checked() if calls[function.__code__] <= CHECKED else function)(*arguments, **options)

        return call

    return decorate


if sys.version_info >= (3, 12):  # whose isinstance overlooks what __getattr__ gives, as a module gives its parts
    assert callable(typing._lazy_load_getattr_static)
    typing._lazy_load_getattr_static = lambda: getattr  # as 3.11 did: a protocol's members are asked for

sys.dont_write_bytecode = False  # or this process compiles all our files and all tests anew, each time
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of commands that tests start, whose bits are compared with this process's
if not torch.cuda.is_available():  # torch.compile, tested where there is a GPU, cannot trace the checks
    jaxtyping.jaxtyped = sparingly
    jaxtyping.install_import_hook("wingbar", "beartype.beartype")

for name in importlib.import_module("wingbar.methods").OURS:  # whole, before the command line reads their entries only
    importlib.import_module(f"wingbar.methods.{name}")


@pytest.fixture(autouse=True)
def shapes_are_checked_anew():
    """In every test."""
    calls.clear()


@pytest.fixture(autouse=True, scope="session")
def cache_of_our_own(tmp_path_factory):
    """Decoded images never go to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINGBAR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="module")
def every_bird_once(request):
    """Look-alikes are drawn once and remembered, 25 ms each, but not where drawing is what is tested."""
    from wingbar.data.lookalike import Lookalike

    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__ != "test_lookalike":
            patch.setattr(Lookalike, "__getitem__", remembered(Lookalike.__getitem__))
        yield


@cache
def remembered(draw):
    return lru_cache(maxsize=2048)(draw)


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk():
    """Tests kill processes, not machines: what the system has taken is safe, and a third of the time was spent here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def no_room():
    """A disk that is full, without privileges: inside, no file of this process grows beyond so many bytes."""

    @contextmanager
    def limited(most):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        written, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # Python would keep half a compiled file
        try:
            yield
        finally:
            sys.dont_write_bytecode = written
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture(scope="session")
def experiment():
    """A script of `experiments` as a module, by its name; they import each other."""
    folder = str(Path(__file__).parents[1] / "experiments")
    sys.path.append(folder)
    yield importlib.import_module
    sys.path.remove(folder)
