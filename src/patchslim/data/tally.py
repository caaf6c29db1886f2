"""Counts what could be read of a source, and ends a pass in which too much could not."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from patchslim.errors import DataError


@dataclass
class Tally:
    """Counts the good and bad images of one pass and ends it when too many are bad."""

    name: str
    total: int
    good: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)

    def add(self, good: int, bad: Sequence[tuple[str, str]]) -> None:
        """Count a batch; DataError once more than a tenth of the images are bad."""
        self.good += good
        self.bad += bad
        if len(self.bad) > max(5, self.total / 10):
            raise DataError(
                f"{len(self.bad)} of the first {self.good + len(self.bad)} images (of {self.total}) "
                f"in {self.name} can't be read, {self._first()}; remove or repair the bad ones."
            )

    def nothing_read(self) -> DataError:
        """What to raise when no image was good."""
        return DataError(
            f"None of the {self.total} images in {self.name} can be read, {self._first()}; give other images."
        )

    def _first(self) -> str:
        name, reason = self.bad[0]
        return f"the first being {name} ({reason})"
