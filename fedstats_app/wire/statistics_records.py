"""Statistics as an ArrayRecord, and back.

``class-ids`` (m,) int64, ``counts`` (m,) int64, ``class-sums`` (m, d), and, where a Gram matrix is asked for, the
scatter about the rows' means, to which the server adds what the means that it read have of the Gram matrix: either
``within`` (d (d + 1) / 2,), its upper triangle row by row, or, from a client with fewer samples than features or in few
bits, ``within-factor`` (r d - r (r - 1) / 2,), the upper trapezoid (r, d) of its triangular factor row by row; the
length says r. For exact sums it is ``gram`` (d (d + 1) / 2,), the Gram matrix itself. In few bits each row of sums and
factor has a scale, ``class-sum-scales`` (m,) and ``within-scales`` (r,) float32. With a truncated factor of the scatter
``scatter-values`` (k,) float32, ``scatter-directions`` (k, d) float32, float16 or int8, and ``scatter-left-out`` ()
float64, the energy that is not in them. Of samples with several labels or numbers all are of one row, and of each of m
targets come ``target-ids`` and ``target-known`` (m,) int64, the samples for which it is known, ``target-sums`` (m,)
float64, of numbers ``target-squares`` (m,) float64, ``target-products`` (m, d) float32 or float64, and unless all are
known for all ``target-known-sums`` (m, d).
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
    ScatterFactor,
    ScatterSpec,
    StatisticsSpec,
    TargetSums,
    TriangularFactor,
)
from fedstats_app.statistics.accumulation import all_finite, mirror_upper, pack_upper, unpack_upper
from fedstats_app.statistics.exact import is_on_grid
from fedstats_app.statistics.factors import FACTOR_DTYPES, full_rank, num_factor_numbers
from fedstats_app.statistics.quantisation import (
    LEVELS,
    decoded,
    direction_codes,
    encoded,
    unit_rows,
)
from fedstats_app.wire.arrays import MAX_FEATURE_DIM, NUMBER_BYTES, NUMBER_DTYPES, WIRE_DTYPES, read_array, to_array
from fedstats_app.wire.reading import Malformed, check_keys
from fedstats_app.wire.statistics_checks import (
    MAX_FEATURE,
    Limits,
    check_rows,
    check_scatter,
    check_sums,
    check_within,
)

ROW_KEYS = {"class-ids", "counts", "class-sums"}
SCATTER_KEYS = {"scatter-values", "scatter-directions", "scatter-left-out"}

TARGET_KEYS = {"target-ids", "target-known", "target-sums", "target-products"}

DIRECTION_DTYPES = {**FACTOR_DTYPES, "int8": torch.int8}


@dataclass(frozen=True)
class WireBytes:
    """Bytes of the arrays, headers included.

    Attributes
    ----------
    on_wire : int
        All that travelled.
    rows, gram : int
        Of the rows, and of what a Gram matrix takes.
    scatter : int
        Of the factor of the scatter; if that was made of the scatter within rows, what it would have taken on the wire.
    single_rows : int
        What the rows would have been with one row per class.
    """

    on_wire: int
    rows: int
    gram: int
    scatter: int
    single_rows: int


def statistics_record(client: ClientStatistics, spec: StatisticsSpec, wire_dtype: str, other_bytes: int) -> ArrayRecord:
    """Write what a specification asks for, sums and scatter in ``wire_dtype``.

    A truncated factor, where asked for, has all directions that the rule wants, or is made of the scatter; the
    ``other_bytes`` of the reply's other records count where the reply has a limit of bytes.

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
    dtype, rows, rounding = WIRE_DTYPES.get(wire_dtype), client.rows, None
    if dtype is not None:
        record["class-sums"] = to_array(_cast(rows.class_sums, dtype))
    else:
        codes, scales = encoded(rows.class_sums, wire_dtype, dithered=True)
        record["class-sums"], record["class-sum-scales"] = to_array(codes), to_array(scales)
        if wire_dtype == "int8":
            # About the means as they are read: else heads would take the means' rounding for a difference of classes.
            rounding = rows.scaled_sums - rows.with_sums(decoded(codes, scales)).scaled_sums
    within = client.within if spec.gram and spec.fraction_bits is None else None
    if spec.gram and spec.fraction_bits is not None and client.gram is not None:
        record["gram"] = to_array(_cast(pack_upper(client.gram), torch.float64))
    elif isinstance(within, Tensor) and dtype is not None:
        record["within"] = to_array(_cast(pack_upper(within), dtype))
    elif within is not None:
        factor = TriangularFactor.of_scatter(within, rows) if isinstance(within, Tensor) else within
        factor = factor if rounding is None else factor.joined(rounding)
        if dtype is not None:
            record["within-factor"] = to_array(_cast(factor.packed(), dtype))
        else:
            codes, scales = encoded(factor.trapezoid, wire_dtype)
            row, column = torch.triu_indices(*codes.shape)
            record["within-factor"], record["within-scales"] = to_array(codes[row, column]), to_array(scales)
    if spec.targets:
        _write_targets(record, client, wire_dtype)
    if spec.sends_scatter or (spec.gram and not client.has_gram):
        sent = with_scatter(client, spec.stand_in, _num_bytes(record, "c") + other_bytes).scatter
        if sent is not None:
            directions = sent.directions
            if spec.stand_in.dtype == "int8":  # they are given as unit_rows of their codes
                directions = direction_codes(directions)
            record["scatter-values"] = to_array(_cast(sent.values, torch.float32))
            record["scatter-directions"] = to_array(directions)
            record["scatter-left-out"] = to_array(torch.tensor(sent.left_out, dtype=torch.float64))
    return record


