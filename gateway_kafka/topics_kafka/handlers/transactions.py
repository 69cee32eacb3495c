"""ListTransactions and DescribeTransactions. No producer is transactional here, so there are none."""

from typing import Final

from topics_kafka.handlers import Context, HandlerTable, ServerContext
from topics_kafka.protocol import ApiKey, ErrorCode, Message
from topics_service.engine.membership.members import RefusedError
from topics_service.engine.membership.subscriptions import compile_pattern

_STATES: Final = frozenset({
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
    "PrepareEpochFence",
})  # fmt: skip
_MAX_PATTERN_CHARS: Final = 1024


def handlers(_server: ServerContext) -> HandlerTable:
    """The APIs that show transactions."""
    return {ApiKey.LIST_TRANSACTIONS: list_transactions, ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions}


def list_transactions(_context: Context, version: int, request: Message) -> Message:
    """List no transactions, and the states of the filter that Kafka does not know."""
    try:
        compile_pattern(request.get("transactional_id_pattern") or "", _MAX_PATTERN_CHARS)
    except RefusedError as refusal:
        return {"error_code": refusal.error, "unknown_state_filters": [], "transaction_states": []}
    unknown = [state for state in request["state_filters"] if state not in _STATES]
    return {"error_code": ErrorCode.NONE, "unknown_state_filters": unknown, "transaction_states": []}


def describe_transactions(_context: Context, version: int, request: Message) -> Message:
    """Report that there is none of these ids."""
    return {
        "transaction_states": [
            {
                "error_code": ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                "transactional_id": name,
                "transaction_state": "",
                "transaction_timeout": 0,
                "transaction_start_time": -1,
                "producer_id": -1,
                "producer_epoch": -1,
                "topics": [],
            }
            for name in dict.fromkeys(request["transactional_ids"])
        ]
    }
