"""`Dataset`: labelled images or texts from any source, in one shape; and the one rule by which images become RGB."""

import dataclasses
import hashlib
import struct
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedstats_app.data.targets import Targets

# What Pillow and its decoders raise on files that are damaged, truncated, of no known format, or too large.
UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    NotImplementedError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)
GREY_16_BIT_MODES = frozenset({"I", "I;16", "I;16L", "I;16B", "I;16N"})
MAX_16_BIT = 65535
# The longest that a JPEG can have. Pillow keeps more per row than its pixels: 89 million rows of one take 2.6 GB.
MAX_SIDE = 65_535
_NAMED_IN_ERRORS = 5
Kind = Literal["image", "text"]
Sample = Image.Image | str


class DatasetError(ValueError):
    """The data cannot be used as asked; the message says what, whose, what is allowed and what came."""


class UnreadableSampleError(Exception):
    """One sample's image or text cannot be read; ``name`` is that of `Dataset.sample_name`, ``reason`` in words."""

    def __init__(self, name: str, reason: str, kind: Kind = "image") -> None:
        super().__init__(f"{kind} {name!r} cannot be read: {reason}")
        self.name = name
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class SampleSource:
    """Source of a data set's images or texts.

    Attributes
    ----------
    open : callable
        From a valid index to its image, in any mode and maybe still unread; or to its text. Several threads may call
        it at once.
    name : callable
        From a valid index to a name by which a person finds the sample.
    """

    open: Callable[[int], Sample]
    name: Callable[[int], str]


