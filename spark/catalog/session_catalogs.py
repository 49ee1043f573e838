"""Java class of catalogs that every session of a Spark application has; it passes each call on to an object in Python.

Spark makes the catalogs of a session from the classes that the session's configuration names. The class is written
method by method, as the interfaces of this Spark have them, so it needs no table of versions.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from epochlog.spark.java_class import PACKAGE, java_class, static_map

from .jvm import Jvm

NAME = "EpochlogCatalog"
CLASS = f"{PACKAGE}.{NAME}"
"""Name of the class, as the setting `spark.sql.catalog.lake` has it."""
INTERFACES = ("TableCatalog", "SupportsNamespaces")
_OWN = ("name", "initialize")
"""Methods that the class itself answers: an object of it knows its name before the store's catalog is asked."""

_METHOD = re.compile(
    r"(?P<modifiers>(?:[a-z]+ )*)(?P<returns>\S+) (?P<interface>[\w.$]+)\.(?P<name>\w+)\((?P<parameters>\S*)\)"
    r"(?: throws (?P<throws>\S+))?"
)

_SOURCE = """
package {package};

public class {name} implements {interfaces} {{
    public static final java.util.Map DELEGATES = new java.util.concurrent.ConcurrentHashMap();
    private String name;

    public void initialize(String name, org.apache.spark.sql.util.CaseInsensitiveStringMap options) {{
        this.name = name;
    }}

    public String name() {{ return name; }}

    public String toString() {{ return String.valueOf(DELEGATES.get(name)); }}

    private Object delegate() {{
        Object delegate = DELEGATES.get(name);
        if (delegate == null) throw new IllegalStateException(
            "epochlog.errors.StoreClosed: this application has no store as the catalog " + name
            + ": install one, el.catalog(spark, store, name='" + name + "', all_sessions=True)");
        return delegate;
    }}
{methods}
}}
"""


@dataclass(frozen=True, slots=True)
class JavaMethod:
    """Method of a Java interface, with the names of its types."""

    interface: str
    name: str
    parameters: tuple[str, ...]
    returns: str
    throws: str
    """Checked exceptions, separated by commas; empty for none."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the text of a java.lang.reflect.Method; None for one that no object answers: a static method, or a
        bridge that the compiler has added.
        """
        match = _METHOD.fullmatch(text.replace("$", "."))
        if match is None:
            raise ValueError(f"this is no method of Java: {text!r}")
        if {"static", "volatile"} & set(match["modifiers"].split()):
            return None
        parameters = tuple(match["parameters"].split(",")) if match["parameters"] else ()
        return cls(match["interface"], match["name"], parameters, match["returns"], match["throws"] or "")

    def source(self) -> str:
        """Return the method in Java: it calls the same one of the object in Python."""
        declared = ", ".join(f"{kind} a{place}" for place, kind in enumerate(self.parameters))
        passed = ", ".join(f"a{place}" for place in range(len(self.parameters)))
        throws = f" throws {self.throws}" if self.throws else ""
        answer = "" if self.returns == "void" else "return "
        call = f"{answer}(({self.interface}) delegate()).{self.name}({passed});"
        return f"    public {self.returns} {self.name}({declared}){throws} {{ {call} }}"


def class_source(texts: Iterable[str], answered: Container[str]) -> str:
    """Return the class in Java. texts: those of all methods of the interfaces. answered: names of the methods that the
    object in Python has; the interface's own default answers others.
    """
    methods: dict[tuple[str, Sequence[str]], JavaMethod] = {}
    for text in texts:
        method = JavaMethod.parse(text)
        if method is not None and method.name in answered and method.name not in _OWN:
            methods.setdefault((method.name, method.parameters), method)
    return _SOURCE.format(
        package=PACKAGE,
        name=NAME,
        interfaces=", ".join(INTERFACES),
        methods="\n".join(method.source() for method in methods.values()),
    )


def catalog_class(jvm: Jvm, answered: Container[str]) -> Any:
    """Return the Java class. answered: names of the methods that the objects in Python have.

    Raises Py4JError if this JVM does not let it be made.
    """

    def source(loader: Any) -> str:
        interfaces = (loader.loadClass(f"{PACKAGE}.{interface}") for interface in INTERFACES)
        return class_source((method.toString() for each in interfaces for method in each.getMethods()), answered)

    return java_class(jvm.root, NAME, source)


def delegates(defined: Any) -> Any:
    """Return the Java map of the objects in Python by the names of their catalogs, which all sessions share."""
    return static_map(defined, "DELEGATES")
