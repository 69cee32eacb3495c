"""The data directory of a server with shards: made at the first start, and locked by one server at a time."""

from topics_server.errors import StartError
from topics_server.settings import Settings
from topics_server.verify import is_database
from topics_service.storage import shardfiles
from topics_service.storage.holding import Hold, in_use
from topics_service.storage.store import StoreError


def take(settings: Settings) -> tuple[Hold, int]:
    """Lock the directory, which is made if there is none; return the lock and the number of shards.

    Raises StartError, also for a directory without shards, and for one that has fewer shards than there are processes.
    """
    path = settings.data_path
    try:
        count = shardfiles.count_of(path)
        if count is None:
            if path.is_dir() and is_database(path):
                raise StartError(
                    f"the data directory {path} has no shards: topics split --data-dir {path} makes them, and without "
                    "TOPICS_PROCESSES it is served as it is"
                )
            count = settings.shards
            _check(settings, count)
            shardfiles.create(path, count)
        _check(settings, count)
        return Hold(path), count
    except BlockingIOError:
        raise StartError(f"can't open the data directory {path}: {in_use(path)}") from None
    except OSError as error:
        raise StartError(f"can't open the data directory {path}: {error.strerror or error}") from None
    except StoreError as error:
        raise StartError(str(error)) from None


def _check(settings: Settings, count: int) -> None:
    if settings.processes > count:
        raise StartError(
            f"the data directory {settings.data_path} has {count} shards, and so at most {count} processes, "
            f"not {settings.processes} (TOPICS_PROCESSES)"
        )
