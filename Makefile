# Everything runs in a virtual environment of its own; the first target builds it.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Some virtual machines advertise AMX and crash on it; many threads per test process are ten times slower than one.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16
# Without its compiled files, importing PyTorch takes three times as long, and tests start many processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: try test test-lowest check golden docs dist clean
try: $(STAMP)          ## the whole story on the embedded data: train, score, pictures
	$(BIN)/wingbar try

test: $(STAMP)         ## every test that needs no GPU
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --doctest-modules src tests

check: $(STAMP)        ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

golden: $(STAMP)       ## write the golden curves anew, after a change that is meant to move them
	OMP_NUM_THREADS=1 $(BIN)/python tests/golden/curves.py

docs: $(STAMP)         ## these pages as a site in site/, without a network; a broken link stops it
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	$(BIN)/mkdocs build

test-lowest:           ## every test with the lowest versions that pyproject.toml takes; 8 GB
	$(PYTHON) -m venv .lowest
	$(PYTHON) tests/release/lowest.py > .lowest/constraints.txt
	.lowest/bin/python -m pip install --quiet --no-compile --constraint .lowest/constraints.txt --editable ".[dev]"
	OMP_NUM_THREADS=1 .lowest/bin/pytest -n 2 --dist worksteal tests

dist: $(STAMP)         ## wheel and sdist in dist/, tried in an empty virtual environment
	rm -rf dist && $(BIN)/python -m build --outdir dist
	$(BIN)/python tests/release/smoke.py dist

clean:
	rm -rf $(VENV) .lowest runs dist site .pytest_cache .mypy_cache .ruff_cache

# Compiling all of PyTorch's files would take a minute; Python compiles those that are imported.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable ".[dev]"
	touch $@
