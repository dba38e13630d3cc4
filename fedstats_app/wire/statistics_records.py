"""One specification's statistics as an ArrayRecord, and back.

``class-ids`` (m,) int64, ``counts`` (m,) int64, ``class-sums`` (m, d), and with a Gram matrix either ``gram``
(d (d + 1) / 2,), its upper triangle row by row, or, from a client with fewer samples than features or in few bits,
``gram-factor`` (r d - r (r - 1) / 2,), the upper trapezoid (r, d) of its triangular factor row by row; the length says
r. In few bits each row of both has a scale, ``class-sum-scales`` (m,) and ``gram-scales`` (r,) float32. With a factor
of the scatter about the rows' means ``scatter-values`` (k,) float32, ``scatter-directions`` (k, d) float32, float16 or
int8, or for int4 (k, ceil(d / 2)) uint8, and ``scatter-left-out`` () float64, the energy that is not in them.
"""

from __future__ import annotations

import math

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedstats_app.statistics import (
    ClassMeanRows,
    ClientStatistics,
    GramFactor,
    ScatterFactor,
    ScatterSpec,
    StatisticsSpec,
)
from fedstats_app.statistics.accumulation import all_finite, pack_upper, unpack_upper
from fedstats_app.statistics.factors import FACTOR_DTYPES, full_rank, num_factor_numbers
from fedstats_app.statistics.quantisation import (
    LEVELS,
    decoded,
    direction_codes,
    encoded,
    largest_errors,
    packed_nibbles,
    unit_rows,
    unpacked_nibbles,
)
from fedstats_app.wire.arrays import MAX_FEATURE_DIM, NUMBER_BYTES, WIRE_DTYPES, read_array, to_array
from fedstats_app.wire.reading import Malformed, check_keys
from fedstats_app.wire.statistics_checks import (
    Limits,
    check_gram,
    check_gram_factor,
    check_rows,
    check_scatter,
    check_sums,
)
from fedstats_app.wire.statistics_request import StatisticsRequest

ROW_KEYS = ("class-ids", "counts", "class-sums", "class-sum-scales")
GRAM_KEYS = ("gram", "gram-factor", "gram-scales")
# Of the codes of rows in few bits.
CODE_DTYPES = {"float16": torch.float16, "int8": torch.int8}
SCATTER_KEYS = ("scatter-values", "scatter-directions", "scatter-left-out")


def bytes_per_row(rows: ClassMeanRows, wire_dtype: str) -> int:
    """Return the bytes of one row, without headers of arrays."""
    scale = 0 if wire_dtype in WIRE_DTYPES else 4
    return 16 + rows.feature_dim * NUMBER_BYTES[wire_dtype] + scale


def statistics_record(client: ClientStatistics, spec: StatisticsSpec, wire_dtype: str, other_bytes: int) -> ArrayRecord:
    """Return what a specification asks for, sums and Gram matrix in ``wire_dtype``.

    Parameters
    ----------
    client : ClientStatistics
        Its factor of the scatter, where asked for, has all directions that the rule wants, or is made of its Gram
        matrix.
    spec : StatisticsSpec
        What is asked for.
    wire_dtype : str
        One of ``NUMBER_BYTES``.
    other_bytes : int
        Of the reply's other records, which count where the reply may take so many bytes.

    Raises
    ------
    ValueError
        If a Gram matrix or factor asked for is missing, a number is too large for the dtype, or the rows alone take
        more bytes than the reply may.
    """
    record = ArrayRecord()  # of a dictionary it would copy every Array
    record["class-ids"] = to_array(client.rows.class_ids)
    record["counts"] = to_array(client.rows.counts)
    sums, dtype = client.rows.class_sums, WIRE_DTYPES.get(wire_dtype)
    if spec.gram and not client.has_gram:
        raise ValueError("the request asks for a Gram matrix, got statistics without one")
    if dtype is None:
        _put_encoded(record, client, wire_dtype, gram=spec.gram)
    else:
        record["class-sums"] = to_array(_cast(sums, dtype))
        if spec.gram and client.gram_factor is not None:
            record["gram-factor"] = to_array(_cast(client.gram_factor.packed(), dtype))
        elif spec.gram and client.gram is not None:
            record["gram"] = to_array(_cast(pack_upper(client.gram), dtype))
    if spec.sends_scatter and spec.scatter is not None:
        sent = with_scatter(client, spec.scatter, num_bytes(record, ROW_KEYS) + other_bytes).scatter
        if sent is not None:
            record["scatter-values"] = to_array(_cast(sent.values, torch.float32))
            record["scatter-directions"] = to_array(_direction_array(sent.directions, spec.scatter.dtype))
            record["scatter-left-out"] = to_array(torch.tensor(sent.left_out, dtype=torch.float64))
    return record


