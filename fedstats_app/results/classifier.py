"""Load a head from a run folder and classify images with it."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

import torch
from PIL import Image
from torch import Tensor

from fedstats_app.backbones import Backbone, load_backbone
from fedstats_app.data import to_rgb
from fedstats_app.heads import LinearHead
from fedstats_app.results.head_file import read_head
from fedstats_app.statistics import FeatureMap, feature_map_from_dict

ImageLike = str | os.PathLike[str] | Image.Image
_ONE_IMAGE = (str, os.PathLike, Image.Image)


class Classifier:
    """A frozen backbone, a feature map and a head. Make one with `load`.

    Parameters
    ----------
    backbone : Backbone
        The network that the head was made for.
    feature_map : FeatureMap
        Applied to the backbone's features.
    head : LinearHead
        On features of the map's output dimension D.
    class_names : sequence of str
        One per row of the head.
    method : str
        What made the head, such as `fed3r`.

    Raises
    ------
    ValueError
        If the head does not fit the features or the class names.
    """

    def __init__(
        self, backbone: Backbone, feature_map: FeatureMap, head: LinearHead, class_names: Sequence[str], method: str
    ) -> None:
        num_classes, head_dim = head.weight.shape
        if len(class_names) != num_classes:
            raise ValueError(f"head {method!r} has {num_classes} classes, but there are {len(class_names)} class names")
        feature_dim = feature_map.output_dim(backbone.feature_dim)
        if head_dim != feature_dim:
            raise ValueError(
                f"head {method!r} is for features of dimension {head_dim}, "
                f"but backbone {backbone.name!r} and feature map {feature_map.kind!r} give {feature_dim}"
            )
        self.class_names = list(class_names)
        self.method = method
        self._backbone = backbone
        self._feature_map = feature_map
        self._head = head

    # To a type checker a `str` is also an iterable of strings; at run time the first overload wins.
    @overload
    def predict(self, images: ImageLike) -> str: ...  # type: ignore[overload-overlap]

    @overload
    def predict(self, images: Iterable[ImageLike]) -> list[str]: ...

    def predict(self, images: ImageLike | Iterable[ImageLike]) -> str | list[str]:
        """Name the class of one image, or of each of several.

        Parameters
        ----------
        images : path or PIL image, or iterable of them
            Any mode and size; they are treated as the training images were.

        Returns
        -------
        str or list of str
            A name for one image, a list of names for an iterable.

        Raises
        ------
        FileNotFoundError, ValueError
            If a file does not exist or is no readable image; the message names it.
        TypeError
            If something is neither a path nor a PIL image.
        """
        names = [self.class_names[index] for index in self.scores(images).argmax(dim=1).tolist()]
        return names[0] if isinstance(images, _ONE_IMAGE) else names

    def scores(self, images: ImageLike | Iterable[ImageLike]) -> Tensor:
        """Score every class; the highest wins.

        The scores order the classes of one image. They are no probabilities and their scale differs between methods, so
        that a softmax of them would look like a confidence without being one.

        Parameters
        ----------
        images : path or PIL image, or iterable of them
            As for `predict`.

        Returns
        -------
        Tensor
            (n, C) float64; -inf for classes of which no client had a sample.

        Raises
        ------
        FileNotFoundError, ValueError, TypeError
            As `predict`.
        """
        features = self._backbone.extract(_rgb_images(_as_several(images)))
        batches = [self._head.logits(self._feature_map(batch.cpu())) for batch in features]
        return torch.cat([torch.empty(0, len(self.class_names), dtype=torch.float64), *batches])


def load(
    run_folder: str | os.PathLike[str],
    method: str | None = None,
    *,
    weights: str | os.PathLike[str] | None = None,
    device: str = "auto",
    batch_size: int = 8,
) -> Classifier:
    """Load a run's head and the backbone that it was made for.

    Parameters
    ----------
    run_folder : path
        The folder whose path the run printed last.
    method : str, optional
        Whose head to take, such as `fed3r`; by default the most accurate one's in results.json.
    weights : path, optional
        The backbone's weight file, where it is not (any more) where the run had it.
    device : str
        `auto`, `cpu`, `cuda`, ...
    batch_size : int
        Images per forward pass. A single image costs as much as a whole batch, many images are faster in larger ones.

    Returns
    -------
    Classifier
        Ready to predict.

    Raises
    ------
    FileNotFoundError
        If the folder, a head or the backbone's weights are missing.
    ValueError
        If a file is damaged, or the backbone's weights or transform are not those the head was made with (their
        fingerprints differ).
    """
    folder = Path(run_folder).expanduser()
    name = method if method is not None else _most_accurate(folder)
    head, metadata = read_head(_head_path(folder, name))
    backbone = load_backbone(
        _entry(metadata, "backbone", name),
        weights=str(metadata.get("backbone-weights", "") if weights is None else weights),
        input_size=int(_entry(metadata, "input-size", name)),
        batch_size=batch_size,
        device=device,
    )
    expected = _entry(metadata, "backbone-fingerprint", name)
    if backbone.fingerprint != expected:
        raise ValueError(
            f"head {name!r} was made with a backbone {backbone.name!r} of fingerprint {expected}, but the one loaded "
            f"here (weights: {backbone.weights_source}) has {backbone.fingerprint}: its weights or its transform "
            f"differ. Pass the right weight file as `weights`."
        )
    feature_map = feature_map_from_dict(json.loads(_entry(metadata, "feature-map", name)))
    class_names = json.loads(_entry(metadata, "class-names", name))
    if not isinstance(class_names, list) or not all(isinstance(class_name, str) for class_name in class_names):
        raise ValueError(f"head {name!r}: class-names must be a JSON list of strings, got {class_names!r}")
    return Classifier(backbone, feature_map, head, class_names, name)


def _most_accurate(folder: Path) -> str:
    path = folder / "results.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist, so there is no most accurate method; {_available(folder)}")
    methods = json.loads(path.read_text(encoding="utf-8")).get("methods", {})
    accuracies: dict[str, float] = {
        name: result["accuracy"] for name, result in methods.items() if result["accuracy"] is not None
    }
    if not accuracies:
        raise ValueError(f"{path} has no method with an accuracy: name the method to load; {_available(folder)}")
    return max(accuracies, key=accuracies.__getitem__)


def _head_path(folder: Path, method: str) -> Path:
    path = folder / "heads" / f"{method}.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"no head of method {method!r}; {_available(folder)}")
    return path


def _available(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder"
    heads = sorted(path.stem for path in (folder / "heads").glob("*.safetensors"))
    return f"{folder} has heads of: {', '.join(heads) or 'no method (status.json says how the run ended)'}"


def _entry(metadata: dict[str, str], key: str, method: str) -> str:
    if key not in metadata:
        raise ValueError(f"head {method!r}: its metadata must have {key!r}, got only {', '.join(sorted(metadata))}")
    return metadata[key]


def _as_several(images: ImageLike | Iterable[ImageLike]) -> Iterable[ImageLike]:
    return [images] if isinstance(images, _ONE_IMAGE) else images


def _rgb_images(images: Iterable[ImageLike]) -> Iterator[Image.Image]:
    """Open images one by one, so that many fit in memory."""
    for image in images:
        if isinstance(image, Image.Image):
            yield to_rgb(image)
        elif isinstance(image, (str, os.PathLike)):
            yield _read_image(Path(image))
        else:
            raise TypeError(f"an image must be a path or a PIL image, got {type(image).__name__}")


def _read_image(path: Path) -> Image.Image:
    if not path.is_file():
        raise FileNotFoundError(f"no image at {path}")
    try:
        with Image.open(path) as image:
            return to_rgb(image)
    except (OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is not a readable image: {error}") from error