def _write_targets(record: ArrayRecord, client: ClientStatistics, wire_dtype: str) -> None:
    if client.targets is None:
        raise ValueError("the request asks for targets, got statistics without")
    ids = client.targets.known.nonzero().squeeze(1)
    targets, dtype = client.targets.chosen(ids), WIRE_DTYPES.get(wire_dtype, torch.float32)
    record["target-ids"], record["target-known"] = to_array(ids), to_array(targets.known)
    record["target-sums"] = to_array(targets.sums)
    if targets.kind == ("numbers",):
        record["target-squares"] = to_array(targets.squares)
    record["target-products"] = to_array(_cast(targets.products, dtype))
    if bool((targets.known < int(client.rows.num_examples)).any()):
        record["target-known-sums"] = to_array(_cast(targets.known_sums, dtype))


def read_targets(
    record: ArrayRecord, kind: str, wire_dtype: str, num_targets: int, rows: ClassMeanRows, norm: float
) -> TargetSums:
    """Read the sums by target of the samples in checked rows, or raise :class:`Malformed`.

    No sum is longer than its number of samples times ``norm`` of features; of numbers y than the root of the sum of
    y^2 times that of the squared lengths (Cauchy and Schwarz).
    """
    number, dtype = int(rows.num_examples), WIRE_DTYPES.get(wire_dtype, torch.float32)
    ids = read_array(record, "target-ids", torch.int64, (range(num_targets + 1),))
    m, d = len(ids), rows.feature_dim
    if m and (int(ids.min()) < 0 or int(ids.max()) >= num_targets or bool((ids[1:] <= ids[:-1]).any())):
        raise Malformed(f"target-ids: must ascend in [0, {num_targets})")
    known = read_array(record, "target-known", torch.int64, (m,))
    sums = read_array(record, "target-sums", torch.float64, (m,))
    squares = read_array(record, "target-squares", torch.float64, (m,)) if kind == "numbers" else sums
    products = read_array(record, "target-products", dtype, (m, d)).to(torch.float64)
    totals = rows.class_sums.to(torch.float64).sum(dim=0).expand(m, d).clone()
    if "target-known-sums" in record:
        totals = read_array(record, "target-known-sums", dtype, (m, d)).to(torch.float64)
    elif bool((known != number).any()):
        raise Malformed("target-known-sums: is missing where not all targets are known")
    if m and (int(known.min()) < 1 or int(known.max()) > number):
        raise Malformed(f"target-known: must lie in [1, {number}], got {int(known.min())} to {int(known.max())}")
    counts = bool(((sums >= 0) & (sums <= known) & (sums == sums.round())).all())
    if (kind == "labels" and not counts) or bool((sums.square() > known * squares * (1 + 1e-9)).any()):
        raise Malformed(f"target-sums: must be those of {kind}, got others")
    longest, least = min(norm, d**0.5 * MAX_FEATURE), 1e-6 * norm if math.isfinite(norm) else 1e-6 * MAX_FEATURE
    for name, of_target, most in (
        ("target-known-sums", totals, known * longest),
        ("target-products", products, (known * squares).sqrt() * longest),
    ):
        if bool((torch.linalg.vector_norm(of_target, dim=1) > most * (1 + 1e-6) + least).any()):
            raise Malformed(f"{name}: no feature of this backbone is longer than {norm:.4g}, got longer means")
    return TargetSums((kind,), known, totals, sums, squares.clone(), products).placed(ids, num_targets)


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    cast = values.to(dtype)
    if not all_finite(cast):
        raise ValueError(f"statistics must fit {dtype}, got values up to {float(values.abs().max()):.3g}")
    return cast


