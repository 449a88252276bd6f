# Two commands on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TRACE ?= vgg13-h100-b128

# What runs kernels once more: SMALL uncompiled; by test-slow, SMALL and LARGE with checks of every index.
# PICK: options of pytest for SMALL uncompiled.
SMALL := $(patsubst %,tests/closed_form/test_%_closed_form.py,engine pressure circuit fifo) \
	tests/closed_form/test_gpu_messages.py tests/closed_form/test_replay_writes.py \
	tests/unit/engine/test_engine_run.py tests/unit/engine/test_engine_advance.py tests/unit/folding/test_partition.py \
	tests/oracle/test_allocator_twin.py
LARGE := tests/oracle/test_engine_twin.py tests/oracle/test_circuit_twin.py tests/property/test_engine_resume.py \
	tests/property/test_engine_lifts.py tests/oracle/test_gpu_twin.py tests/property/test_gpu_properties.py \
	tests/closed_form/test_gpu_rates.py tests/oracle/test_replay_twin.py

# Without kept bytecode, every process of the tests compiles trine's sources and pytest rewrites all assertions anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-unit test-whole test-slow kernels checked uncompiled check style long bench fuzz corpus mutate \
	validation accuracy examples docs clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $(VENV)/.installed $@

demo: $(VENV)/.installed  ## install into .venv and run the main job on a bundled real trace
	$(BIN)/trine train $(TRACE) --gpus 8 --parallel ddp --cluster dgx-h100

test: $(VENV)/.installed-test  ## what must hold before every commit; make test-slow asks the rest
	$(MAKE) -j2 style kernels uncompiled
	$(MAKE) -j2 test-unit test-whole

# Two processes without xdist, whose workers both collect all tests and report each phase of each to a third process.
test-unit: $(VENV)/.installed-test  ## quick tests of parts
	$(BIN)/python -m pytest -p no:xdist tests/unit

test-whole: $(VENV)/.installed-test  ## quick tests of the whole
	$(BIN)/python -m pytest -p no:xdist --ignore=tests/unit

kernels: $(VENV)/.installed-test  ## compile once what every process of the tests loads
	$(BIN)/trine warmup

uncompiled: $(VENV)/.installed-test  ## kernels as plain Python, where numpy checks every index
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -p no:xdist $(PICK) $(SMALL)

checked: $(VENV)/.installed-test  ## kernels with checks of every index, compiled once
	NUMBA_BOUNDSCHECK=1 $(BIN)/python -m pytest -p no:xdist $(SMALL) $(LARGE)

test-slow: $(VENV)/.installed-test  ## what make test leaves out: what takes long, most cases (tests/slow.yaml) and examples
	TRINE_TESTS=full $(MAKE) -j2 checked uncompiled PICK='-m "thinned or hypothesis"'
	TRINE_TESTS=full $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or thinned or hypothesis"

long: $(VENV)/.installed-test  ## tests of many minutes: random searches, kills, and jobs folded in time
	TRINE_LONG=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m slow tests/property tests/unit/experiments

check: style  ## what style asks, and public names
	$(BIN)/python -m pytest tests/unit/project/test_public_api.py

style: $(VENV)/.installed-test  ## style, types, layers, import cycles, plain English
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/house.py --check
	$(BIN)/python tools/plain_check.py

SECONDS ?= 3600
fuzz: $(VENV)/.installed-test  ## look for inputs that break trine for SECONDS, with files of CORPUS as seeds; finds go to fuzz-found
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	PYTHONPATH=tests $(BIN)/python tests/fuzz/fuzz_search.py --seconds $$(($(SECONDS) / 3))
	PYTHONPATH=tests $(BIN)/python tests/fuzz/fuzz_laws.py --seconds $$(($(SECONDS) / 3))
	PYTHONPATH=tests $(BIN)/python tests/fuzz/fuzz_coverage.py --seconds $$(($(SECONDS) / 3)) $(if $(CORPUS),--corpus $(CORPUS))

corpus: $(VENV)/.installed-test  ## try trine on a folder of real files: make corpus CORPUS=DIR
	$(BIN)/python tools/corpus.py $(CORPUS)

AREA ?= engine
mutate: $(VENV)/.installed-test  ## would the tests of AREA notice a changed operator? 3 to 15 minutes; out/mutants/AREA.jsonl
	PYTHONPATH=src $(BIN)/python tests/mutation/mutate.py --area $(AREA)

bench: $(VENV)/.installed-test  ## speed and accuracy, whole process and kernel; appends to benchmarks/history.jsonl
	TRINE_SLACK=1 TRINE_TESTS=full $(BIN)/python -m pytest -p no:xdist -k "fast or at_once or moment or many_ranks" tests/unit
	$(BIN)/python benchmarks/history.py
	$(BIN)/python benchmarks/bench_train.py
	$(BIN)/python benchmarks/bench_engine.py
	$(BIN)/python benchmarks/bench_collective.py
	$(BIN)/python benchmarks/bench_folding.py
	$(BIN)/python benchmarks/bench_time_folding.py
	$(BIN)/python benchmarks/bench_targets.py
	$(BIN)/python benchmarks/bench_gpu.py
	$(BIN)/python benchmarks/bench_eidolon.py
	$(BIN)/python benchmarks/gpu_fine_grained.py
	$(BIN)/python benchmarks/batch_prediction.py
	$(BIN)/python benchmarks/bench_experiments.py --points 20000 --shards 20

validation: $(VENV)/.installed-test  ## compute the stored reports again (an hour of CPU time), and the pages of accuracy
	$(BIN)/python benchmarks/store_reports.py
	$(BIN)/python -m validation collectives --report docs/background
	$(BIN)/python -m validation training --stored --report docs/background

$(VENV)/.installed-docs: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $(VENV)/.installed $@

accuracy: $(VENV)/.installed-test  ## compare the stored errors with the last page, and write the new page to out/accuracy.html
	mkdir -p out
	$(BIN)/python -m validation accuracy --output out/accuracy.html

docs: $(VENV)/.installed-docs  ## build the documentation site into site/: open site/index.html; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

examples: $(VENV)/.installed-test  ## run every example; writes its figures beside it
	for example in examples/[0-9]*.py; do $(BIN)/python $$example || exit 1; done

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
