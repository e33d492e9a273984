# Commands for contributors.  ARGS are passed to the command; PYTHON is the interpreter.

PYTHON ?= python
# The flags of setup.py for src/ext, without those that it detects.
EXT = -std=gnu11 -Wall -Wextra -Wno-missing-field-initializers -DPy_LIMITED_API=0x030b0000 \
	-DLA_HAS_x86_64_v2 -DLA_HAS_x86_64_v3 -DLA_HAS_x86_64_v4 \
	$(shell $(PYTHON) -c "import numpy, sysconfig; \
	print('-I' + numpy.get_include(), '-I' + sysconfig.get_path('include'))")

.PHONY: build debug test lint
build: ## compiles what has changed in src/, into linattn/; see LINATTN_ISAS in CONTRIBUTING.md
	$(PYTHON) setup.py -q build_ext --inplace $(ARGS)

debug: export CFLAGS = -g -Og
debug: ## the same for a debugger, with objects of its own, so that `make build` only links again
	$(PYTHON) setup.py -q build_ext --inplace --build-temp build/debug $(ARGS)

test: ## the quick tests on all processors; ARGS may name files
	$(PYTHON) -m pytest $(ARGS)

lint: ## ruff, and the layout of Python and C
	$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check .
	find src linattn examples -name '*.[ch]' -print0 | xargs -0 clang-format --dry-run -Werror

.PHONY: asan tsan analyze tidy valgrind fuzz coverage differential errors
asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	tools/sanitize.sh address $(ARGS)

tsan: ## the tests that start threads, under ThreadSanitizer
	tools/sanitize.sh thread $(ARGS)

analyze: ## gcc's static analysis of src/ext
	ls src/ext/*.c | xargs -P $$(nproc) -I {} gcc -O1 -fanalyzer -Werror $(EXT) -c {} -o /dev/null

TIDY ?= clang-tidy-19
tidy: ## clang-tidy on src/ext (.clang-tidy); TIDY names another version
	ls src/ext/*.c | xargs -P $$(nproc) -I {} $(TIDY) --quiet {} -- $(EXT)

valgrind: ## a few tests under Valgrind, which does not support AVX-512
	tools/valgrind.sh $(ARGS)

fuzz: ## libFuzzer on the C interface without NumPy
	tools/fuzz/run.sh $(ARGS)

coverage: ## lines and branches that the tests reach in src/ext, or with ARGS=--kernels in src/kernel
	tools/coverage.sh $(ARGS)

differential: ## random calls against the twins
	$(PYTHON) tools/differential.py $(ARGS)

errors: ## the table of measured errors
	$(PYTHON) tools/error_table.py --markdown $(ARGS)

.PHONY: docs
docs: ## the documentation, in docs/_build/html; needs pip install -e '.[docs]'
	$(PYTHON) -m sphinx -W --keep-going -b html docs docs/_build/html $(ARGS)

.PHONY: compare history
compare: ## every operator's time and instructions at two commits, BASE and the current one
	$(PYTHON) benchmarks/compare.py $(BASE) $(ARGS)

history: ## the same at many commits: COMMITS=main~10..main
	$(PYTHON) benchmarks/compare.py $(COMMITS) $(ARGS)