def _num_bytes(record: ArrayRecord, first: str) -> int:
    """Count the bytes of arrays by the first letter of their keys: c rows, g and w Gram matrix, s factor."""
    return sum(len(array.data) for key, array in record.items() if key[0] in first)


def with_scatter(client: ClientStatistics, spec: ScatterSpec, bytes_without: int) -> ClientStatistics:
    """Cut the factor of the scatter to what is sent, from one of enough directions or the complete scatter.

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
    completed = spec.gram and spec.fraction_bits is None and "scatter-values" in record
    more, scales = set[str](), set[str]() if exact else {"class-sum-scales"}
    if completed or spec.sends_scatter:
        more = SCATTER_KEYS
    elif spec.gram and spec.fraction_bits is not None:
        more = {"gram"}
    elif spec.gram:
        more = {"within"} if exact and "within-factor" not in record else {"within-factor"}
        scales |= set() if exact else {"within-scales"}
    wanted = ROW_KEYS | more | scales
    if spec.targets:
        wanted |= TARGET_KEYS | ({"target-squares"} if spec.targets == "numbers" else set())
    check_keys("statistics", record, wanted, {"target-known-sums"} if spec.targets else set())
    norm = limits.norm
    dims = range(1, MAX_FEATURE_DIM + 1) if feature_dim is None else feature_dim
    rows = _read_rows(record, wire_dtype, num_classes, spec.means_per_class, dims)
    if int(rows.num_examples) > limits.max_samples:
        raise Malformed(
            f"counts: must sum to at most {limits.max_samples} (max-client-samples), got {rows.num_examples}"
        )
    check_sums(rows, norm)
    _check_on_grid("class-sums", rows.class_sums, spec.fraction_bits)
    client = ClientStatistics(rows)
    if completed:
        # A scatter of the same trace, in which the energy left out has no direction.
        scatter = _read_scatter(record, rows, spec.stand_in, norm)
        made = mirror_upper(scatter.scaled().T @ scatter.scaled())
        made.diagonal().add_(scatter.left_out / rows.feature_dim)
        client = ClientStatistics(rows, scatter=scatter, within=made, completed=True)
    elif more == {"gram"}:
        gram = _read_triangle(record, "gram", rows.feature_dim, torch.float64)
        client = ClientStatistics(rows, gram)
        check_within(gram - rows.products(), rows, norm)
        _check_on_grid("gram", gram, spec.fraction_bits and 2 * spec.fraction_bits)
    elif more == {"within"}:
        within = _read_triangle(record, "within", rows.feature_dim, WIRE_DTYPES[wire_dtype])
        check_within(within, rows, norm)
        client = ClientStatistics(rows, within=within)
    elif spec.gram:
        factor = _read_factor(record, rows, wire_dtype)
        check_within(factor, rows, norm)
        client = ClientStatistics(rows, within=factor)
    elif spec.scatter is not None:
        client = ClientStatistics(rows, scatter=_read_scatter(record, rows, spec.scatter, norm))
    if spec.targets:
        client.targets = read_targets(record, spec.targets, wire_dtype, num_classes, rows, norm)
        _check_on_grid("target-products", client.targets.products, spec.fraction_bits)
    of_rows, of_gram, of_scatter = (_num_bytes(record, first) for first in ("ct", "gw", "s"))
    on_wire = of_rows + of_gram + of_scatter
    if completed:
        of_gram = of_scatter
    elif spec.gram and spec.scatter is not None:
        client = with_scatter(client, spec.scatter, of_rows + other_bytes)
        of_scatter = scatter_bytes_of(spec.scatter, client)
    repeated = len(rows) - len(set(rows.class_ids.tolist()))
    per_row = 16 + rows.feature_dim * NUMBER_BYTES[wire_dtype] + (0 if exact else 4)
    return client, WireBytes(on_wire, of_rows, of_gram, of_scatter, of_rows - repeated * per_row)


def _check_on_grid(name: str, values: Tensor, bits: int | None) -> None:
    """Refuse what sums of rounded features cannot be: the total would not be exact any more."""
    if bits is not None and not is_on_grid(values, bits):
        raise Malformed(f"{name}: must be multiples of 2^-{bits} (exact-sums), got other numbers")


def _read_rows(
    record: ArrayRecord, kind: str, num_classes: int, means_per_class: int, dims: int | range
) -> ClassMeanRows:
    """Read class ids, counts and sums."""
    ids = read_array(record, "class-ids", torch.int64, (range(num_classes * means_per_class + 1),))
    counts = read_array(record, "counts", torch.int64, (len(ids),))
    check_rows(ids, counts, num_classes, means_per_class)
    sums = read_array(record, "class-sums", NUMBER_DTYPES[kind], (len(ids), dims))
    if kind not in WIRE_DTYPES:
        sums = decoded(sums, _read_scales(record, "class-sum-scales", len(ids)))
    return ClassMeanRows(ids, counts, num_classes=num_classes, class_sums=sums)


def _read_triangle(record: ArrayRecord, name: str, dim: int, dtype: torch.dtype) -> Tensor:
    return unpack_upper(read_array(record, name, dtype, (dim * (dim + 1) // 2,)), dim).to(torch.float64)


def _read_scales(record: ArrayRecord, name: str, number: int) -> Tensor:
    scales = read_array(record, name, torch.float32, (number,))
    if bool((scales < 0).any()):
        raise Malformed(f"{name}: must be at least 0, got {float(scales.min()):.3g}")
    return scales


def _read_factor(record: ArrayRecord, rows: ClassMeanRows, kind: str) -> TriangularFactor:
    """Read the factor, of no more rows than the scatter can have directions, or in few bits than the samples have."""
    dim, exact = rows.feature_dim, kind in WIRE_DTYPES
    most = num_factor_numbers(full_rank(rows) if exact else min(int(rows.num_examples), dim), dim)
    packed = read_array(record, "within-factor", NUMBER_DTYPES[kind], (range(most + 1),))
    try:
        factor = TriangularFactor.unpacked(packed, dim)
        if exact:
            return factor
        scales = _read_scales(record, "within-scales", len(factor.trapezoid))
        return TriangularFactor(factor.trapezoid * scales.to(torch.float64).unsqueeze(1))
    except ValueError as refused:
        raise Malformed(f"within-factor: {refused}") from refused


def _read_scatter(record: ArrayRecord, rows: ClassMeanRows, spec: ScatterSpec, norm: float) -> ScatterFactor:
    dim, kind = rows.feature_dim, spec.dtype
    values = read_array(record, "scatter-values", torch.float32, (range(full_rank(rows) + 1),))
    directions = read_array(record, "scatter-directions", DIRECTION_DTYPES[kind], (len(values), dim))
    if kind == "int8":
        if not bool(directions.any(dim=1).all()):
            raise Malformed("scatter-directions: none may be zero, got one")
        directions = unit_rows(directions)
    left_out = float(read_array(record, "scatter-left-out", torch.float64, ()))
    factor = ScatterFactor(values, directions, left_out)
    check_scatter(factor, rows, norm, LEVELS if kind == "int8" else 0)
    return factor
