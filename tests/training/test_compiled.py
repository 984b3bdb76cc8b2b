"""Our own kernels as an H200's driver gets them: Triton compiles them here, without a GPU (`make kernels`)."""

import os
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton is not installed: make kernels")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton interprets, and compiles nothing", allow_module_level=True)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flipguard.training import norm_kernels
from flipguard.training.normalisation import SUM_STAGES, SUM_TILE, SUM_WARPS, TILE, WARPS

HALF = {"x", "y", "z", "g", "dy", "dy2", "dy3", "dy4", "dx"}
WHOLE = {f"{letter}{number}": 0 for letter in "SW" for number in range(1, 5)}
PARTS = WHOLE | {"S2": 64, "W1": 64, "W2": 64, "W3": 64, "S4": 64, "W4": 64}


def kind(name: str) -> str:
    if name in HALF:
        return "*bf16"
    if name in ("rows", "channels", "chunk", "places"):
        return "i32"
    return {"count": "*i32", "momentum": "fp32", "eps": "fp32"}.get(name, "*fp32")


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("channels", [32, 64])
@pytest.mark.parametrize(
    ("name", "options", "hides_nan"),
    [
        ("statistics", {}, False),
        ("forward", {"ADD": True, "RELU": True}, False),
        ("forward", {"ADD": False, "RELU": False}, None),
        ("gradient_sums", {"ADD": True, "RELU": True, "PARTS": 2, "KEEP": True} | WHOLE, None),
        ("gradient_sums", {"ADD": False, "RELU": True, "PARTS": 1, "KEEP": False} | WHOLE, None),
        ("gradient_sums", {"ADD": True, "RELU": True, "PARTS": 4, "KEEP": True} | PARTS, None),
        ("backward", {"SIGN": True}, None),
    ],
)
def test_kernels_compile(name: str, options: dict[str, Any], hides_nan: bool | None, channels: int) -> None:
    """For compute capability 9.0, with the tiles that are used; and a maximum keeps what is no number."""
    kernel, sums = getattr(norm_kernels, name), name in ("statistics", "gradient_sums")
    tile = {"BR": (SUM_TILE if sums else TILE) // channels, "BC": channels} | ({"STAGES": SUM_STAGES} if sums else {})
    fixed = {**options, **tile}
    signature = {own: "constexpr" if own in fixed else kind(own) for own in kernel.arg_names}
    places = {(kernel.arg_names.index(own),): value for own, value in fixed.items()}
    compiled = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=places),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": SUM_WARPS if sums else WARPS},
    )
    code = compiled.asm["ptx"]
    assert ".target sm_90" in code
    assert ("max.NaN.f32" in code) == (hides_nan is False)
