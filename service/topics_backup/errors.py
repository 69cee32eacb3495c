"""Errors of backups."""


class BackupError(Exception):
    """A failed operation. The message is for the operator and names the cause and the next step."""


class DamagedError(BackupError):
    """A backup has changed since it was made; `what` names the file."""

    def __init__(self, backup_id: str, what: str) -> None:
        super().__init__(f"the backup {backup_id} is damaged: {what}")
        self.backup_id = backup_id
        self.what = what


class AbsentError(BackupError):
    """A file is not in the target."""


class LogError(BackupError):
    """A piece of the archived log is missing or has changed; the log before `min_ms` does not need it."""

    def __init__(self, min_ms: int, what: str) -> None:
        super().__init__(f"the archived log is damaged: {what}")
        self.min_ms = min_ms
