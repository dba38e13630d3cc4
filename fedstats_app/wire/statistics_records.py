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
from dataclasses import dataclass

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
from fedstats_app.statistics.exact import is_on_grid
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
from fedstats_app.wire.arrays import MAX_FEATURE_DIM, NUMBER_BYTES, NUMBER_DTYPES, WIRE_DTYPES, read_array, to_array
from fedstats_app.wire.reading import Malformed, check_keys
from fedstats_app.wire.statistics_checks import (
    Limits,
    check_gram,
    check_gram_factor,
    check_rows,
    check_scatter,
    check_sums,
)

ROW_KEYS = {"class-ids", "counts", "class-sums"}
SCATTER_KEYS = {"scatter-values", "scatter-directions", "scatter-left-out"}

# Of the directions of the scatter; two numbers of int4 share a byte.
DIRECTION_DTYPES = {**FACTOR_DTYPES, "int8": torch.int8, "int4": torch.uint8}


@dataclass(frozen=True)
class WireBytes:
    """Bytes of one specification's arrays, headers included.

    Attributes
    ----------
    on_wire : int
        All that travelled.
    rows, gram : int
        Of the rows, and of the Gram matrix or its factor.
    scatter : int
        Of the factor of the scatter; if that was made of the Gram matrix, what it would have taken on the wire.
    single_rows : int
        What the rows would have been with one row per class.
    """

    on_wire: int
    rows: int
    gram: int
    scatter: int
    single_rows: int


def statistics_record(client: ClientStatistics, spec: StatisticsSpec, wire_dtype: str, other_bytes: int) -> ArrayRecord:
    """Write what a specification asks for, sums and Gram matrix in ``wire_dtype``.

    A factor of the scatter, where asked for, has all directions that the rule wants, or is made of the Gram matrix; the
    ``other_bytes`` of the reply's other records count where the reply may take so many bytes.

    Raises
    ------
    ValueError
        If a Gram matrix or factor asked for is missing, a number is too large for the dtype, or the rows alone take
        more bytes than the reply may.
    """
    if spec.gram and not client.has_gram and (client.scatter is None or spec.fraction_bits is not None):
        raise ValueError("the request asks for a Gram matrix, got statistics without one")
    record = ArrayRecord()  # of a dictionary it would copy every Array
    record["class-ids"] = to_array(client.rows.class_ids)
    record["counts"] = to_array(client.rows.counts)
    if wire_dtype in WIRE_DTYPES:
        dtype = WIRE_DTYPES[wire_dtype]
        record["class-sums"] = to_array(_cast(client.rows.class_sums, dtype))
        if spec.gram and client.gram_factor is not None:
            record["gram-factor"] = to_array(_cast(client.gram_factor.packed(), dtype))
        elif spec.gram and client.gram is not None:
            record["gram"] = to_array(_cast(pack_upper(client.gram), dtype))
    else:
        codes, scales = encoded(client.rows.class_sums, wire_dtype, dithered=True)
        record["class-sums"], record["class-sum-scales"] = to_array(codes), to_array(scales)
        factor = client.gram_factor
        if spec.gram and factor is None and client.gram is not None:
            factor = GramFactor.of_gram(client.gram)
        if spec.gram and factor is not None:
            codes, scales = encoded(factor.trapezoid, wire_dtype)
            row, column = torch.triu_indices(*codes.shape)
            record["gram-factor"], record["gram-scales"] = to_array(codes[row, column]), to_array(scales)
    if spec.sends_scatter or (spec.gram and not client.has_gram):
        sent = with_scatter(client, spec.stand_in, _num_bytes(record, "c") + other_bytes).scatter
        if sent is not None:
            directions, kind = sent.directions, spec.stand_in.dtype
            if kind in LEVELS:  # they are given as unit_rows of their codes
                directions = direction_codes(directions, kind)
            record["scatter-values"] = to_array(_cast(sent.values, torch.float32))
            record["scatter-directions"] = to_array(packed_nibbles(directions) if kind == "int4" else directions)
            record["scatter-left-out"] = to_array(torch.tensor(sent.left_out, dtype=torch.float64))
    return record


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    cast = values.to(dtype)
    if not all_finite(cast):
        raise ValueError(f"statistics must fit {dtype}, got values up to {float(values.abs().max()):.3g}")
    return cast


