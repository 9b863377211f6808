# SPDX-License-Identifier: BSD-3-Clause
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.skydelta-installed

.PHONY: demo test lint typecheck clean
.DELETE_ON_ERROR:

# Simulate a pair with known truth, run the whole job on it, print what was found and where the report is.
demo: $(INSTALLED)
	$(BIN)/python -m skydelta.pipeline.demo

test: lint typecheck
	$(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart 0

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy follows neither import hooks nor __path__, so it is shown the layout that an installation has; from the root it
# would take io/ for the standard library's io.
typecheck: $(INSTALLED)
	rm -rf build/typecheck
	mkdir -p build/typecheck/skydelta
	ln -s $(addprefix ../../../,$(wildcard skydelta/*.py skydelta/py.typed) pipeline stages kernels io workflows) build/typecheck/skydelta/
	cd build/typecheck && $(abspath $(BIN))/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p skydelta

clean:
	rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache demo-output
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("skydelta needs Python 3.11 or later, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[mpi,dev]'
	touch $@
