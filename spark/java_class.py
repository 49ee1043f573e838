"""Java classes that Spark finds by their names, made at run time.

Some of Spark's interfaces take a class and no object: the catalogs of a session, the source of a stream. Such a class
is written in Java here, Janino compiles it, with which Spark compiles the code that it generates, and the JVM defines
it beside Spark's own classes. So no jar is needed.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

PACKAGE = "org.apache.spark.sql.connector.catalog"
"""Package of the classes: a class is defined beside one of its own package."""
_BESIDE = f"{PACKAGE}.Catalogs"
_defining = threading.Lock()


def java_class(jvm: Any, name: str, source: Callable[[Any], str]) -> Any:
    """Return the Java class of this name in PACKAGE, which the first call in a JVM makes. jvm: PySpark's. source:
    returns the text of the class; its argument is Spark's class loader.

    Raises Py4JError if the JVM has no Janino, or does not let the class be defined.
    """
    beside = jvm.java.lang.Class.forName(_BESIDE)
    loader = beside.getClassLoader()
    with _defining:
        try:
            return loader.loadClass(f"{PACKAGE}.{name}")
        except Py4JJavaError:
            pass  # not made yet
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook(source(loader))
        (code,) = compiler.getBytecodes().values()
        handles = jvm.java.lang.invoke.MethodHandles
        return handles.privateLookupIn(beside, handles.lookup()).defineClass(code)


def static_map(defined: Any, name: str) -> Any:
    """Return the Java map in a static field of a class."""
    return defined.getField(name).get(None)


def warn_without_class(lost: str, instead: str, error: Py4JError) -> None:
    """Warn the caller of the library that a class cannot be made in this JVM. lost: what it was for. instead: what to
    do, or what goes on without it.
    """
    level = 1
    while sys._getframe(level).f_globals["__name__"].startswith("epochlog."):  # Python 3.12 has an option
        level += 1
    text = f"{lost} cannot be made in this JVM ({_cause_of(error)}){instead}"
    warnings.warn(text, RuntimeWarning, stacklevel=level + 1)


def _cause_of(error: Py4JError) -> str:
    """Return why a class could not be made, in a line."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return text.strip().splitlines()[0]