def num_bytes(record: ArrayRecord, keys: tuple[str, ...]) -> int:
    """Return the bytes of a record's arrays of these keys, those that are there."""
    return sum(len(record[key].data) for key in keys if key in record)


def with_scatter(client: ClientStatistics, spec: ScatterSpec, bytes_without: int) -> ClientStatistics:
    """Return statistics with the factor of the scatter as it is sent, from one of enough directions or the Gram matrix.

    Parameters
    ----------
    client : ClientStatistics
        With one of them.
    spec : ScatterSpec
        How many directions are wanted, and in which dtype.
    bytes_without : int
        Of the reply without the factor.

    Raises
    ------
    ValueError
        If there is neither, or the reply without any direction is larger than allowed.
    """
    complete, dim = client.scatter_factor(), client.rows.feature_dim
    if complete is None:
        raise ValueError("the request asks for a factor of the scatter, got statistics without one")
    spec.rank.check_fits(bytes_without + spec.num_bytes(0, dim))
    rank = spec.rank.rank(
        int(client.rows.num_examples),
        len(complete),
        lambda rank: bytes_without + spec.num_bytes(rank, dim),
        complete.energies,
    )
    kind = FACTOR_DTYPES.get(spec.dtype, spec.dtype)
    return client.with_scatter(complete.truncated(rank, kind))


def scatter_bytes_of(spec: ScatterSpec, client: ClientStatistics) -> int:
    """Return the bytes that the arrays of a client's factor take on the wire, headers included."""
    return 0 if client.scatter is None else spec.num_bytes(len(client.scatter), client.rows.feature_dim)


def read_statistics_record(
    record: ArrayRecord,
    spec: StatisticsSpec,
    request: StatisticsRequest,
    feature_dim: int | None,
    limits: Limits = Limits(),  # noqa: B008  # frozen
) -> ClientStatistics:
    """Return the statistics of a stranger's record that passes every check.

    Parameters
    ----------
    record : ArrayRecord
        From anybody.
    spec : StatisticsSpec
        What was asked for.
    request : StatisticsRequest
        Of which that is a part.
    feature_dim : int or None
        The backbone's dimension d, where known.
    limits : Limits
        Beyond which nobody's statistics are.

    Raises
    ------
    Malformed
        Saying what was wrong, what is allowed and what came.
    """
    kind = request.wire_dtype
    dtype, few_bits = WIRE_DTYPES.get(kind, torch.float32), kind not in WIRE_DTYPES
    gram_key = "gram-factor" if few_bits or "gram-factor" in record else "gram"
    more = {gram_key} if spec.gram else {*SCATTER_KEYS} if spec.sends_scatter else set()
    scales = ({"class-sum-scales"} | ({"gram-scales"} if spec.gram else set())) if few_bits else set()
    check_keys("statistics", record, {*ROW_KEYS[:3], *more, *scales})
    ids = read_array(record, "class-ids", torch.int64, (range(request.num_classes * spec.means_per_class + 1),))
    counts = read_array(record, "counts", torch.int64, (len(ids),))
    check_rows(ids, counts, request.num_classes, spec.means_per_class)
    dims = range(1, MAX_FEATURE_DIM + 1) if feature_dim is None else spec.feature_map.output_dim(feature_dim)
    norm = limits.mapped_norm(spec, feature_dim)
    slack = 0.0
    if few_bits:
        codes = read_array(record, "class-sums", CODE_DTYPES[kind], (len(ids), dims))
        steps = _read_scales(record, "class-sum-scales", len(ids))
        sums = decoded(codes, steps)
        slack = _slack(torch.linalg.vector_norm(sums.double(), dim=1), largest_errors(codes, steps), counts)
    else:
        sums = read_array(record, "class-sums", dtype, (len(ids), dims))
    rows = ClassMeanRows(ids, counts, num_classes=request.num_classes, class_sums=sums)
    if int(rows.num_examples) > limits.max_samples:
        raise Malformed(
            f"counts: must sum to at most {limits.max_samples} (max-client-samples), got {rows.num_examples}"
        )
    check_sums(rows, norm)
    if spec.scatter is not None and not spec.gram:
        return ClientStatistics(rows, scatter=_read_scatter(record, rows, spec.scatter, norm))
    if not spec.gram:
        return ClientStatistics(rows)
    eps = torch.finfo(dtype).eps
    if few_bits:
        factor, error = _read_encoded_factor(record, rows, kind)
        length = float(torch.linalg.matrix_norm(factor.trapezoid))
        check_gram_factor(factor, rows, eps, norm, slack + 2.0 * length * error + error**2)
        return ClientStatistics(rows, factor)
    if gram_key == "gram-factor":
        factor = _read_factor(record, rows, dtype)
        check_gram_factor(factor, rows, eps, norm)
        return ClientStatistics(rows, factor)
    gram = _read_triangle(record, rows, dtype)
    check_gram(gram, rows, eps, norm)
    return ClientStatistics(rows, gram)


