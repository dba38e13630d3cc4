"""Formats of numbers in the terminal, and on pages, and columns of text tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence

WIDTH = 120
GAP = "  "


def aligned(lines: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Lay out lines of cells in columns, aligned right except the columns numbered in ``left``."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        [cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(line)] for line in lines
    )
    return [GAP.join(cells).rstrip() for cells in padded]


def cut(name: str, longest: int) -> str:
    """Return a name, its end cut off where it is too long for its column."""
    return name if len(name) <= longest else f"{name[: longest - 2]}.."


def three_figures(number: float) -> str:
    """At least three significant figures, never an exponent: 0.0512, 5.88, 110.7, 61,064."""
    if number >= 999.5:
        return f"{number:,.0f}"
    if number >= 99.95:
        return f"{number:.1f}"
    return f"{number:#.3g}" if number >= 1e-3 or number == 0 else f"{number:.6f}"


def bytes_with_unit(number: float) -> str:
    """Give three significant figures in the decimal unit that suits: 0.512 KB, 5.88 MB, 61.1 GB."""
    for size, unit in ((1e9, "GB"), (1e6, "MB")):
        # 999.95 KB would round to "1000 KB".
        if number >= 0.9995 * size:
            return f"{three_figures(number / size)} {unit}"
    return f"{three_figures(number / 1e3)} KB"


def percent(share: float | None, digits: int = 2) -> str:
    """Write a share, 0 to 1, as a percentage, of few samples with fewer digits; "-" for none and for NaN."""
    return "-" if share is None or share != share else f"{100 * share:.{digits}f} %"


def interval_text(bounds: Sequence[float] | None) -> str:
    """Write an interval of shares as per cent, without the sign: 83.8 to 86.9; "-" for none."""
    return "-" if bounds is None else f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}"


def area(value: float | None) -> str:
    """Write an area under a curve, 0 to 1; "-" for none."""
    return "-" if value is None else f"{value:.4f}"


def size(number: float) -> str:
    """Write a number of bytes in the decimal unit that suits: 32 bytes, 5.88 MB."""
    return bytes_with_unit(number) if number >= 999.5 else f"{number:.0f} bytes"


def counted(number: int, noun: str) -> str:
    """Write a number and what it counts: 1 site, 1,200 sites, 2 classes."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"
