"""What does not pass, and why. Each entry still runs, and fails the suite on the day it passes.

An entry is "variant op dtype mode", as the suite prints a failing test; `*` stands for every variant, dtype or mode that
runs. There is no entry for a wrong value: such an operator must refuse, or run on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.cases import Test

DECLARED: dict[str, tuple[str, ...]] = {
    "complex32 has no counterpart in XLA": (
        "functional chalf * *",
        "functional complex float16 *",
        "grad chalf * *",
        "out complex float16 *",
    ),
    "sparse tensors are refused: keep them on the CPU, or make them dense": (
        "functional sparse.mm.reduce * *",
        "functional sparse.sampled_addmm * *",
        "functional to_sparse * *",
        "grad sparse.mm.reduce * *",
        "grad sparse.sampled_addmm * *",
        "grad to_sparse * *",
        "optimizer optim.SparseAdam * *",
    ),
    "an accelerator cannot raise for the value of an index: `torchtpu.config.debug_index` has debug mode check them": (
        "error gather * *",
        "error scatter * *",
        "error scatter_add * *",
    ),
    "the CPU computes in float16, overflows and returns NaN; here it is float32 inside": ("functional matrix_exp float16 *",),
    "an accelerator cannot raise for probabilities that are negative, infinite or all zero": ("error multinomial * *",),
    "IndexError, as every operator raises for a dimension that does not exist": ("error narrow_copy * *",),
    "the CPU refuses an input as `out`, because it writes while it reads; here the result is right": (
        "error masked_select * *",
    ),
    "the statistics kept for the backward pass are those of PyTorch's accelerators: of float32, and some not empty": (
        "functional _batch_norm_with_update bfloat16 *",
        "functional _batch_norm_with_update float16 *",
        "functional _native_batch_norm_legit float32 *",
        "functional _native_batch_norm_legit bfloat16 *",
        "functional _native_batch_norm_legit float16 *",
        "functional native_batch_norm float32 *",
        "functional native_batch_norm bfloat16 *",
        "functional native_batch_norm float16 *",
        "functional native_layer_norm bfloat16 *",
        "functional native_layer_norm float16 *",
        "out _native_batch_norm_legit float32 *",
        "out _native_batch_norm_legit bfloat16 *",
        "out _native_batch_norm_legit float16 *",
        "out native_batch_norm float32 *",
        "out native_batch_norm bfloat16 *",
        "out native_batch_norm float16 *",
    ),
}

_NO_EIG = "XLA decomposes matrices that are not symmetric on the CPU only"
_NO_LDL = "XLA has no LDL factorization"

# Why an ATen overload runs on the CPU.
FALLBACKS: dict[str, str] = {
    "aten::_linalg_eigvals": _NO_EIG,
    "aten::linalg_eig": _NO_EIG,
    "aten::linalg_eig.out": _NO_EIG,
    "aten::linalg_eigvals.out": _NO_EIG,
    "aten::linalg_ldl_factor_ex.out": _NO_LDL,
    "aten::linalg_ldl_solve.out": _NO_LDL,
    "aten::linalg_lstsq.out": "what it returns besides the solution depends on which of LAPACK's four drivers is asked for",
}

_NESTED = "PyTorch's Python class of nested tensors implements it: no device does"

# Why an overload of the reference (torch_tpu 0.2.0) has no lowering here.
OVERLOADS: dict[str, str] = {
    "aten::_fused_moving_avg_obs_fq_helper": "runs on the CPU: one fused module of quantization-aware training uses it",
    "aten::_nested_from_padded_tensor": _NESTED,
    "aten::_nested_get_jagged_dummy": _NESTED,
    "aten::_nested_get_lengths": _NESTED,
    "aten::_nested_get_max_seqlen": _NESTED,
    "aten::_nested_get_min_seqlen": _NESTED,
    "aten::_nested_get_offsets": _NESTED,
    "aten::_nested_get_ragged_idx": _NESTED,
    "aten::_nested_get_values": _NESTED,
    "aten::_nested_view_from_jagged": _NESTED,
    "aten::_scaled_dot_product_cudnn_attention": "scaled_dot_product_attention has another implementation here",
    "aten::_scaled_dot_product_cudnn_attention_backward": "scaled_dot_product_attention has another implementation here",
    "aten::_scaled_grouped_mm": "PyTorch has products of groups of float8 matrices on CUDA only",
    "aten::ctc_loss": "a name without an overload; ctc_loss.IntList and ctc_loss.Tensor are decomposed",
}


def entries() -> Iterator[tuple[str, str]]:
    """Yield (entry, reason)."""
    for reason, tests in DECLARED.items():
        for entry in tests:
            yield entry, reason


def reason(test: Test) -> str | None:
    """Return why a test is expected to fail, or None."""
    given = str(test).split()
    for entry, why in entries():
        if all(word in ("*", part) for word, part in zip(entry.split(), given, strict=True)):
            return why
    return None