def _put_encoded(record: ArrayRecord, client: ClientStatistics, kind: str, *, gram: bool) -> None:
    """Put sums and, where asked for, the factor of the Gram matrix in few bits."""
    codes, scales = encoded(client.rows.class_sums, kind, dithered=True)
    record["class-sums"], record["class-sum-scales"] = to_array(codes), to_array(scales)
    if gram and client.gram is not None:
        factor = client.gram_factor if client.gram_factor is not None else GramFactor.of_gram(client.gram)
        codes, scales = encoded(factor.trapezoid, kind)
        row, column = torch.triu_indices(*codes.shape)
        record["gram-factor"], record["gram-scales"] = to_array(codes[row, column]), to_array(scales)


def _direction_array(directions: Tensor, kind: str) -> Tensor:
    """Return directions as they travel; those of integers are given as :func:`unit_rows` of them."""
    if kind in FACTOR_DTYPES:
        return directions
    codes = direction_codes(directions, kind)
    return packed_nibbles(codes) if kind == "int4" else codes


def _read_scales(record: ArrayRecord, name: str, number: int) -> Tensor:
    scales = read_array(record, name, torch.float32, (number,))
    if bool((scales < 0).any()):
        raise Malformed(f"{name}: must be at least 0, got {float(scales.min()):.3g}")
    return scales


def _slack(lengths: Tensor, errors: Tensor, counts: Tensor) -> float:
    """Return by how much rounded sums can move an eigenvalue of sum_j s_j s_j^T / n_j."""
    return float(((2.0 * lengths * errors + errors.square()) / counts.to(torch.float64)).sum())


def _read_encoded_factor(record: ArrayRecord, rows: ClassMeanRows, kind: str) -> tuple[GramFactor, float]:
    """Return the factor, of no more rows than samples or features, and how far off it can be, as a length."""
    dim = rows.feature_dim
    most = min(int(rows.num_examples), dim)
    packed = read_array(record, "gram-factor", CODE_DTYPES[kind], (range(num_factor_numbers(most, dim) + 1),))
    try:
        codes = GramFactor.unpacked(packed, dim).trapezoid
        scales = _read_scales(record, "gram-scales", len(codes))
        errors = largest_errors(codes.to(packed.dtype), scales)
        return GramFactor(codes * scales.to(torch.float64).unsqueeze(1)), float(errors.square().sum().sqrt())
    except ValueError as error:
        raise Malformed(f"gram-factor: {error}") from error


def _read_triangle(record: ArrayRecord, rows: ClassMeanRows, dtype: torch.dtype) -> Tensor:
    dim = rows.feature_dim
    return unpack_upper(read_array(record, "gram", dtype, (dim * (dim + 1) // 2,)), dim).to(torch.float64)


def _read_factor(record: ArrayRecord, rows: ClassMeanRows, dtype: torch.dtype) -> GramFactor:
    """Return the factor: of no more rows than there are samples, and fewer than features."""
    dim = rows.feature_dim
    most = num_factor_numbers(min(int(rows.num_examples), dim - 1), dim)
    packed = read_array(record, "gram-factor", dtype, (range(most + 1),))
    try:
        return GramFactor.unpacked(packed, dim)
    except ValueError as error:
        raise Malformed(f"gram-factor: {error}") from error


def _read_scatter(record: ArrayRecord, rows: ClassMeanRows, spec: ScatterSpec, norm: float) -> ScatterFactor:
    most, dim = range(full_rank(rows) + 1), rows.feature_dim
    values = read_array(record, "scatter-values", torch.float32, (most,))
    if spec.dtype in FACTOR_DTYPES:
        directions = read_array(record, "scatter-directions", FACTOR_DTYPES[spec.dtype], (len(values), dim))
    else:
        directions = _read_directions(record, spec.dtype, len(values), dim)
    left_out = float(read_array(record, "scatter-left-out", torch.float64, ()))
    factor = ScatterFactor(values, directions, left_out)
    check_scatter(factor, rows, norm, LEVELS.get(spec.dtype, 0))
    return factor


def _read_directions(record: ArrayRecord, kind: str, rank: int, dim: int) -> Tensor:
    if kind == "int4":
        packed = read_array(record, "scatter-directions", torch.uint8, (rank, math.ceil(dim / 2)))
        codes = unpacked_nibbles(packed, dim)
    else:
        codes = read_array(record, "scatter-directions", torch.int8, (rank, dim))
    if not bool(codes.any(dim=1).all()):
        raise Malformed("scatter-directions: none may be zero, got one")
    return unit_rows(codes)


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    cast = values.to(dtype)
    if not all_finite(cast):
        raise ValueError(f"statistics must fit {dtype}, got values up to {float(values.abs().max()):.3g}")
    return cast
