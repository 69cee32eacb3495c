"""The origin of a call: the request of a client that it belongs to, for log lines, audit entries and spans."""

from msgspec import Struct

from topics_service.api.access.auth import Principal
from topics_service.api.request_context import RequestContext, current_request
from topics_shards.wire.carriers import CALLERS


class OriginForm(Struct, array_like=True, gc=False, omit_defaults=True):
    """The current request as it is carried."""

    protocol: str
    request_id: str
    peer: str
    caller: bytes | None = None
    trace: str | None = None


class ForwardedRequest(RequestContext):
    """The request of a client at the process that holds the shard."""

    __slots__ = ("_form",)

    def __init__(self, form: OriginForm) -> None:
        super().__init__(form.protocol, None, form.request_id)
        self._form = form
        if form.caller is not None:
            self.principal = CALLERS.unpack(form.caller)

    @property
    def peer(self) -> str:
        """See RequestContext."""
        return self._form.peer


def current_origin() -> OriginForm | None:
    """The origin of a call that is made now; None outside of requests."""
    request = current_request.get()
    if request is None:
        return None
    if type(request) is ForwardedRequest:
        return request._form
    principal: Principal | None = request.principal
    caller = None if principal is None else CALLERS.pack(principal)
    return OriginForm(request.protocol, request.text, request.peer, caller)


def enter(form: OriginForm | None) -> None:
    """Make this the current request of the context."""
    if form is not None:
        current_request.set(ForwardedRequest(form))
