# fedskew: `make run` compares two methods on the embedded data, `make test` runs the tests, `make pages` those that run the documentation
# and the papers' tables (`make test PAGES=all`: both), `make test-fast` those that take less than a minute together; all set themselves up.
VENV := .venv
BIN := $(VENV)/bin
# Real data for the tests, if a copy is at hand; what is skipped without it is said at the end of `make test`.
STAGED := ../shared/data
DATA := $(if $(FEDSKEW_DATA),$(FEDSKEW_DATA),$(CURDIR)/.data)

.PHONY: run test pages test-fast draws coverage mutate attack check docs bench index lock dist-test clean

run: $(VENV)/.core
	$(BIN)/fedskew compare --data digits --skew dirichlet:alpha=0.2 --clients 10 --model mlp --rounds 50 --lr 0.1 \
	    --algorithm fedavg --algorithm fedprox:mu=0.1 --seeds 0-4

# Three processes on two cores: tests of servers and nodes mostly wait.
test: $(VENV)/.dev check
	@tools/browser
	@if [ -z "$(FEDSKEW_DATA)" ] && [ -x $(STAGED)/unpack ]; then $(BIN)/python $(STAGED)/unpack "$(DATA)"; fi
	FEDSKEW_DATA="$(DATA)" OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal -q -rs $(if $(PAGES),,-m "not pages")

# What a reader would run: the blocks of the documentation (CONTRIBUTING.md says which not), the site, the smallest version of every paper's tables.
pages: $(VENV)/.dev
	FEDSKEW_DATA="$(DATA)" OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal -q -rs -m pages

# For the inner loop: without lint, types, coverage, and what the root conftest.py lists as slow.
test-fast: $(VENV)/.dev
	FEDSKEW_DATA="$(DATA)" OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -q -m "not slow"

# The tests that draw their examples, with fresh ones; `make test` draws the same ones every time.
draws: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -q --hypothesis-profile=fresh $$(grep -rl "from hypothesis" tests)

# Which lines no test runs; measuring takes half as long again.
coverage: $(VENV)/.dev
	FEDSKEW_DATA="$(DATA)" OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -q --cov --cov-report=term --cov-fail-under=90

# Does a test fail when the code has a mistake? A sample of small mistakes, another one with another seed.
SEED := 0
mutate: $(VENV)/.dev
	FEDSKEW_DATA="$(DATA)" OMP_NUM_THREADS=1 $(BIN)/python tools/mutate --seed $(SEED)

# Lies, faults and kills against a server and nodes that are real processes; half an hour.
attack: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python tools/attack

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/readability

# The documentation as a site; its notebooks are executed, and a warning is an error.
docs: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W -q -b html docs docs/_build
	@echo "documentation: docs/_build/index.html"

bench: $(VENV)/.dev
	FEDSKEW_DATA="$(DATA)" $(BIN)/python -m benchmarks

# What `fedskew list` prints, after a change of a component, its options or their help; a test fails until it is written.
index: $(VENV)/.dev
	$(BIN)/python tools/index

# The hashes that PyPI publishes for every file of the pinned versions of the base install, of what builds the package, and of the
# tools for developers; run it when a pin changes.
LOCK = $(BIN)/uv pip compile -c constraints.txt --generate-hashes --universal --no-annotate --custom-compile-command "make lock" --quiet
lock: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(LOCK) --python-version 3.11.4 pyproject.toml tools/torch-needs.in --override tools/no-torch.txt -o requirements.lock
	$(LOCK) --python-version 3.11.4 tools/build-needs.in -o tools/build.lock
	$(LOCK) --python-version 3.11.5 pyproject.toml tools/torch-needs.in --extra dev --override tools/no-torch.txt -o requirements-dev.lock

# Wheel and sdist in fresh environments, and the SBOM of the wheel's.
dist-test:
	tools/dist-test

clean:
	rm -rf dist .dist $(VENV) .data .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*

# Everything has to have its hash, except for PyTorch, see tools/no-torch.txt.
PIP = $(BIN)/pip install --quiet --disable-pip-version-check
$(VENV)/.core: pyproject.toml constraints.txt requirements.lock tools/build.lock
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(PIP) --no-deps --require-hashes -r requirements.lock -r tools/build.lock
	$(PIP) -c constraints.txt torch
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core requirements-dev.lock
	$(PIP) --no-deps --require-hashes -r requirements-dev.lock
	@touch $@
