"""Linear algebra on batches of matrices: factorisations, solvers, inverses, determinants.

XLA calls LAPACK on the CPU and has its own algorithms on the TPU. What fails there gives NaN; PyTorch's `info` results, and
so its errors, are worked out from the factors. Left to the CPU fallback: general eigenvalues, least squares, LDL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import torch
from jax import lax

from torchtpu.modes import state
from torchtpu.ops.reduction import wide
from torchtpu.ops.registry import entry, rule


def mH(x: jax.Array) -> jax.Array:
    """Return the conjugate transpose of each matrix."""
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def mT(x: jax.Array) -> jax.Array:
    """Return the transpose of each matrix."""
    return jnp.swapaxes(x, -1, -2)


def _diagonal(x: jax.Array) -> jax.Array:
    return jnp.diagonal(x, axis1=-2, axis2=-1)


def _empty(out: torch.Tensor, like: jax.Array) -> jax.Array:
    """Return what PyTorch gives for a result that was not asked for."""
    return jnp.zeros(tuple(out.shape), like.dtype)


def _first(bad: jax.Array) -> jax.Array:
    """Return LAPACK's info: the 1-based position of the first True along the last axis, 0 if there is none."""
    if bad.shape[-1] == 0:
        return jnp.zeros(bad.shape[:-1], jnp.int32)
    return jnp.where(bad.any(-1), jnp.argmax(bad, -1) + 1, 0).astype(jnp.int32)


def _checked(
    name: str, kernel: Callable[..., Any], matrix: torch.Tensor, *args: Any, check_errors: bool = False, **kwargs: Any
) -> Any:
    """Raise for a matrix that could not be factored, where the caller asks for that: it waits for the result."""
    results = kernel(matrix, *args, **kwargs)
    if check_errors:
        torch._linalg_check_errors(results[-1], name, is_matrix=matrix.dim() == 2)
    return results


for _op, _name in (
    ("linalg_cholesky_ex", "linalg.cholesky_ex"),
    ("linalg_inv_ex", "linalg.inv_ex"),
    ("linalg_lu_factor_ex", "linalg.lu_factor_ex"),
    ("_linalg_solve_ex", "linalg.solve_ex"),
):
    entry(f"aten::{_op}")(partial(_checked, _name))