def _num_bytes(record: ArrayRecord, first: str) -> int:
    """Count the bytes of the arrays whose keys begin with a letter: c of the rows, g of a Gram matrix, s of scatter."""
    return sum(len(array.data) for key, array in record.items() if key.startswith(first))


def with_scatter(client: ClientStatistics, spec: ScatterSpec, bytes_without: int) -> ClientStatistics:
    """Cut the factor of the scatter to what is sent, from one of enough directions or the Gram matrix.

    ``bytes_without`` are those of the reply without the factor.

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
    """Count the bytes that the arrays of a client's factor take on the wire, headers included."""
    return 0 if client.scatter is None else spec.num_bytes(len(client.scatter), client.rows.feature_dim)


def read_statistics_record(
    record: ArrayRecord,
    spec: StatisticsSpec,
    wire_dtype: str,
    num_classes: int,
    feature_dim: int | None,
    limits: Limits,
    other_bytes: int,
) -> tuple[ClientStatistics, WireBytes]:
    """Read the statistics of a stranger's record that passes every check, or raise :class:`Malformed`.

    ``feature_dim`` is the backbone's dimension d, where known, and ``other_bytes`` are those of the reply's other
    records.
    """
    exact = wire_dtype in WIRE_DTYPES
    gram_key = "gram" if exact and (spec.fraction_bits or "gram-factor" not in record) else "gram-factor"
    completed = spec.gram and spec.fraction_bits is None and "scatter-values" in record
    sends_gram = spec.gram and not completed
    more = {gram_key} if sends_gram else SCATTER_KEYS if completed or spec.sends_scatter else set[str]()
    scales = set[str]() if exact else {"class-sum-scales"} | ({"gram-scales"} if sends_gram else set())
    check_keys("statistics", record, ROW_KEYS | more | scales)
    norm = limits.mapped_norm(spec, feature_dim)
    dims = range(1, MAX_FEATURE_DIM + 1) if feature_dim is None else spec.feature_map.output_dim(feature_dim)
    rows, slack = _read_rows(record, wire_dtype, num_classes, spec.means_per_class, dims)
    if int(rows.num_examples) > limits.max_samples:
        raise Malformed(
            f"counts: must sum to at most {limits.max_samples} (max-client-samples), got {rows.num_examples}"
        )
    check_sums(rows, norm)
    _check_on_grid("class-sums", rows.class_sums, spec.fraction_bits)
    client = ClientStatistics(rows)
    if completed:
        client = _completed(rows, _read_scatter(record, rows, spec.stand_in, norm))
    elif spec.gram:
        eps = torch.finfo(WIRE_DTYPES.get(wire_dtype, torch.float32)).eps
        if gram_key == "gram":
            numbers = rows.feature_dim * (rows.feature_dim + 1) // 2
            triangle = read_array(record, "gram", WIRE_DTYPES[wire_dtype], (numbers,))
            gram = unpack_upper(triangle, rows.feature_dim).to(torch.float64)
            check_gram(gram, rows, eps, norm)
            _check_on_grid("gram", gram, spec.fraction_bits and 2 * spec.fraction_bits)
            client = ClientStatistics(rows, gram)
        else:
            factor, error = _read_factor(record, rows, wire_dtype)
            slack += 2.0 * float(torch.linalg.matrix_norm(factor.trapezoid)) * error + error**2
            check_gram_factor(factor, rows, eps, norm, slack)
            client = ClientStatistics(rows, factor)
    elif spec.scatter is not None:
        client = ClientStatistics(rows, scatter=_read_scatter(record, rows, spec.scatter, norm))
    of_rows, of_gram, of_scatter = (_num_bytes(record, first) for first in "cgs")
    on_wire = of_rows + of_gram + of_scatter
    if completed:
        of_gram = of_scatter
    elif spec.gram and spec.scatter is not None:
        client = with_scatter(client, spec.scatter, of_rows + other_bytes)
        of_scatter = scatter_bytes_of(spec.scatter, client)
    repeated = len(rows) - len(set(rows.class_ids.tolist()))
    per_row = 16 + rows.feature_dim * NUMBER_BYTES[wire_dtype] + (0 if exact else 4)
    return client, WireBytes(on_wire, of_rows, of_gram, of_scatter, of_rows - repeated * per_row)


