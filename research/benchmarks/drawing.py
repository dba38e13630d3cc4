"""Plots of benchmarks: a line for each of a few things, drawn from their lines of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedstats_app.report.plots.style import (
    METHOD_COLOURS,
    new_figure,
    plot_style,
    quiet_axes,
    save_png,
    set_title,
    whole,
)

WIDTH, HEIGHT = 6.5, 3.6


def draw_curves(
    path: Path,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    subtitle: str,
    x: str,
    y: str,
) -> None:
    """Write a PNG file with a named curve for each sequence of (x, y), from 0 on."""
    with plot_style():
        figure = new_figure(WIDTH, HEIGHT)
        axes = figure.subplots()
        for (name, points), colour in zip(curves.items(), METHOD_COLOURS, strict=False):
            across, up = zip(*points, strict=True)
            axes.plot(across, up, marker="o", markersize=4, color=colour)
            axes.annotate(name, (across[-1], up[-1]), xytext=(6, 0), textcoords="offset points", color=colour)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(whole)
        axes.yaxis.set_major_formatter(whole)
        quiet_axes(axes, "y")
        set_title(axes, title, subtitle, inches=WIDTH)
        save_png(figure, path)


def draw_pairs(
    path: Path,
    pairs: Mapping[str, tuple[float, float]],
    *,
    names: tuple[str, str],
    title: str,
    subtitle: str,
    x: str,
) -> None:
    """Write a PNG file with two bars for each name: ours above that of what we are compared with."""
    with plot_style():
        figure = new_figure(WIDTH, 1.8 + 0.7 * len(pairs))
        axes = figure.subplots()
        for which, colour in enumerate(METHOD_COLOURS[:2]):
            places = [place + 0.38 * which - 0.19 for place in range(len(pairs))]
            values = [pair[which] for pair in pairs.values()]
            axes.barh(places, values, height=0.34, color=colour, label=names[which])
            for place, value in zip(places, values, strict=True):
                axes.annotate(f"{value:g}", (value, place), xytext=(4, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(pairs)), list(pairs))
        axes.invert_yaxis()
        axes.set_xlabel(x)
        axes.margins(x=0.12)  # for the numbers
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
        quiet_axes(axes, "x")
        set_title(axes, title, subtitle, inches=WIDTH)
        save_png(figure, path)