@entry("aten::_linalg_check_errors")
def _check_errors(kernel: None, info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Raise for what could not be factored. There is nothing to look at while a function is only recorded."""
    if state.recorder is None:
        torch._linalg_check_errors(info.cpu(), api_name, is_matrix=is_matrix)


# -- triangular matrices


def solve_triangular(
    a: jax.Array,
    b: jax.Array,
    *,
    upper: bool,
    left: bool = True,
    unit: bool = False,
    transpose: bool = False,
    conj: bool = False,
) -> jax.Array:
    """Solve A X = B (or X A = B) for triangular matrices whose batches broadcast."""
    lead = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = jnp.broadcast_to(a, lead + a.shape[-2:]), jnp.broadcast_to(b, lead + b.shape[-2:])
    if 0 in b.shape:
        return b
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=not upper, transpose_a=transpose, conjugate_a=conj, unit_diagonal=unit
    )


@rule("aten::linalg_solve_triangular")
def _solve_triangular(a: jax.Array, b: jax.Array, upper: bool, left: bool, unitriangular: bool) -> jax.Array:
    return solve_triangular(a, b, upper=upper, left=left, unit=unitriangular)


@rule("aten::triangular_solve")
def _triangular_solve(
    b: jax.Array, a: jax.Array, upper: bool, transpose: bool, unitriangular: bool
) -> tuple[jax.Array, jax.Array]:
    solution = solve_triangular(a, b, upper=upper, unit=unitriangular, transpose=transpose)
    return solution, jnp.broadcast_to(a, solution.shape[:-2] + a.shape[-2:])


# -- Cholesky


def cholesky(a: jax.Array, upper: bool) -> jax.Array:
    """Return the Cholesky factor read from one triangle; NaN where the matrix is not positive-definite."""
    if 0 in a.shape:
        return a
    factor = lax.linalg.cholesky(mH(a) if upper else a, symmetrize_input=False)
    return mH(factor) if upper else factor


def _first_bad_pivot(a: jax.Array) -> jax.Array:
    """Return the order of the first leading minor of a lower triangle that is not positive, 0 if all are."""
    rows = jnp.arange(a.shape[-1])

    def eliminate(k: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, first = state
        column = jnp.take(a, k, axis=-1)
        pivot = jnp.take(column, k, axis=-1).real
        first = jnp.where((first == 0) & ~(pivot > 0), k + 1, first)
        column = jnp.where(rows > k, column, 0) / jnp.sqrt(jnp.where(pivot > 0, pivot, 1))[..., None]
        return a - column[..., :, None] * jnp.conj(column)[..., None, :], first

    return lax.fori_loop(0, a.shape[-1], eliminate, (a, jnp.zeros(a.shape[:-2], jnp.int64)))[1].astype(jnp.int32)


@rule("aten::linalg_cholesky_ex")
def _cholesky_ex(a: jax.Array, upper: bool, check_errors: bool) -> tuple[jax.Array, jax.Array]:
    factor = cholesky(a, upper)
    if 0 in a.shape:
        return factor, jnp.zeros(a.shape[:-2], jnp.int32)
    failed = jnp.isnan(_diagonal(factor).real).any(-1)
    # LAPACK says which minor failed; XLA does not, so a failure, and only that, is looked for again.
    info = lax.cond(
        failed.any(),
        lambda a: jnp.where(failed, _first_bad_pivot(mH(a) if upper else a), 0).astype(jnp.int32),
        lambda a: jnp.zeros(failed.shape, jnp.int32),
        a,
    )
    return factor, info


@entry("aten::cholesky", "aten::cholesky.out")
def _cholesky(kernel: Any, matrix: torch.Tensor, upper: bool = False, **out: torch.Tensor) -> torch.Tensor:
    return torch.linalg.cholesky(matrix, upper=upper, **out)  # checks `info`


@rule("aten::_cholesky_solve_helper")
def _cholesky_solve(b: jax.Array, factor: jax.Array, upper: bool) -> jax.Array:
    first = solve_triangular(factor, b, upper=upper, transpose=upper, conj=upper)
    return solve_triangular(factor, first, upper=upper, transpose=not upper, conj=not upper)


@rule("aten::cholesky_inverse")
def _cholesky_inverse(factor: jax.Array, upper: bool) -> jax.Array:
    identity = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    factor = jnp.triu(factor) if upper else jnp.tril(factor)
    return _cholesky_solve(identity, factor, upper)


# -- LU


def lu(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return LU, LAPACK's 1-based pivots, and info."""
    if 0 in a.shape:
        pivots = jnp.zeros((*a.shape[:-2], min(a.shape[-2:])), jnp.int32)
        return a, pivots, jnp.zeros(a.shape[:-2], jnp.int32)
    factors, pivots, _ = lax.linalg.lu(a)
    return factors, pivots.astype(jnp.int32) + 1, _first(_diagonal(factors) == 0)


def _permutation(pivots: jax.Array, rows: int) -> jax.Array:
    """Return p such that A[p] = L U."""
    if pivots.size == 0:
        return jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*pivots.shape[:-1], rows))
    return lax.linalg.lu_pivots_to_permutation(pivots.astype(jnp.int32) - 1, rows)


def _permutation_matrix(pivots: jax.Array, rows: int, dtype: Any) -> jax.Array:
    """Return P such that A = P L U."""
    return mT(jax.nn.one_hot(_permutation(pivots, rows), rows, dtype=dtype))


def lu_solve(factors: jax.Array, pivots: jax.Array, b: jax.Array, left: bool = True, adjoint: bool = False) -> jax.Array:
    """Solve A X = B from A's factors; `left` False: X A = B; `adjoint`: with A's conjugate transpose."""
    if not left:
        return mH(lu_solve(factors, pivots, mH(b), adjoint=not adjoint))
    lead = jnp.broadcast_shapes(factors.shape[:-2], b.shape[:-2])
    b = jnp.broadcast_to(b, lead + b.shape[-2:])
    order = jnp.broadcast_to(_permutation(pivots, b.shape[-2]), lead + b.shape[-2:-1])
    if not adjoint:
        b = jnp.take_along_axis(b, order[..., None], axis=-2)
        return solve_triangular(factors, solve_triangular(factors, b, upper=False, unit=True), upper=True)
    x = solve_triangular(factors, b, upper=True, transpose=True, conj=True)
    x = solve_triangular(factors, x, upper=False, unit=True, transpose=True, conj=True)
    return jnp.take_along_axis(x, jnp.argsort(order, axis=-1)[..., None], axis=-2)


