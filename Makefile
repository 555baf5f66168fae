# Two commands do everything on a fresh machine:  make demo   and   make test.
# Both need Python 3.11+ and make, nothing else; a C++17 compiler, where there is one, builds the fast scans.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEMO   ?= demo-out
JOBS   ?= 2
# pip does not compile what it installs here (seconds saved on a machine that runs one command), so the first process
# that imports a module keeps its byte code. Where the environment forbids that, every start would cost seconds more.
export PYTHONDONTWRITEBYTECODE :=
# One place for what is measured, wherever a test's program runs.
export COVERAGE_FILE := $(CURDIR)/.coverage
OPENSEADRAGON := src/marble/viewer/static/vendor/openseadragon.min.js

# The usual options but for the fixed order.
RANDOM_ORDER := -q --strict-markers --strict-config -p no:cacheprovider -m 'not slow and not reliability and not browser'

.PHONY: help setup lock demo test coverage random-test house tutorials check bench docs browser-test reliability slow-test triton-test sanitize clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The stamp holds the hash of everything an install depends on, so a second `make setup` is instant
# and a change to pyproject.toml, the lock or the interpreter is never missed. Every file that pip fetches is compared
# with the lock's hashes; `make lock` writes the lock anew after a change of constraints.txt.
setup: ## create .venv and install (instant when nothing changed)
	@want=$$( (cat pyproject.toml constraints.txt lock.txt tests/supply/pins.py tests/supply/install.py hatch_build.py src/marble/version.py src/marble/native/*.?pp; $(PYTHON) --version) \
	  | $(PYTHON) -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'); \
	if [ "$$(cat $(STAMP) 2>/dev/null)" != "$$want" ]; then \
	  set -e; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "MARBLE needs Python 3.11 or newer: make setup PYTHON=python3.12")'; \
	  [ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV); \
	  $(BIN)/python -m tests.supply.install dev; \
	  echo "$$want" > $(STAMP); \
	fi
	@if command -v npm >/dev/null; then $(MAKE) --silent --no-print-directory $(OPENSEADRAGON); fi

# The viewer's one JavaScript library, pinned by web/package-lock.json. Without npm everything else works.
$(OPENSEADRAGON): web/package-lock.json
	@npm ci --prefix web --ignore-scripts --no-audit --no-fund --silent
	@mkdir -p $(@D)
	@cp web/node_modules/openseadragon/LICENSE.txt $(@D)/openseadragon.LICENSE.txt
	@cp web/node_modules/openseadragon/build/openseadragon/openseadragon.min.js $@

lock: setup ## write lock.txt anew from constraints.txt, with the hashes of the files that pip finds
	$(BIN)/python -m tests.supply.lock

demo: setup ## made-up slides -> bags -> runs -> report, then print where it is
	$(BIN)/marble demo --out $(DEMO)

test: setup ## the tests (about 10 minutes on two cores; COVERAGE=1: also which lines they reach)
ifdef COVERAGE
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(JOBS) $(TESTS)
	$(BIN)/coverage combine --quiet
	@echo "The ten files of which the tests reach least, and the share of all lines that they reach, in percent:"
	@$(BIN)/coverage report --sort=cover --fail-under=0 | sed -n 1,12p
	@$(BIN)/coverage report --format=total
else
	$(BIN)/python -m pytest -n $(JOBS) $(TESTS)
endif

# Of all rooms this takes two thirds more time than the tests do, so CI counts the rooms that people's numbers come from.
COUNTED := cohorts tasks reports
comma := ,
blank := $(subst ,, )
coverage: setup ## which lines of cohorts, tasks and reports their tests reach (make test COVERAGE=1: of everything)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(JOBS) $(COUNTED:%=tests/%)
	$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --sort=cover --include=$(subst $(blank),$(comma),$(COUNTED:%=src/marble/%/*))

# RUNS=3 takes the third alone. The last one runs beside a job for each core.
RUNS ?= 1 2 3 4 5
random-test: setup ## the tests five times, over orders and hash seeds, once on a busy machine
	@for run in $(RUNS); do \
	  busy=; [ $$run = 5 ] && for core in $$(seq $$(nproc)); do $(BIN)/python -c 'while True: pass' & busy="$$busy $$!"; done; \
	  echo "run $$run"; PYTHONHASHSEED=$$run $(BIN)/python -m pytest -n $(JOBS) -o addopts="$(RANDOM_ORDER)" --randomly-seed=$$run; \
	  ended=$$?; [ -z "$$busy" ] || kill $$busy; [ $$ended = 0 ] || exit 1; \
	done

house: setup ## write the tree of docs/reference/house.md anew
	$(BIN)/python -m tests.docs.house

tutorials: setup ## run the tutorials as notebooks; UPDATE=1 also refreshes what their pages show
	$(BIN)/python -m tests.docs.tutorials $(if $(UPDATE),--update)

check: setup ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## speed and memory as ratios against peers and limits
	$(BIN)/marble bench model --json bench-out/model.json

docs: setup ## the documentation site, into site/
	$(BIN)/python -m tests.supply.install docs
	$(BIN)/mkdocs build --strict

# Gates that held are not run again until sources change, so a run that was stopped goes on: make reliability GATES=A1,B4
reliability: setup ## every gate with all its cases, into docs/reliability.md (SMOKE=1: a tenth)
	$(BIN)/python -m tests.reliability $(if $(SMOKE),--smoke) $(if $(GATES),--gates $(GATES))

slow-test: setup ## what takes minutes
	$(BIN)/python -m pytest -m slow --timeout 3600

# Beside the environment, not in it: without a GPU, mamba_ssm runs only in Triton's interpreter, and nothing else needs
# either. Its compiled part is left out, which needs CUDA's compiler; torch stays as it is.
TRITON := build/triton
triton-test: setup ## mamba_ssm's kernels in Triton's interpreter (minutes; downloads 200 MB)
	MAMBA_SKIP_CUDA_BUILD=TRUE MAMBA_FORCE_BUILD=TRUE $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation \
	  --upgrade --target $(TRITON) triton==3.7.1 mamba-ssm==2.3.2.post1 einops==0.8.2
	PYTHONPATH=$(CURDIR)/$(TRITON) $(BIN)/python -m pytest -m slow --timeout 3600 tests/models/ssm/test_mamba_kernels.py

# In a copy of the sources: kernels that are in use are never replaced by slow ones. The sanitizer's library takes over
# what throws, so the one that throws is loaded with it; what it finds goes to the terminal, past pytest.
SANITIZED := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
sanitize: setup ## the kernels' tests with the address and undefined-behaviour sanitizers
	rm -rf build/sanitize && mkdir -p build/sanitize && cp -r src build/sanitize/
	PYTHONPATH=$(CURDIR)/build/sanitize/src \
	  CXXFLAGS="$(SANITIZED)" $(BIN)/python -m marble.native.build
	@for library in libasan libstdc++; do preload="$$preload $$($${CXX:-c++} -print-file-name=$$library.so)"; done; \
	  PYTHONPATH=$(CURDIR)/build/sanitize/src CXXFLAGS="$(SANITIZED)" LD_PRELOAD="$$preload" ASAN_OPTIONS=detect_leaks=0 \
	  $(BIN)/python -m pytest -n 0 --timeout 3600 --capture sys -m 'not slow' tests/models/ssm tests/ground/test_native.py

browser-test: setup ## the viewer in a real browser
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq install -y chromium; } \
	  || { echo "Install your system's Chromium first"; exit 1; }
	$(BIN)/python -m tests.supply.install browser
	@[ -d web/node_modules/axe-core ] || npm ci --prefix web --ignore-scripts --no-audit --no-fund --silent
	$(BIN)/python -m pytest -m browser --timeout 600

clean: ## remove everything that was made
	rm -rf $(VENV) site $(DEMO) bench-out test-artifacts build dist web/node_modules src/marble/viewer/static/vendor
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.* htmlcov
	rm -f src/marble/native/kernels*.so src/marble/native/kernels*.tmp
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
