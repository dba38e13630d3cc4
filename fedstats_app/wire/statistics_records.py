"""One specification's statistics as an ArrayRecord, and back.

``class-ids`` (m,) int64, ``counts`` (m,) int64, ``class-sums`` (m, d), and with a Gram matrix either ``gram``
(d (d + 1) / 2,), its upper triangle row by row, or, from a client with fewer samples than features, ``gram-factor``
(r d - r (r - 1) / 2,), the upper trapezoid (r, d) of its triangular factor row by row; the length says r. With a factor
of the scatter about the rows' means ``scatter-values`` (k,) float32, ``scatter-directions`` (k, d) float16 or float32,
and ``scatter-left-out`` () float64, the energy that is not in them.
"""

from __future__ import annotations

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
from fedstats_app.statistics.gram_factor import num_factor_numbers
from fedstats_app.statistics.scatter_factor import FACTOR_DTYPES, full_rank
from fedstats_app.wire.arrays import MAX_FEATURE_DIM, WIRE_DTYPES, read_array, to_array
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

ROW_KEYS = ("class-ids", "counts", "class-sums")
GRAM_KEYS = ("gram", "gram-factor")
SCATTER_KEYS = ("scatter-values", "scatter-directions", "scatter-left-out")


def bytes_per_row(rows: ClassMeanRows) -> int:
    """Return the bytes of one row, without headers of arrays."""
    sums = rows.class_sums
    return rows.class_ids.element_size() + rows.counts.element_size() + rows.feature_dim * sums.element_size()


def statistics_record(
    client: ClientStatistics, spec: StatisticsSpec, dtype: torch.dtype, other_bytes: int
) -> ArrayRecord:
    """Return what a specification asks for, sums and Gram matrix in ``dtype``.

    Parameters
    ----------
    client : ClientStatistics
        Its factor of the scatter, where asked for, has all directions that the rule wants, or is made of its Gram
        matrix.
    spec : StatisticsSpec
        What is asked for.
    dtype : torch.dtype
        Of the wire.
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
    record["class-sums"] = to_array(_cast(client.rows.class_sums, dtype))
    if spec.gram and client.gram_factor is not None:
        record["gram-factor"] = to_array(_cast(client.gram_factor.packed(), dtype))
    elif spec.gram:
        if client.gram is None:
            raise ValueError("the request asks for a Gram matrix, got statistics without one")
        record["gram"] = to_array(_cast(pack_upper(client.gram), dtype))
    elif spec.scatter is not None:
        sent = with_scatter(client, spec.scatter, num_bytes(record, ROW_KEYS) + other_bytes).scatter
        if sent is not None:
            record["scatter-values"] = to_array(_cast(sent.values, torch.float32))
            record["scatter-directions"] = to_array(sent.directions)
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
    return client.with_scatter(complete.truncated(rank, FACTOR_DTYPES[spec.dtype]))


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
    dtype = WIRE_DTYPES[request.wire_dtype]
    gram_key = "gram-factor" if "gram-factor" in record else "gram"
    more = {gram_key} if spec.gram else {*SCATTER_KEYS} if spec.sends_scatter else set()
    check_keys("statistics", record, {*ROW_KEYS, *more})
    ids = read_array(record, "class-ids", torch.int64, (range(request.num_classes * spec.means_per_class + 1),))
    counts = read_array(record, "counts", torch.int64, (len(ids),))
    check_rows(ids, counts, request.num_classes, spec.means_per_class)
    dims = range(1, MAX_FEATURE_DIM + 1) if feature_dim is None else spec.feature_map.output_dim(feature_dim)
    norm = limits.mapped_norm(spec, feature_dim)
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
    if gram_key == "gram-factor":
        factor = _read_factor(record, rows, dtype)
        check_gram_factor(factor, rows, eps, norm)
        return ClientStatistics(rows, factor)
    gram = _read_triangle(record, rows, dtype)
    check_gram(gram, rows, eps, norm)
    return ClientStatistics(rows, gram)


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
    most, dtype = range(full_rank(rows) + 1), FACTOR_DTYPES[spec.dtype]
    values = read_array(record, "scatter-values", torch.float32, (most,))
    directions = read_array(record, "scatter-directions", dtype, (len(values), rows.feature_dim))
    left_out = float(read_array(record, "scatter-left-out", torch.float64, ()))
    factor = ScatterFactor(values, directions, left_out)
    check_scatter(factor, rows, norm)
    return factor


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    cast = values.to(dtype)
    if not all_finite(cast):
        raise ValueError(f"statistics must fit {dtype}, got values up to {float(values.abs().max()):.3g}")
    return cast
