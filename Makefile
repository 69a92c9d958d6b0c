# Everything runs in .venv, which the first target that needs it sets up.
# Another interpreter: make test PYTHON=python3.12     More test workers: make test WORKERS=4

PYTHON  ?= python3
WORKERS ?= 2
TORCH   := torch==2.13.0
OUT     ?= demo-report
ARGS    ?=

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
DEV   := $(VENV)/.ready-dev
FRAMES := $(VENV)/.ready-trainers
SITE   := $(VENV)/.ready-site
PEER  := .venv-peer
BUILD := .venv-dist
PIP   := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# Bytecode is kept: without it every worker rewrites the assertions of all tests anew, 12 s of the processor.
unexport PYTHONDONTWRITEBYTECODE

# One thread per test worker: BLAS, OpenMP and torch would otherwise compete for the same cores.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 \
          $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-cpus test-newest doctest check format bench bench-peer tables figures docs dist dist-check gpu-wheels sbom clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## private training on 327,346 flights: correlated against independent noise, with a report
	$(BIN)/anechoic demo --out $(OUT) $(ARGS)

test: $(READY) ## the tests, without the slow ones
	$(PYTEST) -m "not slow" --ignore=tests/slow --ignore=tests/rules $(ARGS)

test-all: $(FRAMES) ## all tests, the slow ones, those inside training frameworks, and test-cpus
	$(PYTEST) $(ARGS)
	@$(MAKE) --no-print-directory test-cpus ARGS=

test-cpus: $(READY) ## the tests of releases with other kernels of OpenBLAS, without AVX-512 and without AVX2
	$(BIN)/python -m tests.cpus $(ARGS)

test-newest: ## the quick tests with the newest of every package, in an environment of its own (.venv-newest)
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/pip install -qq --upgrade --upgrade-strategy eager $(TORCH) -e '.[torch,flower,streaming,engines,plot,test]' pandas
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv-newest/bin/python -m pytest -q -n $(WORKERS) -m "not slow" \
	    --ignore=tests/slow --ignore=tests/rules $(ARGS) || { .venv-newest/bin/pip list --outdated; exit 1; }

# The adapters of trainers import frameworks, which this .venv may lack.
doctest: $(READY) ## the examples in docstrings
	$(BIN)/python -m pytest -q --doctest-modules src/anechoic --ignore-glob='*/trainers/[lt]*.py' --ignore-glob='*/engines/spark.py' $(ARGS)

check: $(DEV) doctest ## lint, format, types, the examples in docstrings, and the rules of this repository
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -m "not slow" tests/rules

format: $(DEV) ## apply the formatter and the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## speed of the noise step and of a training step
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-peer: $(READY) $(PEER)/.ready ## our optimisers beside JAX Privacy's, in one run (about 15 minutes)
	$(BIN)/python benchmarks/optimize.py --peer $(PEER)/bin/python --plot docs/images/optimize.svg $(ARGS)

tables: $(READY) ## the published tables, computed again into docs/papers.md (about 15 minutes)
	$(BIN)/python benchmarks/tables.py --out docs/papers.md $(ARGS)

figures: $(READY) ## the papers' figures: the monograph's into docs/images/monograph, the others' into figures/
	$(BIN)/python benchmarks/figures.py $(ARGS)
	$(BIN)/python -m studies papers --out figures

dist: $(BUILD)/.ready ## wheel and sdist into dist/, the recipe for conda into build/
	rm -rf dist
	$(BUILD)/bin/python -m build
	$(BUILD)/bin/twine check --strict dist/*
	$(BUILD)/bin/python tools/recipe.py

dist-check: $(BUILD)/.ready ## what is in dist/, installed in an empty environment and tried (ARGS="--python 3.12 3.13 --extras demo")
	$(BUILD)/bin/python tools/dist_check.py $(ARGS)

gpu-wheels: $(READY) ## what tools/gpu.py needs on a machine with a GPU and no network, into build/gpu-wheels (7 MB)
	$(subst install,download,$(PIP)) --no-deps --only-binary=:all: --dest build/gpu-wheels dp-accounting absl-py attrs dm-tree immutabledict \
	    mpmath wrapt cryptography cffi pycparser threadpoolctl filelock opacus opt-einsum

sbom: $(BUILD)/.ready ## what an environment of the wheel holds, as CycloneDX, into build/anechoic.cdx.json
	$(BUILD)/bin/python tools/dist_check.py --keep build
	sed "s/^dynamic = .*/version = \"$$(build/env/bin/anechoic --version | cut -d' ' -f2)\"/" pyproject.toml > build/pyproject.toml
	$(BUILD)/bin/cyclonedx-py environment build/env/bin/python --pyproject build/pyproject.toml --mc-type library \
	    --output-reproducible --output-file build/anechoic.cdx.json

docs: $(SITE) ## the documentation site, into build/docs/html; needs no network
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -j auto -d build/docs/doctrees docs build/docs/html
	$(BIN)/python -m tests.rules.site build/docs/html

clean: ## remove reports, builds and caches; keep .venv
	rm -rf demo-report build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove .venv too
	rm -rf $(VENV) $(PEER) $(BUILD)

# The stamps make a second call do nothing until the project's requirements change.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("$(PYTHON) is Python %d.%d; anechoic needs 3.11 or newer. Name another one: make PYTHON=python3.12" % v[:2])'
	@echo "Setting up $(VENV) (about 3 minutes the first time; PyTorch is most of it)"
	@echo "  1/3 virtual environment"
	@$(PYTHON) -m venv $(VENV)
	@echo "  2/3 $(TORCH)"
	@$(PIP) $(TORCH)
	@echo "  3/3 anechoic with its extras torch, flower, streaming, plot and test"
	@$(PIP) -e '.[torch,flower,streaming,plot,test]'
	@touch $@
	@echo "$(VENV) is ready"

$(DEV): $(READY)
	@echo "Adding ruff, mypy and pre-commit to $(VENV)"
	@$(PIP) -e '.[torch,flower,streaming,plot,dev]'
	@touch $@

$(FRAMES): $(READY)
	@echo "Adding transformers, accelerate, peft, trl, lightning and webdataset to $(VENV)"
	@$(PIP) -e '.[torch,flower,streaming,plot,test,trainers]' webdataset
	@touch $@

$(BUILD)/.ready:
	@echo "Setting up $(BUILD) with the tools of a release"
	@$(PYTHON) -m venv $(BUILD)
	@$(BUILD)/bin/python -m pip install -qq --disable-pip-version-check 'build>=1.2' 'twine>=6' 'cyclonedx-bom>=7,<8'
	@touch $@

# The reference imports every room, so every framework.
$(SITE): $(FRAMES)
	@echo "Adding Sphinx to $(VENV)"
	@$(PIP) -e '.[docs]'
	@touch $@

$(PEER)/.ready:
	@echo "Setting up $(PEER) with jax-privacy, for the comparison only"
	@$(PYTHON) -m venv $(PEER)
	@$(PEER)/bin/python -m pip install -qq --disable-pip-version-check 'jax-privacy==2.0.0'
	@touch $@
