"""Signatures between nodes: each way to forge one is refused, and memory stays bounded."""

import secrets

import pytest

from topics_cluster.trust import ForgedError, Origin, Secret, Signer, Verifier

SECRET = secrets.token_bytes(32)
ORIGIN = Origin("192.0.2.7:51234", "id-1")
NODE = "10.0.0.2:4000"
SUBJECT = "GET /v0/topics/a?x=1"


class Clock:
    """Seconds since 1970, as a test sets them."""

    def __init__(self) -> None:
        self.now = 1.8e9

    def __call__(self) -> float:
        return self.now


def pair(secret: Secret | None = None) -> tuple[Signer, Verifier, Clock]:
    secret, clock = secret or Secret([SECRET]), Clock()
    return Signer(secret, clock=clock), Verifier(secret, NODE, clock=clock), clock


def test_a_signature_holds_once() -> None:
    signer, verifier, clock = pair()
    for seconds in (0, 59.9):
        signed = signer.sign(ORIGIN, NODE, SUBJECT)
        clock.now += seconds
        assert verifier.verify(signed, SUBJECT) == ORIGIN
        with pytest.raises(ForgedError, match="used before"):
            verifier.verify(signed, SUBJECT)


def test_it_is_for_one_node_and_one_request() -> None:
    signer, verifier, _ = pair()
    for audience, subject in ((NODE, "GET /v0/topics/b"), ("10.0.0.3:4000", SUBJECT), (NODE, "POST /v0/topics/a?x=1")):
        with pytest.raises(ForgedError, match="not one of this cluster for this request"):
            verifier.verify(signer.sign(ORIGIN, audience, subject), SUBJECT)


def test_it_expires() -> None:
    signer, verifier, clock = pair()
    signed = signer.sign(ORIGIN, NODE, SUBJECT)
    clock.now += 60
    with pytest.raises(ForgedError, match="expired"):
        verifier.verify(signed, SUBJECT)


def test_a_clock_that_is_far_ahead_is_refused() -> None:
    signer, verifier, clock = pair()
    clock.now += 61
    early = signer.sign(ORIGIN, NODE, SUBJECT)
    clock.now -= 1
    assert verifier.verify(signer.sign(ORIGIN, NODE, SUBJECT), SUBJECT) == ORIGIN
    clock.now -= 60
    with pytest.raises(ForgedError, match="clocks"):
        verifier.verify(early, SUBJECT)


def test_another_secret_is_refused() -> None:
    _, verifier, clock = pair()
    stranger = Signer(Secret([secrets.token_bytes(32)]), clock=clock)
    with pytest.raises(ForgedError, match="signature"):
        verifier.verify(stranger.sign(ORIGIN, NODE, SUBJECT), SUBJECT)


def test_every_field_is_signed() -> None:
    signer, verifier, _ = pair()
    fields = signer.sign(ORIGIN, NODE, SUBJECT).split(";")
    for at, other in enumerate(("2", "1800000059999", "0" * 16, "7", "192.0.2.8:1", "id-2", "0" * 64)):
        with pytest.raises(ForgedError):
            verifier.verify(";".join((*fields[:at], other, *fields[at + 1 :])), SUBJECT)
    assert verifier.verify(";".join(fields), SUBJECT) == ORIGIN


@pytest.mark.parametrize(
    "value", ["", "1", ";" * 6, "1;x;y;z;a;b;c", "1;1;a;-1;c;;" + "0" * 64, "1;" + "9" * 2000, "١;1;a;1;c;;00"]
)
def test_malformed_values(value: str) -> None:
    _, verifier, _ = pair()
    with pytest.raises(ForgedError):
        verifier.verify(value, SUBJECT)


def test_a_secret_is_changed_while_nodes_run() -> None:
    old, new = secrets.token_bytes(32), secrets.token_bytes(40)
    theirs, ours = Secret([old]), Secret([old])
    signer, verifier, clock = Signer(theirs), Verifier(ours, NODE), Clock()
    signer._clock = verifier._clock = clock
    for step in (lambda: ours.replace([old, new]), lambda: theirs.replace([new, old]), lambda: ours.replace([new])):
        step()
        assert verifier.verify(signer.sign(ORIGIN, NODE, SUBJECT), SUBJECT) == ORIGIN
    theirs.replace([old])
    with pytest.raises(ForgedError):
        verifier.verify(signer.sign(ORIGIN, NODE, SUBJECT), SUBJECT)


def test_a_short_secret_is_refused_and_changes_nothing() -> None:
    for values in ([], [b"x" * 31], [SECRET, b""]):
        with pytest.raises(ValueError, match="32 bytes"):
            Secret(values)
    signer, verifier, _ = pair(secret := Secret([SECRET]))
    with pytest.raises(ValueError, match="32 bytes"):
        secret.replace([b"short"])
    assert verifier.verify(signer.sign(ORIGIN, NODE, SUBJECT), SUBJECT) == ORIGIN


def test_requests_may_overtake_each_other() -> None:
    signer, verifier, _ = pair()
    signed = [signer.sign(ORIGIN, NODE, SUBJECT) for _ in range(300)]
    for value in signed[::-1]:
        assert verifier.verify(value, SUBJECT) == ORIGIN
    for value in signed:
        with pytest.raises(ForgedError):
            verifier.verify(value, SUBJECT)


def test_one_that_is_far_behind_counts_as_used() -> None:
    signer, verifier, _ = pair()
    first, second = signer.sign(ORIGIN, NODE, SUBJECT), signer.sign(ORIGIN, NODE, SUBJECT)
    for _ in range(65_534):
        next(signer._numbers)
    verifier.verify(signer.sign(ORIGIN, NODE, SUBJECT), SUBJECT)
    assert verifier.verify(second, SUBJECT) == ORIGIN
    with pytest.raises(ForgedError, match="used before"):
        verifier.verify(first, SUBJECT)


def test_signers_are_forgotten_when_nothing_of_them_holds() -> None:
    secret, clock = Secret([SECRET]), Clock()
    verifier = Verifier(secret, NODE, clock=clock)
    for _ in range(256):
        verifier.verify(Signer(secret, clock=clock).sign(ORIGIN, NODE, SUBJECT), SUBJECT)
    late = Signer(secret, clock=clock)
    with pytest.raises(ForgedError, match="too many"):
        verifier.verify(late.sign(ORIGIN, NODE, SUBJECT), SUBJECT)
    clock.now += 60
    assert verifier.verify(late.sign(ORIGIN, NODE, SUBJECT), SUBJECT) == ORIGIN
    assert len(verifier._signers) == 1


def test_what_can_not_be_a_field_is_not_signed() -> None:
    signer, verifier, _ = pair()
    for client, request_id in (("a;b:1", "x"), ("a\nb:1", "y;z"), ("\u00e4:1", "w" * 300)):
        found = verifier.verify(signer.sign(Origin(client, request_id), NODE, SUBJECT), SUBJECT)
        assert found.client == "?"
        assert found.request_id in ("x", "")
