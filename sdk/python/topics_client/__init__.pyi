# The public names, each from where it is defined: what `__init__.py` loads, and what type checkers see.
from .address import Address as Address
from .aio.arrow import AsyncArrowStream as AsyncArrowStream
from .aio.client import AsyncTopicsClient as AsyncTopicsClient
from .aio.streams import (
    AsyncReadStream as AsyncReadStream,
    AsyncLiveStream as AsyncLiveStream,
    AsyncWatchStream as AsyncWatchStream,
)
from .codecs import (
    Codec as Codec,
    JsonCodec as JsonCodec,
)
from .producer.delivery import Delivery as Delivery
from .errors import (
    AuthError as AuthError,
    ConflictError as ConflictError,
    ConnectError as ConnectError,
    InvalidRequestError as InvalidRequestError,
    NotFoundError as NotFoundError,
    TopicsError as TopicsError,
    UnavailableError as UnavailableError,
)
from .models import (
    Advice as Advice,
    Appended as Appended,
    Attempt as Attempt,
    CaughtUp as CaughtUp,
    DecodeError as DecodeError,
    Deleted as Deleted,
    Event as Event,
    Gap as Gap,
    GapError as GapError,
    GroupPosition as GroupPosition,
    GroupSummary as GroupSummary,
    Headers as Headers,
    Job as Job,
    JobState as JobState,
    JobView as JobView,
    NewRecord as NewRecord,
    Page as Page,
    PartitionInfo as PartitionInfo,
    QueueCounts as QueueCounts,
    RawJson as RawJson,
    Record as Record,
    RouterConfig as RouterConfig,
    RouterInfo as RouterInfo,
    RouterSummary as RouterSummary,
    Settled as Settled,
    TopicConfig as TopicConfig,
    TopicDeleted as TopicDeleted,
    TopicInfo as TopicInfo,
    TopicPut as TopicPut,
    TopicSummary as TopicSummary,
)
from .producer.api import (
    AsyncProducer as AsyncProducer,
    Producer as Producer,
    ProducerOptions as ProducerOptions,
)
from .producer.core import ProducerStatistics as ProducerStatistics
from .reading import ReadOptions as ReadOptions
from .retry import Retry as Retry
from .sqllive import (
    LiveCaughtUp as LiveCaughtUp,
    LiveChange as LiveChange,
    LiveEvent as LiveEvent,
    LiveGap as LiveGap,
    LiveSnapshot as LiveSnapshot,
)
from .sqlresults import (
    Message as Message,
    MessageClaim as MessageClaim,
    MessageGap as MessageGap,
    Messages as Messages,
    SqlColumn as SqlColumn,
    SqlResult as SqlResult,
)
from .sync.arrow import ArrowStream as ArrowStream
from .sync.client import TopicsClient as TopicsClient
from .sync.streams import (
    LiveStream as LiveStream,
    ReadStream as ReadStream,
    WatchStream as WatchStream,
)
from .watching import WatchOptions as WatchOptions
from .worker.api import (
    AsyncWorker as AsyncWorker,
    Backoff as Backoff,
    Release as Release,
    RetryLater as RetryLater,
    Worker as Worker,
    WorkerStatistics as WorkerStatistics,
)
from .worker.options import WorkerOptions as WorkerOptions
