"""What cannot be imported here is not collected; integrations are left to `make integrations`, which has them all."""

import gc
from importlib.util import find_spec

# Libraries and thousands of tests stay to the end: looking through all of them takes half a second, each time.
gc.disable()

_FILES = {
    "lightning": ("lightning.py",),
    "transformers": ("transformers.py",),
    "mlflow": ("mlflow.py", "mlflow_release.py"),
    "wandb": ("wandb.py",),
}

collect_ignore = [
    path
    for library, files in _FILES.items()
    if find_spec(library) is None
    for path in (f"tests/integrations/test_{library}.py", *(f"src/flipguard/integrations/{file}" for file in files))
]
collect_ignore += ["tests/test_package.py"] if find_spec("build") is None or find_spec("twine") is None else []
# Triton comes with torch's CUDA builds alone.
collect_ignore += (
    [] if find_spec("triton") else [f"src/flipguard/training/{name}.py" for name in ("normalisation", "norm_kernels")]
)
collect_ignore += [] if find_spec("ray") else ["src/flipguard/integrations/ray.py"]


def pytest_collection_finish() -> None:
    if find_spec("hypothesis"):
        from hypothesis import find, settings, strategies

        # At its first use it asks who refers to its generators, and who is frozen does not answer.
        find(strategies.none(), lambda _: True, settings=settings(database=None))
    gc.freeze()
    gc.enable()
