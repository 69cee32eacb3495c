"""A column family that a database of an earlier version does not have, read as an empty one."""


class AbsentCursor:
    """A cursor that stands at no row, and met no error."""

    def seek(self, key: bytes) -> None:
        """See RdictIter."""

    def seek_for_prev(self, key: bytes) -> None:
        """See RdictIter."""

    def seek_to_last(self) -> None:
        """See RdictIter."""

    def valid(self) -> bool:
        """See RdictIter."""
        return False

    def status(self) -> None:
        """See RdictIter."""


class AbsentFamily:
    """The part of Rdict that reading needs."""

    def get(self, key: bytes) -> None:
        """See Rdict."""

    def iter(self, options: object = None) -> AbsentCursor:
        """See Rdict."""
        return AbsentCursor()
