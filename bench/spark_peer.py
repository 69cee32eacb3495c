"""The peer of a batch read: Spark's own Kafka source, on the version of Spark that Maven has it for."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Producer

from bench import kafka_broker
from bench.tools import have

_ROOT = Path(__file__).parents[1]
_POM = Path(__file__).parent / "spark_peer/pom.xml"
_JARS = _ROOT / "build/spark-peer"
PYTHON = _ROOT / "build/spark-4.2/bin/python"
VERSION = "4.2"
_PATIENCE = 300.0


def missing() -> str:
    """Why there is no peer; fetches its jars."""
    if not PYTHON.exists():
        return "no Kafka source: make build/spark-4.2/.installed"
    if not kafka_broker.fetched():
        return f"no Kafka broker: {kafka_broker.MISSING}"
    if not (_JARS / ".fetched").exists():
        if not have("mvn"):
            return f"no Kafka source: {kafka_broker.MISSING}"
        command = ["mvn", "--quiet", "--batch-mode", "--file", str(_POM), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={_JARS}"]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            return "no Kafka source: Maven can't fetch it"
        (_JARS / ".fetched").touch()
    return ""


def jars() -> str:
    """For spark.jars."""
    return ",".join(str(jar) for jar in sorted(_JARS.glob("*.jar")))


def fill(server: str, topic: str, values: Iterable[bytes]) -> None:
    """Write the values to one partition, in order."""
    producer = Producer(
        {
            "bootstrap.servers": server,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 200_000,
        }
    )
    for value in values:
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(_PATIENCE):
        raise RuntimeError("records are left over")
