"""The methods as Flower Strategies, made from their records: one upload per client, one solve.

What a method is, which paper it is from and what its options are stands in :mod:`fedstats_app.methods`.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence
from typing import Any, ClassVar, get_type_hints

from fedstats_app.methods import RECORDS, Method
from fedstats_app.statistics import FeatureMap
from fedstats_app.strategies.base import StatisticsStrategy


class ClosedForm(StatisticsStrategy):
    """The Strategy of one method; the classes that :func:`strategy_class` makes have the record's options.

    Parameters
    ----------
    num_classes : int
        C.
    feature_map : FeatureMap, optional
        Takes the place of the options' one.
    **options
        The method's own, and those of :class:`StatisticsStrategy`.

    Raises
    ------
    ConfigError
        If an option of the method is out of range, or two exclude each other.
    """

    record: ClassVar[Method[Any]]

    def __init__(self, num_classes: int, *, feature_map: FeatureMap | None = None, **options: Any) -> None:
        names = self.record.options.keys().values()
        own = self.record.options.of(**{one.name: options.pop(one.name) for one in names if one.name in options})
        seed = options.get("seed", 0)
        super().__init__(num_classes, [self.record.configured(own, seed=seed, feature_map=feature_map)], **options)


def strategy_class(record: Method[Any]) -> type[ClosedForm]:
    """Make the Strategy class of a method, with a signature and a docstring for ``help()``.

    Parameters
    ----------
    record : Method
        Its display name is that of the class.
    """
    maps = record.needs.feature_map or record.needs.scatter
    rest = list(inspect.signature(StatisticsStrategy).parameters.values())
    parameters = [one for one in rest if one.name != "methods"]
    kinds, lines = get_type_hints(record.options), []
    options = []
    for key, one in record.options.keys().items():
        annotation = kinds[one.name]
        kind = inspect.formatannotation(annotation).replace("typing.", "")
        options.append(
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=annotation)
        )
        sentence = textwrap.fill(one.metadata["sentence"] or key, 112)
        lines.append(f"{one.name} : {kind}\n{textwrap.indent(sentence, '    ')}\n")
    if maps:
        options.append(
            inspect.Parameter("feature_map", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=FeatureMap | None)
        )
        lines.append(
            "feature_map : FeatureMap, optional\n    Applied to the features first, in place of the options' one.\n"
        )
    name = record.display_name.replace("-", "")
    made = type(name, (ClosedForm,), {"record": record, "__module__": __name__})
    made.__signature__ = inspect.Signature([parameters[0], *options, *parameters[1:]])  # type: ignore[attr-defined]
    made.__doc__ = (
        f"{record.display_name} ({record.paper}) as a Flower Strategy: one upload per client, one solve.\n\n"
        "Parameters\n----------\nnum_classes : int\n    C.\n"
        f"{''.join(lines)}**options\n    As :class:`StatisticsStrategy`.\n"
    )
    return made


# Every method's, by the name of the class: a method that is added has its class here and in fedstats_app.strategies.
CLASSES = {made.__name__: made for made in map(strategy_class, RECORDS.values())}
globals().update(CLASSES)
FedNCM, Fed3R, FedCOF = CLASSES["FedNCM"], CLASSES["Fed3R"], CLASSES["FedCOF"]
FedCGS, FedRoot = CLASSES["FedCGS"], CLASSES["FedRoot"]


class OnePass(StatisticsStrategy):
    """Serves several strategies from one upload.

    ``heads`` holds one head per method, and ``wire_bytes(method)`` what each alone would have cost.

    Parameters
    ----------
    num_classes : int
        C.
    strategies : sequence of StatisticsStrategy
        Of different methods and the same classes. Only what they ask for and how they solve is used; how clients are
        asked is this object's own business.
    **options
        As :class:`StatisticsStrategy`.

    Raises
    ------
    ValueError
        Without strategies, with two of one method, or with other classes.
    """

    def __init__(self, num_classes: int, strategies: Sequence[StatisticsStrategy], **options: Any) -> None:
        if any(strategy.num_classes != num_classes for strategy in strategies):
            raise ValueError(f"strategies must all have {num_classes} classes")
        methods = [method for strategy in strategies for method in strategy.methods().values()]
        super().__init__(num_classes, methods, **options)