def _completed(rows: ClassMeanRows, scatter: ScatterFactor) -> ClientStatistics:
    """Return statistics with a Gram matrix of the same trace, in which the energy left out has no direction."""
    from fedstats_app.heads.fedroot import complete

    factor = scatter.scaled()
    gram = complete(rows, factor.T @ factor, scatter.left_out, shaped=False).gram
    return ClientStatistics(rows, gram, scatter, completed=True)


def _check_on_grid(name: str, values: Tensor, bits: int | None) -> None:
    """Refuse what sums of rounded features cannot be: the total would not be exact any more."""
    if bits is not None and not is_on_grid(values, bits):
        raise Malformed(f"{name}: must be multiples of 2^-{bits} (exact-sums), got other numbers")


def _read_rows(
    record: ArrayRecord, kind: str, num_classes: int, means_per_class: int, dims: int | range
) -> tuple[ClassMeanRows, float]:
    """Read class ids, counts and sums, and by how much rounding can move an eigenvalue of sum_j s_j s_j^T / n_j."""
    ids = read_array(record, "class-ids", torch.int64, (range(num_classes * means_per_class + 1),))
    counts = read_array(record, "counts", torch.int64, (len(ids),))
    check_rows(ids, counts, num_classes, means_per_class)
    sums, slack = read_array(record, "class-sums", NUMBER_DTYPES[kind], (len(ids), dims)), 0.0
    if kind not in WIRE_DTYPES:
        scales = _read_scales(record, "class-sum-scales", len(ids))
        errors, sums = largest_errors(sums, scales), decoded(sums, scales)
        lengths = torch.linalg.vector_norm(sums.double(), dim=1)
        slack = float(((2.0 * lengths * errors + errors.square()) / counts.to(torch.float64)).sum())
    return ClassMeanRows(ids, counts, num_classes=num_classes, class_sums=sums), slack


def _read_scales(record: ArrayRecord, name: str, number: int) -> Tensor:
    scales = read_array(record, name, torch.float32, (number,))
    if bool((scales < 0).any()):
        raise Malformed(f"{name}: must be at least 0, got {float(scales.min()):.3g}")
    return scales


def _read_factor(record: ArrayRecord, rows: ClassMeanRows, kind: str) -> tuple[GramFactor, float]:
    """Read the factor, and how far off it can be, as a length.

    It has no more rows than there are samples, and fewer than features, or in few bits as many.
    """
    dim, exact = rows.feature_dim, kind in WIRE_DTYPES
    most = num_factor_numbers(min(int(rows.num_examples), dim - 1 if exact else dim), dim)
    packed = read_array(record, "gram-factor", NUMBER_DTYPES[kind], (range(most + 1),))
    try:
        factor = GramFactor.unpacked(packed, dim)
        if exact:
            return factor, 0.0
        codes = factor.trapezoid
        scales = _read_scales(record, "gram-scales", len(codes))
        error = float(largest_errors(codes.to(packed.dtype), scales).square().sum().sqrt())
        return GramFactor(codes * scales.to(torch.float64).unsqueeze(1)), error
    except ValueError as refused:
        raise Malformed(f"gram-factor: {refused}") from refused


def _read_scatter(record: ArrayRecord, rows: ClassMeanRows, spec: ScatterSpec, norm: float) -> ScatterFactor:
    dim, kind = rows.feature_dim, spec.dtype
    values = read_array(record, "scatter-values", torch.float32, (range(full_rank(rows) + 1),))
    width = math.ceil(dim / 2) if kind == "int4" else dim
    directions = read_array(record, "scatter-directions", DIRECTION_DTYPES[kind], (len(values), width))
    if kind in LEVELS:
        codes = unpacked_nibbles(directions, dim) if kind == "int4" else directions
        if not bool(codes.any(dim=1).all()):
            raise Malformed("scatter-directions: none may be zero, got one")
        directions = unit_rows(codes)
    left_out = float(read_array(record, "scatter-left-out", torch.float64, ()))
    factor = ScatterFactor(values, directions, left_out)
    check_scatter(factor, rows, norm, LEVELS.get(kind, 0))
    return factor
