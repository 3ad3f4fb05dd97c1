# Every target is one line of lra-bench in the checkout's own environment; `make setup` alone only makes that.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Variables of the command line, passed on when given; blanks stay, and ~ is the home that not every shell puts there.
home = $(patsubst ~/%,$(HOME)/%,$(1))
OPTIONS = $(if $(TASK),--task "$(TASK)") $(if $(MODELS),--models "$(MODELS)") $(if $(PROTOCOL),--protocol "$(PROTOCOL)") \
	$(if $(DATA),--data "$(call home,$(DATA))") $(if $(DEVICE),--device "$(DEVICE)") $(if $(SEEDS),--seeds "$(SEEDS)") $(OUT_OPTION) $(ARGS)
OUT_OPTION = $(if $(OUT),--out "$(call home,$(OUT))")

.PHONY: help setup bench sweep profile reference leaderboard report bench-attention decode bench-trainer bench-listops bench-retrieval bench-batching test \
	test-all test-cuda lint

help:
	@echo "make bench TASK=text MODELS=softmax,rfa PROTOCOL=quick DATA=dir DEVICE=cpu SEEDS=1 OUT=results ARGS='--set ...'"
	@echo "make bench TASK=lm MODELS=sdpa,rfa,rfa-gate DATA=dir    language modelling; TASK=mt translation"
	@echo "make sweep ARGS='--workers 2'         bench with several cells at a time; --grid, --engine ray, --dry-run"
	@echo "make profile DEVICE=cpu                step time and memory against length"
	@echo "make reference DATA=dir,listops=embedded   the grid at full length, nine minutes a call, again until it is done"
	@echo "make setup | leaderboard | report | test | test-all | test-cuda | lint"
	@echo "make bench-attention                 one layer of each model beside softmax and the public packages"
	@echo "make decode MODELS=rfa               token by token: a cache of keys against RFA's constant state"
	@echo "make bench-trainer | bench-listops | bench-retrieval | bench-batching    what the harness itself costs"

setup: $(READY)

# The stamp is newer than what it depends on, so that a second call starts at once.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "python 3.10 or newer is needed; set PYTHON=" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

# What tests and linters need beside it: Ray, a browser's driver, public packages to compare with.
$(VENV)/.dev: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

bench: $(READY)
	@$(BIN)/lra-bench bench $(OPTIONS)

sweep: $(READY)
	@$(BIN)/lra-bench sweep $(OPTIONS)

profile: $(READY)
	@$(BIN)/lra-bench profile $(OPTIONS)

# The whole grid at the published step counts, a slice a call: the same command goes on, and ends with 0 once all is done.
# Runs that do not fill a card share it with ARGS="--workers 3", and pause while a step of one of them is timed.
ZOO := softmax,sdpa,rfa,linformer,performer,reformer,linear
reference: $(READY)
	@$(BIN)/lra-bench sweep --task text,listops,retrieval --models $(ZOO) --protocol compact --out results/reference-run --minutes 9 $(OPTIONS)

leaderboard: $(READY)
	@$(BIN)/lra-bench leaderboard $(OUT_OPTION)

report: $(READY)
	@$(BIN)/lra-bench report $(OUT_OPTION)

# The public packages that it compares with; pytorch-fast-transformers compiles C++, so only who wants it installs it.
$(VENV)/.peers: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,peers]'
	@touch $@

bench-attention: $(VENV)/.peers
	@$(BIN)/python -m benchmarks.attention $(if $(MODELS),--layers "$(MODELS)") $(if $(DEVICE),--device "$(DEVICE)") $(OUT_OPTION) $(ARGS)

# torch's trace of memory warns of every tensor older than itself.
decode: export TORCH_CPP_LOG_LEVEL = ERROR
decode: $(READY)
	@$(BIN)/python -m benchmarks.decode $(if $(MODELS),--models "$(MODELS)") $(if $(DEVICE),--device "$(DEVICE)") $(OUT_OPTION) $(ARGS)

bench-trainer: $(READY)
	@$(BIN)/python -m benchmarks.trainer_overhead $(ARGS)

bench-listops: $(READY)
	@$(BIN)/python -m benchmarks.listops_speed $(ARGS)

bench-retrieval: $(READY)
	@$(BIN)/python -m benchmarks.retrieval_memory $(ARGS)

bench-batching: $(READY)
	@$(BIN)/python -m benchmarks.batching_share $(ARGS)

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow and not cuda" $(ARGS)

test-all: $(VENV)/.dev
	@$(BIN)/python -m pytest -n auto --dist worksteal -m "not cuda" $(ARGS)

# On a machine with a card, which the other tests do not look at.
test-cuda: $(VENV)/.dev
	@$(BIN)/python -m pytest -m cuda $(ARGS)

lint: $(VENV)/.dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
