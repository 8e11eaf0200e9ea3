"""The form-independent interface of message bodies: what a publisher needs, whether rows are lists or in Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .placing import Arranged, Copy, RequestedPartitions

if TYPE_CHECKING:
    from ...protocol.codec.few_rows import Rows
    from .arrow_body import ArrowBody


class Body(Protocol):
    """Message bodies of one destination, without partitions yet."""

    @property
    def num_rows(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Number of bytes, about, that the rows take in a letter."""

    @property
    def timestamps_us(self) -> Any:
        """Timestamp per row, a sequence of numbers."""

    @property
    def headers(self) -> Any:
        """Headers per row, as lists of pairs or as an Arrow column; None if no row has any."""

    @property
    def has_ttl(self) -> bool:
        """Whether some of the rows have a time to live."""

    def arrange(self, copies: Sequence[Copy], requested: RequestedPartitions, start: int) -> Arranged[Rows]:
        """Return the rows as a letter takes them: checked and, once per copy, sorted by partition and due time.

        Args:
            copies: the copies to store.
            requested: explicit partitions.
            start: where the round of rows without a key begins.
        """

    def to_arrow(self) -> ArrowBody:
        """Return the same body in Arrow, from which files are written."""