def lower_and_upper(factors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split packed factors into L, with its unit diagonal, and U."""
    m, n = factors.shape[-2:]
    k = min(m, n)
    return jnp.tril(factors[..., :, :k], -1) + jnp.eye(m, k, dtype=factors.dtype), jnp.triu(factors[..., :k, :])


def _pivoting_only(pivot: bool) -> None:
    if not pivot:
        raise RuntimeError("linalg.lu_factor: LU without pivoting is not implemented on tpu")


@rule("aten::linalg_lu_factor_ex")
def _lu_factor_ex(a: jax.Array, pivot: bool, check_errors: bool) -> tuple[jax.Array, ...]:
    _pivoting_only(pivot)
    return lu(a)


@rule("aten::linalg_lu")
def _lu(a: jax.Array, pivot: bool) -> tuple[jax.Array, ...]:
    _pivoting_only(pivot)
    factors, pivots, _ = lu(a)
    return _permutation_matrix(pivots, a.shape[-2], a.dtype), *lower_and_upper(factors)


@rule("aten::lu_unpack", meta=True)
def _lu_unpack(
    factors: jax.Array, pivots: jax.Array, unpack_data: bool, unpack_pivots: bool, *, out: Sequence[torch.Tensor]
) -> tuple[jax.Array, ...]:
    p = _permutation_matrix(pivots, factors.shape[-2], factors.dtype) if unpack_pivots else _empty(out[0], factors)
    return p, *(lower_and_upper(factors) if unpack_data else (_empty(out[1], factors), _empty(out[2], factors)))


@rule("aten::linalg_lu_solve")
def _lu_solve(factors: jax.Array, pivots: jax.Array, b: jax.Array, left: bool, adjoint: bool) -> jax.Array:
    return lu_solve(factors, pivots, b, left, adjoint)


@rule("aten::_linalg_solve_ex", meta=True)
def _solve_ex(
    a: jax.Array, b: jax.Array, left: bool, check_errors: bool, *, out: Sequence[torch.Tensor]
) -> tuple[jax.Array, ...]:
    factors, pivots, info = lu(a)
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    b = b[..., None] if is_vector else b
    result = lu_solve(factors, pivots, b, left=left or is_vector)
    return (result[..., 0] if is_vector else result), factors, pivots, info


@rule("aten::linalg_inv_ex")
def _inv_ex(a: jax.Array, check_errors: bool) -> tuple[jax.Array, jax.Array]:
    factors, pivots, info = lu(a)
    return lu_solve(factors, pivots, jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)), info


def _swaps_sign(pivots: jax.Array, dtype: Any) -> jax.Array:
    odd = jnp.sum(pivots != jnp.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype), axis=-1) % 2
    return (1 - 2 * odd).astype(dtype)


@entry("aten::_linalg_det", "aten::_linalg_slogdet")
def _factored_as_on_cpu(kernel: Callable[..., Any], matrix: torch.Tensor) -> Any:
    """Factor the transpose of a contiguous real matrix: PyTorch's backward pass takes the factors to be of that."""
    return kernel(matrix.mT if matrix.is_contiguous() and not matrix.is_complex() else matrix)


@rule("aten::_linalg_det")
def _det(a: jax.Array) -> tuple[jax.Array, ...]:
    factors, pivots, _ = lu(a)
    return jnp.prod(_diagonal(factors), axis=-1) * _swaps_sign(pivots, a.dtype), factors, pivots


@rule("aten::_linalg_slogdet")
def _slogdet(a: jax.Array) -> tuple[jax.Array, ...]:
    factors, pivots, _ = lu(a)
    diagonal = _diagonal(factors)
    size = jnp.abs(diagonal)
    sign = jnp.prod(jnp.where(size == 0, diagonal, diagonal / size), axis=-1) * _swaps_sign(pivots, a.dtype)
    return sign, jnp.sum(jnp.log(size), axis=-1), factors, pivots


# -- orthogonal factors


@rule("aten::linalg_qr", meta=True)
def _qr(a: jax.Array, mode: str, *, out: Sequence[torch.Tensor]) -> tuple[jax.Array, jax.Array]:
    if mode == "r":
        return _empty(out[0], a), _qr(a, "reduced", out=out)[1]
    if 0 in a.shape:
        q, r = (tuple(o.shape) for o in out)
        return jnp.broadcast_to(jnp.eye(*q[-2:], dtype=a.dtype), q), jnp.zeros(r, a.dtype)
    return lax.linalg.qr(a, full_matrices=mode == "complete")


@rule("aten::_linalg_svd", meta=True)
def _svd(
    a: jax.Array, full_matrices: bool, compute_uv: bool, driver: str | None, *, out: Sequence[torch.Tensor]
) -> tuple[jax.Array, ...]:
    if 0 in a.shape:
        u, s, vh = (tuple(o.shape) for o in out)
        eye = [jnp.broadcast_to(jnp.eye(*x[-2:], dtype=a.dtype), x) if len(x) > 1 else jnp.zeros(x, a.dtype) for x in (u, vh)]
        return eye[0], jnp.zeros(s, a.real.dtype), eye[1]
    if not compute_uv:
        return _empty(out[0], a), lax.linalg.svd(a, full_matrices=False, compute_uv=False), _empty(out[2], a)
    return lax.linalg.svd(a, full_matrices=full_matrices)


@rule("aten::_linalg_eigh", meta=True)
def _eigh(a: jax.Array, uplo: str, compute_v: bool, *, out: Sequence[torch.Tensor]) -> tuple[jax.Array, jax.Array]:
    if 0 in a.shape:
        return jnp.zeros(tuple(out[0].shape), a.real.dtype), _empty(out[1], a)
    vectors, values = lax.linalg.eigh(a, lower=uplo.upper() == "L", symmetrize_input=False)
    return values, vectors if compute_v else _empty(out[1], a)


def _geqrf_metadata(x: torch.Tensor, **out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """torch has no meta kernel (2.13). The factors are stored by columns, as LAPACK has them."""
    sizes = tuple(x.shape), (*x.shape[:-2], min(x.shape[-2:]))
    if out:
        return tuple(o.resize_(s) for o, s in zip(out.values(), sizes, strict=True))
    return x.new_empty(sizes[0]).mT.contiguous().mT, x.new_empty(sizes[1])


@rule("aten::geqrf", metadata=_geqrf_metadata)
def _geqrf(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    if 0 in a.shape:
        return a, jnp.zeros((*a.shape[:-2], min(a.shape[-2:])), a.dtype)
    factors, tau = jnp.linalg.qr(a, mode="raw")
    return jnp.swapaxes(factors, -1, -2), tau


@rule("aten::linalg_householder_product")
def _householder_product(a: jax.Array, tau: jax.Array) -> jax.Array:
    if 0 in a.shape or tau.shape[-1] == 0:
        return jnp.broadcast_to(jnp.eye(*a.shape[-2:], dtype=a.dtype), a.shape)
    return lax.linalg.householder_product(a, tau)


@rule("aten::ormqr")
def _ormqr(a: jax.Array, tau: jax.Array, c: jax.Array, left: bool, transpose: bool) -> jax.Array:
    return c if 0 in c.shape or 0 in a.shape else lax.linalg.ormqr(a, tau, c, left=left, transpose=transpose)


# -- functions of matrices, products of vectors


@rule("aten::linalg_cross")
def _cross(a: jax.Array, b: jax.Array, dim: int) -> jax.Array:
    return jnp.cross(*jnp.broadcast_arrays(a, b), axis=dim)


@rule("aten::linalg_matrix_exp")
def _matrix_exp(a: jax.Array) -> jax.Array:
    return a if a.size == 0 else jax.scipy.linalg.expm(wide(a))
