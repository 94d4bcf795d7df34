"""`torch.autocast("tpu")`: which ops run in bfloat16, which in float32. The lists are PyTorch's for CUDA and XPU.

PyTorch keeps them in C++ macros (ATen/autocast_mode.h), with a kernel for each device that it knows; for others they have
to be written again. `binary_cross_entropy`, which PyTorch refuses there because of float16, runs in float32 here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.library import Library

# In the lower precision: matrix products and convolutions.
LOWER = (
    "_convolution", "_convolution.deprecated", "_scaled_dot_product_flash_attention", "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "conv1d", "conv2d", "conv3d",
    "conv_tbc", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "einsum", "gru_cell",
    "linalg_multi_dot", "linalg_vecdot", "linear", "lstm_cell", "matmul", "mm", "mv", "prelu", "rnn_relu_cell", "rnn_tanh_cell",
    "scaled_dot_product_attention",
)  # fmt: skip

# In float32: what loses too many digits otherwise.
FLOAT32 = (
    "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d", "acos", "asin", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cdist",
    "cosh", "cosine_embedding_loss", "cosine_similarity", "dist", "erfinv", "exp", "expm1", "frobenius_norm.dim", "group_norm",
    "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "layer_norm", "log", "log10", "log1p", "log2", "logsumexp",
    "margin_ranking_loss", "mse_loss", "multi_margin_loss", "multilabel_margin_loss", "native_layer_norm", "nll_loss",
    "nll_loss2d", "nuclear_norm", "nuclear_norm.dim", "pdist", "poisson_nll_loss", "pow.Scalar", "pow.Tensor_Scalar",
    "pow.Tensor_Tensor", "reciprocal", "renorm", "rms_norm", "rsqrt", "sinh", "smooth_l1_loss", "soft_margin_loss", "softplus",
    "tan", "triplet_margin_loss", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d",
)  # fmt: skip

# In the input's precision with a float32 result, unless the call names a dtype.
FLOAT32_RESULT = (
    "cumprod", "cumsum", "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "linalg_vector_norm", "log_softmax.int", "prod",
    "prod.dim_int", "softmax.int", "sum", "sum.dim_IntList",
)  # fmt: skip

# The same for overloads that have no `dtype`: the overload that has one is called.
FLOAT32_RESULT_OVERLOAD = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}

# In the widest precision among the inputs, at least the lower one.
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "scatter_add", "tensordot", "vdot",
)  # fmt: skip

_outside = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_library = Library("aten", "IMPL")
_all = Library("_", "IMPL")


def pass_through() -> None:
    """Let every op without a cast rule pass, and make bfloat16 the dtype. Called by `import torchtpu`.

    The dtype belongs to a thread in PyTorch; threads other than the importing one have float16 until they name another.
    """
    _all.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    torch.set_autocast_dtype("tpu", torch.bfloat16)


def register() -> None:
    """Register the cast rules. Called when the device starts."""
    for names, cast in ((LOWER, _to_lower), (FLOAT32, _to_float32), (FLOAT32_RESULT, None), (WIDEST, _to_widest)):
        for name in names:
            op = _overload(name)
            _library.impl(name, _casting(op, cast) if cast else _with_dtype(op, op), "AutocastPrivateUse1")
    for name, other in FLOAT32_RESULT_OVERLOAD.items():
        _library.impl(name, _with_dtype(_overload(name), _overload(other)), "AutocastPrivateUse1")


def _overload(name: str) -> torch._ops.OpOverload:
    base, _, suffix = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), suffix or "default")


def _casting(op: torch._ops.OpOverload, choose: Callable[[Sequence[Any]], torch.dtype]) -> Callable[..., Any]:
    """Return the kernel that casts the floating-point tensors among the arguments and runs the op."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_outside):
            dtype = choose((*args, *kwargs.values()))
            args = tuple(_cast(a, dtype) for a in args)
            return op(*args, **{name: _cast(a, dtype) for name, a in kwargs.items()})

    return kernel


def _with_dtype(op: torch._ops.OpOverload, target: torch._ops.OpOverload) -> Callable[..., Any]:
    """Return the kernel that asks `target` for a float32 result, unless the call has a dtype."""
    names = [a.name for a in op._schema.arguments]
    position = names.index("dtype") if "dtype" in names else len(names)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_outside):
            if not _eligible(args[0]):
                return op(*args, **kwargs)
            if len(args) > position and args[position] is None:
                args = args[:position]
            if len(args) <= position and kwargs.get("dtype") is None:
                kwargs["dtype"] = torch.float32
            if target is not op:
                kwargs = dict(zip(names[1:], args[1:], strict=False)) | kwargs
                kwargs.setdefault("p", 2)
                args = args[:1]
            return target(*args, **kwargs)

    return kernel


def _to_lower(args: Sequence[Any]) -> torch.dtype:
    return torch.get_autocast_dtype("tpu")


def _to_float32(args: Sequence[Any]) -> torch.dtype:
    return torch.float32


def _to_widest(args: Sequence[Any]) -> torch.dtype:
    flat = [t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,))]
    return torch.float32 if any(_eligible(t) and t.dtype is torch.float32 for t in flat) else torch.get_autocast_dtype("tpu")


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "tpu"
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v, dtype) for v in value)
    if not _eligible(value) or value.dtype is dtype:
        return value
    if (
        value.requires_grad
        and value.is_leaf
        and value.dtype is torch.float32
        and dtype is not torch.float32
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
    ):
        key = id(value), dtype, torch.is_grad_enabled()
        if key not in _casts:
            _casts[key] = value, value.to(dtype)
        return _casts[key][1]
    return value.to(dtype)


# Casts of parameters inside the outermost `autocast`, with the parameters, so that an id stays theirs.
_casts: dict[tuple[int, torch.dtype, bool], tuple[torch.Tensor, torch.Tensor]] = {}


def clear_cache() -> None:
    """Forget the casts of parameters."""
    _casts.clear()
