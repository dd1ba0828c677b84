# Two commands do everything on a machine with Python >= 3.11, make and a package index:
#   make demo    rank the idle windows of a shipped capture, write demo-report/report.html
#   make test    ruff, mypy and the tests
# Another Python: make PYTHON=/path/to/python3 ...

VENV := .venv
BIN := $(VENV)/bin
DEMO := datasets/vla_h200.rlprof
JOBS := 2

# The environment is a folder; these stamps say what was installed into it, and when.
MADE := $(VENV)/.stamp-made
BASE := $(VENV)/.stamp-base
DEV := $(VENV)/.stamp-dev
# Installing compiles nothing: most of 20,000 modules are never imported, and the others compile when they first are.
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: help demo test test-all lint format bench clean

help:
	@sed -n '1,5s/^# \{0,1\}//p' Makefile
	@echo '  make test-all  also the slow tests'
	@echo '  make lint      ruff and mypy alone;  make format rewrites'
	@echo '  make bench     the speed table of benchmarks/README.md (minutes, 700 MB in TMPDIR)'
	@echo '  make clean     remove the environment, caches and the demo report'

# An environment that still runs is kept; one of a Python since removed, or half made, is made anew.
$(MADE):
	@python=$$(tools/find-python.sh $(PYTHON)) || exit 1; \
	if $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then :; else \
	  echo "making $(VENV) with $$python"; "$$python" -m venv --clear $(VENV) || exit 1; \
	fi
	@touch $@

$(BASE): pyproject.toml | $(MADE)
	@echo 'installing rlprof'
	@$(PIP) install --no-compile --editable .
	@touch $@

$(DEV): pyproject.toml | $(MADE)
	@echo 'installing rlprof with what its tests need'
	@$(PIP) install --no-compile --editable '.[dev]'
	@touch $(BASE) $@

demo: $(BASE)
	$(BIN)/rlprof analyze $(DEMO) --out demo-report

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# All parts run, whatever the first one says. mypy keeps one core busy, so it works beside the tests, which often
# wait; what it says follows their summary.
test: TESTS := -m 'not slow'
test test-all: $(DEV)
	@failed=0; \
	$(BIN)/ruff check . || failed=1; \
	$(BIN)/mypy >$(VENV)/mypy.log 2>&1 & mypy=$$!; \
	$(BIN)/pytest -n $(JOBS) --dist worksteal -rs $(TESTS) || failed=1; \
	wait $$mypy || failed=1; \
	cat $(VENV)/mypy.log; \
	exit $$failed

bench: $(DEV)
	$(BIN)/python -m benchmarks.read_speed --work $${TMPDIR:-/tmp}/rlprof-bench
	$(BIN)/python -m benchmarks.readme_tables

clean:
	rm -rf $(VENV) demo-report .mypy_cache .ruff_cache .pytest_cache .hypothesis .rlprof-cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
