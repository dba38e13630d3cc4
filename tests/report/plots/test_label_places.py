from matplotlib.transforms import Bbox

from fedstats_app.report.plots.accuracy import leader, place_labels

_AREA = Bbox.from_extents(0, 0, 1000, 1000)
_POINT = Bbox.from_extents(495, 495, 505, 505)


def test_the_first_choice_is_right_beside_the_point() -> None:
    (place,) = place_labels([_POINT], [(100, 20)], [], _AREA)
    assert place.extents.tolist() == [505, 490, 605, 510]
    assert leader(_POINT, place) == []


def test_a_label_goes_to_the_left_where_the_right_is_taken_or_ends() -> None:
    (beside_obstacle,) = place_labels([_POINT], [(100, 20)], [Bbox.from_extents(550, 480, 560, 520)], _AREA)
    (at_the_edge,) = place_labels([_POINT], [(100, 20)], [], Bbox.from_extents(0, 0, 600, 1000))
    assert beside_obstacle.extents.tolist() == at_the_edge.extents.tolist() == [395, 490, 495, 510]


def test_twenty_labels_of_one_point_do_not_overlap_and_lines_lead_to_them() -> None:
    places = place_labels([_POINT] * 20, [(60, 20)] * 20, [], _AREA)
    assert all(place.count_overlaps([box.padded(-0.01) for box in places if box is not place]) == 0 for place in places)
    far = [place for place in places if leader(_POINT, place)]
    assert far
    for place in far:
        line = leader(_POINT, place)
        assert not any(place.contains((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2) for box in line)
        assert _POINT.overlaps(line[0])


def test_where_there_is_no_room_the_least_bad_place_is_taken() -> None:
    tight = Bbox.from_extents(490, 490, 510, 510)
    (place,) = place_labels([_POINT], [(100, 20)], [], tight)
    assert place.overlaps(tight)


def test_the_label_that_finds_no_place_goes_first() -> None:
    """The first label's nearest place is the second's only one."""
    points = [Bbox.from_extents(105, 5, 115, 15), Bbox.from_extents(210, 5, 220, 15)]
    places = place_labels(points, [(90, 20), (95, 20)], [], Bbox.from_extents(0, 0, 225, 20))
    assert [place.x0 for place in places] == [15, 115]
