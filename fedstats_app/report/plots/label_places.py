"""Where to write the labels of points so that they cover neither each other nor the points."""

from collections.abc import Iterator, Sequence
from itertools import product
from math import hypot

import numpy as np
from matplotlib.transforms import Bbox

_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
_DISTANCES = (0.0, 0.7, 1.4, 2.2, 3.0, 4.0, 5.0, 7.0, 10.0)  # in heights of the label
_ATTEMPTS = 4
_FREE = 1e-3  # square pixels that are as good as none


def place_labels(
    points: Sequence[Bbox], sizes: Sequence[tuple[float, float]], obstacles: Sequence[Bbox], area: Bbox
) -> list[Bbox]:
    """Find a place for each label, as near to its point as there is room.

    One label after another takes the nearest free place; those that find none go first in another attempt.

    Parameters
    ----------
    points : sequence of Bbox
        What each point covers; labels keep clear of all of them.
    sizes : sequence of (float, float)
        Width and height of each label.
    obstacles : sequence of Bbox
        What else labels keep clear of.
    area : Bbox
        Labels stay inside it.

    Returns
    -------
    list of Bbox
        One place per label. Where no attempt has a free one for each, those that cover least.
    """
    order, best, least = list(range(len(points))), list(points), float("inf")
    for _ in range(_ATTEMPTS):
        places, covered = _attempt(order, points, sizes, obstacles, area)
        if sum(covered) < least:
            best, least = places, sum(covered)
        if least < _FREE:
            break
        order.sort(key=covered.__getitem__, reverse=True)
    return best


def _attempt(
    order: Sequence[int],
    points: Sequence[Bbox],
    sizes: Sequence[tuple[float, float]],
    obstacles: Sequence[Bbox],
    area: Bbox,
) -> tuple[list[Bbox], list[float]]:
    """Give each label in this order its best place; return places and what each covers, in the order of the points."""
    taken, places, covered = [*points, *obstacles], list(points), [0.0] * len(points)
    placed: list[Bbox] = []
    for index in order:
        places[index], covered[index] = _best_place(points[index], sizes[index], taken, placed, area)
        # A later label must not lie on this one, nor on the line that leads to it.
        taken.extend([places[index], *leader(points[index], places[index])])
        placed.append(places[index])
    return places, covered


def _best_place(
    point: Bbox, size: tuple[float, float], taken: Sequence[Bbox], labels: Sequence[Bbox], area: Bbox
) -> tuple[Bbox, float]:
    """Give the nearest free place, else the one that covers least, and what it covers."""
    best, least = point, float("inf")
    for place in _candidates(point, size):
        outside = place.width * place.height - _covered([place], [area])
        covered = outside + _covered([place], taken) + _covered(leader(point, place), labels)
        if covered < least - _FREE:
            best, least = place, covered
        if least < _FREE:
            break
    return best, least


def leader(point: Bbox, place: Bbox) -> list[Bbox]:
    """Give the line from a label's edge to its point as a row of small boxes; none if the label touches the point."""
    gap_x = max(place.x0 - point.x1, point.x0 - place.x1, 0.0)
    gap_y = max(place.y0 - point.y1, point.y0 - place.y1, 0.0)
    if hypot(gap_x, gap_y) < 1.0:
        return []
    start, end = (np.array([box.x0 + box.x1, box.y0 + box.y1]) / 2 for box in (point, place))
    steps = np.linspace(start, end, 2 + int(hypot(*(end - start)) / 4))
    return [Bbox.from_extents(x - 2, y - 2, x + 2, y + 2) for x, y in steps if not place.contains(x, y)]


def _candidates(point: Bbox, size: tuple[float, float]) -> Iterator[Bbox]:
    width, height = size
    centre_x, centre_y = (point.x0 + point.x1) / 2, (point.y0 + point.y1) / 2
    for distance, (right, up) in product(_DISTANCES, _DIRECTIONS):
        reach = distance * height / hypot(right, up)
        x = centre_x + right * (point.width / 2 + width / 2 + reach)
        y = centre_y + up * (point.height / 2 + height / 2 + reach)
        yield Bbox.from_extents(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _covered(boxes: Sequence[Bbox], others: Sequence[Bbox]) -> float:
    """Add up the areas that boxes share with others."""
    if not boxes or not others:
        return 0.0
    one = np.array([box.extents for box in boxes])[:, None]  # (boxes, 1, 4): x0, y0, x1, y1
    other = np.array([box.extents for box in others])[None]  # (1, others, 4)
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    return float(np.clip(sides, 0.0, None).prod(axis=-1).sum())
