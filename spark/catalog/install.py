"""`el.catalog`: install a store as a catalog in a session, or in all sessions of an application."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from epochlog.batch.default_policy import named_policy
from epochlog.batch.policy import Policy
from epochlog.batch.snapshot import default_of
from epochlog.errors import InvalidInput
from epochlog.spark.create_guard import SPARK_CATALOG
from epochlog.spark.java_class import warn_without_class
from epochlog.spark.live_session import require_live
from epochlog.spark.session import register
from epochlog.store.session.handle import Handle, HasHandle, open_handle
from epochlog.store.types.schema import is_name

from .catalog import StoreCatalog
from .jvm import Jvm, require_classic
from .query_epochs import CatalogTables, require_suitable
from .session_catalogs import CLASS, catalog_class, delegates
from .session_hooks import installed, patch_sessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def catalog(
    spark: SparkSession,
    store: HasHandle | str | Path,
    name: str = "lake",
    consistency: str | type | Policy | None = None,
    *,
    tables: Sequence[str] | None = None,
    read_only: bool = False,
    all_sessions: bool = False,
    **policy_options: object,
) -> None:
    """Install the store as a catalog of Spark SQL: `SELECT … FROM lake.orders`. A query reads all tables at one epoch.

    store: an open store, or the root of one, which is opened for the life of the process. name: of the catalog; a
    second call replaces it. consistency and policy_options: the policy that chooses the epoch of each query, as those
    of `store.snapshot`; None: the default of a read of these tables. tables: the tables that the catalog has, and that
    the policy aligns; None for all that take part in `global`. read_only: open the root for reads alone, where nothing
    may be written; statements that write raise StoreReadOnly. all_sessions: True for a catalog of this session and of
    each session that the application makes from now on, `spark.newSession()` and those of a Spark Connect server that
    this driver hosts too. False: each session needs a call of its own. If the JVM does not let the class of such
    catalogs be defined, this session alone has it, and a RuntimeWarning says so.
    Raises InvalidInput for a session of Spark Connect or without pinned threads, for a name that the session's settings
    give to another catalog, and for wrong arguments; TableNotFound
    for a table that the store does not have; StoreClosed for a closed store; SparkLost for a session that was stopped.
    """
    require_classic(spark)
    require_live(spark, "catalog")
    if not isinstance(name, str) or not is_name(name):
        raise InvalidInput(f"a catalog cannot be named {name!r}: use 1 to 63 of a-z, 0-9 and _, a letter first")
    if name == SPARK_CATALOG:
        raise InvalidInput(f"{name} is Spark's own catalog; choose another name, such as lake")
    for option, flag in (("read_only", read_only), ("all_sessions", all_sessions)):
        if not isinstance(flag, bool):
            raise InvalidInput(f"{option} must be True or False, not {flag!r}")
    _require_free(spark, name, all_sessions=all_sessions)
    if isinstance(tables, str) or (tables is not None and not tables):
        raise InvalidInput(f"tables must be a list of table names, not {tables!r}")
    names = None if tables is None else tuple(tables)
    policy = named_policy(consistency, lambda: default_of(_open(store, read_only), names), **policy_options)
    require_suitable(policy, names)
    catalog_tables = CatalogTables(_open(store, read_only), policy, names)
    catalog_tables.require_tables()
    (_install_in_all if all_sessions else _install)(spark, name, catalog_tables)
    patch_sessions(lambda session, name, like: _install(session, name, like.tables))


def _require_free(session: SparkSession, name: str, *, all_sessions: bool) -> None:
    """Raise InvalidInput if the session's settings name another catalog so, or one of all sessions."""
    known = session.conf.get(_setting(name), None)
    others = [each.conf().get(_setting(name), CLASS) for each in _known_sessions(session)] if all_sessions else []
    if known == CLASS and not all_sessions:
        raise InvalidInput(
            f"the catalog {name!r} is one of all sessions: replace it in all of them with all_sessions=True, or choose "
            "another name"
        )
    if known not in (None, CLASS):
        raise InvalidInput(f"{_setting(name)} is set to {known}: choose another name for the catalog of the store")
    for other in others:
        if other != CLASS:
            raise InvalidInput(
                f"{_setting(name)} is set to {other} in another session of this application: choose another name for "
                "the catalog of all sessions"
            )


def _known_sessions(session: SparkSession) -> Iterator[Any]:
    """Yield the Java sessions that Spark names: the active one of this thread, and the first one of the application."""
    inner: Any = session
    kind = inner._get_j_spark_session_class(inner._jvm)
    for known in (kind.getActiveSession(), kind.getDefaultSession()):
        if known.isDefined():
            yield known.get()


def _setting(name: str) -> str:
    return f"spark.sql.catalog.{name}"


def _install(session: SparkSession, name: str, tables: CatalogTables) -> None:
    jvm = Jvm(session, name)
    register(session)
    proxy = StoreCatalog(jvm, name, tables)
    _catalogs_of(jvm).put(name, proxy)
    installed[proxy.identity()] = proxy


def _install_in_all(session: SparkSession, name: str, tables: CatalogTables) -> None:
    jvm = Jvm(session, name, all_sessions=True)
    try:
        defined = catalog_class(jvm, dir(StoreCatalog))
    except Py4JError as error:
        lost = f"the catalog {name!r} is in this session alone, since its class"
        warn_without_class(lost, ": call el.catalog for each further session", error)
        _install(session, name, tables)
        return
    register(session)
    proxy = StoreCatalog(jvm, name, tables)
    of_session = defined.getConstructor(jvm.no_classes).newInstance(jvm.no_objects)
    of_session.initialize(name, jvm.no_options)
    delegates(defined)[name] = proxy
    jvm.context.conf().set(_setting(name), CLASS)  # of sessions to come
    session.conf.set(_setting(name), CLASS)
    # Asked for it, Spark would look in the settings of this thread's active session, which may be another one, or none.
    _catalogs_of(jvm).put(name, of_session)
    installed[proxy.identity()] = proxy


def _catalogs_of(jvm: Jvm) -> Any:
    """Return the session's map of the catalogs that it has made. Spark makes another one if a name is missing."""
    catalogs = jvm.catalogs.getClass().getDeclaredField("catalogs")
    catalogs.setAccessible(True)
    return catalogs.get(jvm.catalogs)


_opened: dict[tuple[str, bool], Handle] = {}
"""Stores that calls with a root have opened, by root and read_only."""


def _open(store: HasHandle | str | Path, read_only: bool) -> Handle:
    if not isinstance(store, str | Path):
        handle: Any = getattr(store, "_handle", None)
        if not isinstance(handle, Handle):
            raise InvalidInput(f"a catalog needs an open store or the root of one, not {store!r}")
        if read_only and not handle.read_only:
            raise InvalidInput(
                "read_only is for a catalog that opens its store: pass the root, or a store of "
                "epochlog.open(root, read_only=True)"
            )
        return handle
    key = str(store), bool(read_only)
    if key not in _opened:
        _opened[key] = open_handle(key[0], create=False, read_only=key[1])
    return _opened[key]