class LazyColumns(Mapping[str, NDArray[Any]]):
    """Columns of n values, each read when asked for.

    Parameters
    ----------
    names : iterable of str
        Which there are.
    read : callable
        From a name to the column's values.
    """

    def __init__(self, names: Iterable[str], read: Callable[[str], NDArray[Any]]) -> None:
        self._names, self._read = list(names), read

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Read a column."""
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the columns."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self._names)


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """One split of a labelled data set of images or texts.

    Samples are read one at a time, when asked for; labels are in memory.

    Attributes
    ----------
    name : str
        The spec it was loaded from and its split, such as ``builtin (train)``.
    class_names : tuple of str
        The C classes; a label is an index into it. Both splits of a data set have the same.
    labels : numpy.ndarray
        ``(n,)`` int64 in ``[0, C)``; read-only.
    fingerprint : str
        64 hex digits that identify the split's content, found without reading all of it: two data sets with the same
        one have the same samples at the same indices.
    source : SampleSource
        Where the samples come from.
    columns : Mapping of str to numpy.ndarray
        Other columns of n scalars, by which to partition: a domain, a user.
    numbered : bool
        Whether the source itself numbers its classes (labels are integers there), so that other sources of the same
        data should give a number the same meaning. Folders and columns of strings have names only.
    kind : {"image", "text"}
        What the samples are.
    notes : tuple of str
        What a person should know of how the data were read, a sentence each.
    sizes : numpy.ndarray or None
        ``(n,)`` bytes of the samples' files, if they are files.
    persons : numpy.ndarray or None
        ``(n,)`` S16, the same for all samples of a person; None where persons are not named.
    targets : Targets or None
        Several labels or numbers a sample, which the class names name; then all ``labels`` are 0.

    Raises
    ------
    DatasetError
        If there are no class names or two are equal, or if labels are not integers or lie outside ``[0, C)`` (-1 often
        marks samples without a label); the message counts and names them.
    """

    name: str
    class_names: tuple[str, ...]
    labels: NDArray[np.int64]
    fingerprint: str
    source: SampleSource = dataclasses.field(repr=False)
    columns: Mapping[str, NDArray[Any]] = dataclasses.field(
        default_factory=lambda: types.MappingProxyType({}), repr=False
    )
    numbered: bool = False
    kind: Kind = "image"
    notes: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    sizes: NDArray[np.int64] | None = dataclasses.field(default=None, repr=False)
    persons: NDArray[np.bytes_] | None = dataclasses.field(default=None, repr=False)
    targets: Targets | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the labels against the classes, and make them read-only."""
        if not self.class_names or len(set(self.class_names)) < len(self.class_names):
            names = list(self.class_names)
            raise DatasetError(f"{self.name}: class names must be distinct and at least one, got {names}")
        labels = np.array(self.labels)
        if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iu"):
            raise DatasetError(
                f"{self.name}: labels must be one integer per sample, got {labels.dtype} of shape {labels.shape}"
            )
        labels = labels.astype(np.int64)
        bad = np.flatnonzero((labels < 0) | (labels >= len(self.class_names)))
        if bad.size:
            named = ", ".join(f"{self.source.name(int(i))} has {labels[i]}" for i in bad[:_NAMED_IN_ERRORS])
            raise DatasetError(
                f"{self.name}: {bad.size} of {labels.size} labels are not in 0..{len(self.class_names) - 1} ({named}"
                f"{', ...' if bad.size > _NAMED_IN_ERRORS else ''}); a negative label usually marks a sample without "
                "one: leave such samples out"
            )
        labels.setflags(write=False)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        """Return the number of samples n."""
        return len(self.labels)

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """(C,) samples of each class, or that have each label, or of which each number is known."""
        return np.bincount(self.memberships[1], minlength=len(self.class_names))

    @property
    def memberships(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(m,) samples and (m,) classes of every sample that counts for a class: n of one class each, else more."""
        if self.targets is None:
            return np.arange(len(self)), self.labels
        samples, labels = np.nonzero(self.targets.counted)
        return samples, labels

    def grouped(self) -> "Dataset":
        """Return the data set with one class a sample, by which it can be divided among clients."""
        if self.targets is None:
            return self
        names = tuple(map(str, range(int(self.targets.groups.max(initial=0)) + 1)))
        return dataclasses.replace(self, targets=None, class_names=names, labels=self.targets.groups)

    def sample(self, index: int, before_decoding: Callable[[int], None] | None = None) -> Sample:
        """Read one image of its own size, as 8-bit RGB by the rule of `to_rgb`, or one text.

        Parameters
        ----------
        index : int
            In [0, n).
        before_decoding : callable, optional
            Given an image's number of pixels before they are read.

        Raises
        ------
        IndexError
            If the index is out of range.
        UnreadableSampleError
            If the image is damaged, missing, of an unknown format or larger than Pillow's limit against decompression
            bombs; if the text is missing or not UTF-8.
        """
        self._check_index(index)
        try:
            opened = self.source.open(index)
            if isinstance(opened, str):
                return opened
            with opened as image:
                if before_decoding is not None:
                    before_decoding(image.width * image.height)
                return to_rgb(image)
        except UNREADABLE as error:
            reason = str(error) if isinstance(error, DatasetError) else f"{type(error).__name__}: {error}"
            raise UnreadableSampleError(self.sample_name(index), reason, self.kind) from error

    def sample_name(self, index: int) -> str:
        """Return a name by which a person finds a sample: a relative path, a row number."""
        self._check_index(index)
        return self.source.name(index)

    def _check_index(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has samples 0..{len(self) - 1}, asked for {index}")

    def subset(self, indices: NDArray[np.int64]) -> "Dataset":
        """Return the samples at (m,) indices in [0, n), in this order, with the same classes and columns."""
        digest = hashlib.sha256(f"subset of {self.fingerprint}\n".encode() + indices.astype("<i8").tobytes())
        whole = self.source
        return dataclasses.replace(
            self,
            labels=self.labels[indices],
            fingerprint=digest.hexdigest(),
            source=SampleSource(lambda i: whole.open(int(indices[i])), lambda i: whole.name(int(indices[i]))),
            columns=LazyColumns(self.columns, lambda name: self.columns[name][indices]),
            sizes=None if self.sizes is None else self.sizes[indices],
            persons=None if self.persons is None else self.persons[indices],
            targets=None if self.targets is None else self.targets.subset(indices),
        )

    def with_class_names(self, class_names: Sequence[str], *, drop: bool = False) -> "Dataset":
        """Return the same samples with labels that index another list of classes.

        A site that holds a few of a federation's classes numbers them its own way; this gives it the federation's
        numbers. Classes are matched by name; if they are the same already, it returns itself. With ``drop`` labels that
        are not in the list go.

        Raises
        ------
        DatasetError
            If samples have a class that is not in the new list.
        """
        wanted = tuple(class_names)
        if wanted == self.class_names:
            return self
        position = {name: new for new, name in enumerate(wanted)}
        held = np.flatnonzero(self.class_counts)
        unknown = [self.class_names[c] for c in held if self.class_names[c] not in position]
        if unknown and not (drop and self.targets is not None):
            raise DatasetError(
                f"{self.name} has samples of {len(unknown)} classes that are not among the {len(wanted)} allowed ones: "
                f"{unknown[:_NAMED_IN_ERRORS]}; allowed are {list(wanted[:20])}{' ...' if len(wanted) > 20 else ''}"
            )
        if self.targets is not None:
            return dataclasses.replace(self, class_names=wanted, targets=self.targets.renamed(self.class_names, wanted))
        renumber = np.array([position.get(name, -1) for name in self.class_names], dtype=np.int64)  # (old C,)
        return dataclasses.replace(self, class_names=wanted, labels=renumber[self.labels])


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image as 8-bit RGB, the same way for every source of data.

    Features can only be compared, and statistics only be added, if every site reads a file as the same pixels.
    In this order: the first frame of several; the orientation that the EXIF data ask for; 16-bit grey (modes
    ``I;16*``, and ``I`` with values in 0..65535) scaled linearly from the whole 16-bit range, ``round(value / 257)``,
    whatever range the image uses and without regard to a transparent colour; transparency (an alpha channel or a
    transparent colour) composited on white; everything else (grey, 1 bit, palette, CMYK, YCbCr, HSV) by Pillow's
    conversion, which replicates grey to the three channels and ignores colour profiles.

    The image may still be unread, and is left as it is but for being read.

    Raises
    ------
    ValueError
        If the pixels have no stated range: mode ``F``, or mode ``I`` with values outside 0..65535; or if Pillow has no
        conversion from the image's mode (``LAB``).
    PIL.Image.DecompressionBombError
        If the image has more pixels than ``PIL.Image.MAX_IMAGE_PIXELS``, at which Pillow itself would only warn, or a
        side longer than MAX_SIDE.
    OSError
        If the pixels cannot be read.
    """
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and (image.width * image.height > limit or max(image.size) > MAX_SIDE):
        raise Image.DecompressionBombError(
            f"{image.width} x {image.height} pixels are more than the {limit} that are read"
            f" (PIL.Image.MAX_IMAGE_PIXELS), or a side is longer than {MAX_SIDE}; it may be an attack on memory"
        )
    if image.tell() != 0:
        image.seek(0)
    upright = ImageOps.exif_transpose(image)
    if upright.mode in GREY_16_BIT_MODES:
        return _grey_16_to_8_bit(upright).convert("RGB")
    if upright.mode == "F":
        raise ValueError("floating-point pixels (mode F) have no stated range; save them with 8 or 16 bits per channel")
    if upright.has_transparency_data:
        colours = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", colours.size, "white"), colours).convert("RGB")
    return upright.convert("RGB")


def _grey_16_to_8_bit(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)  # (height, width)
    if values.size and (values.min() < 0 or values.max() > MAX_16_BIT):
        raise ValueError(
            f"grey values from {values.min()} to {values.max()} are outside the 16-bit range 0..{MAX_16_BIT}, "
            f"the only one that mode {image.mode} is read in"
        )
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))
