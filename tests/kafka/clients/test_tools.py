"""Kafka's own command line tools, each as operators type it."""

import json
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

from support.kafka_kinds import TOOLS, runnable
from support.server import ServerProcess


def run(server: ServerProcess, *commands: tuple[str, ...]) -> list[dict[str, Any]]:
    """Run tools one after the other; a command is the class of a tool and its arguments."""
    runnable(TOOLS)
    bootstrap = ("--bootstrap-server", f"127.0.0.1:{server.kafka_port}")
    lines = "".join(json.dumps([tool, *bootstrap, *arguments]) + "\n" for tool, *arguments in commands)
    done = subprocess.run(TOOLS.argv, input=lines, capture_output=True, text=True, timeout=120, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(commands), done.stderr[-2000:]
    return answers


def check(answer: dict[str, Any], *expected: str, code: int = 0) -> None:
    assert answer["code"] == code, answer
    for text in expected:
        assert text in answer["output"], answer


def test_topics_and_what_surrounds_them(kafka: ServerProcess, tmp_path: Path) -> None:
    topic = f"_{uuid4().hex[:10]}"
    offsets, moves = tmp_path / "offsets.json", tmp_path / "moves.json"
    partition = {"topic": topic, "partition": 0}
    offsets.write_text(json.dumps({"partitions": [{**partition, "offset": -1}], "version": 1}))
    moves.write_text(json.dumps({"partitions": [{**partition, "replicas": [2]}], "version": 1}))
    (made, described, elected, all_elected, quorum, replication, moved, moving, transactions, transaction, hanging,
     dirs, deleted, ends, groups, shares, metrics, features, acls) = run(
        kafka,
        ("TopicCommand", "--create", "--topic", topic, "--partitions", "2"),
        ("TopicCommand", "--describe", "--topic", topic),
        ("LeaderElectionCommand", "--election-type", "preferred", "--topic", topic, "--partition", "0"),
        ("LeaderElectionCommand", "--election-type", "unclean", "--all-topic-partitions"),
        ("MetadataQuorumCommand", "describe", "--status"),
        ("MetadataQuorumCommand", "describe", "--replication"),
        ("reassign.ReassignPartitionsCommand", "--execute", "--reassignment-json-file", str(moves)),
        ("reassign.ReassignPartitionsCommand", "--list"),
        ("TransactionsCommand", "list"),
        ("TransactionsCommand", "describe", "--transactional-id", "mine"),
        ("TransactionsCommand", "find-hanging", "--broker-id", "1"),
        ("LogDirsCommand", "--describe", "--topic-list", topic),
        ("DeleteRecordsCommand", "--offset-json-file", str(offsets)),
        ("GetOffsetShell", "--topic", topic),
        ("GroupsCommand", "--list"),
        ("consumer.group.ShareGroupCommand", "--list"),
        ("ClientMetricsCommand", "--list"),
        ("FeatureCommand", "describe"),
        ("AclCommand", "--list"),
    )  # fmt: skip
    check(made, f"Created topic {topic}.")
    check(described, "PartitionCount: 2", "Leader: 1")
    check(elected, f"Valid replica already elected for partitions {topic}-0")
    check(all_elected)
    check(quorum, "LeaderId:               1", "CurrentObservers:       []")
    check(replication, "Leader")
    assert moved["code"] == 1
    check(moving, "No partition reassignments found.")
    check(transactions, "TransactionalId")
    check(transaction, "the ID could not be found", code=1)
    check(hanging, "Topic")
    check(dirs, f'"partition":"{topic}-1"')
    check(deleted, f"partition: {topic}-0\tlow_watermark: 0")
    check(ends, f"{topic}:0:0", f"{topic}:1:0")
    check(groups, "GROUP")
    check(shares)
    check(metrics)
    check(features)
    check(acls, "the server has no authentication", code=1)


def test_acls_are_listed(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ada" password="secret";'
    config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={login}\n")
    env = {"TOPICS_SQL_USERS": "ada:secret:dba,bob:another:service:app.", "TOPICS_API_KEYS": "k" * 40}
    with ServerProcess(tmp_path, kafka=True, env=env) as server:
        listed, added = run(
            server,
            ("AclCommand", "--command-config", str(config), "--list", "--topic", "app.x", "--resource-pattern-type",
             "match"),
            ("AclCommand", "--command-config", str(config), "--add", "--allow-principal", "User:eve", "--operation",
             "Read", "--topic", "app.x"),
        )  # fmt: skip
    check(listed, "resourceType=TOPIC, name=app., patternType=PREFIXED", "principal=User:bob", "principal=User:ada")
    check(added, "access is given by the keys and users of the server", code=1)
