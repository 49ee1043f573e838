"""Variables that Spark puts into statements: no view gets the value of one, whatever its text is made of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.spark.view_engine import ViewSession
from epochlog.views import definition
from spark_store import HOSTILE, HOSTILE_VALUE

pytestmark = pytest.mark.spark
VARIABLES = (f"${{env:{HOSTILE}}}", "${system:epochlog.hostile}", "${spark.epochlog.hostile}", "${epochlog.hostile}")
DAYS = ("mine", "yours", *VARIABLES)


@pytest.fixture
def days(lake: Any) -> Any:
    """Rows with the names of the variables as texts, in a session in which each of them has a hostile value."""
    lake.spark._jvm.java.lang.System.setProperty("epochlog.hostile", HOSTILE_VALUE)
    for name in ("spark.epochlog.hostile", "epochlog.hostile"):
        lake.spark.conf.set(name, HOSTILE_VALUE)
    ids = list(range(len(DAYS)))
    lake.orders.upsert(pa.table({"id": ids, "day": list(DAYS), "amount": [1.0] * len(ids)}, lake.orders.schema))
    lake.store.checkpoint()
    yield lake.store.table("orders")
    for name in ("spark.epochlog.hostile", "epochlog.hostile"):
        lake.spark.conf.unset(name)


def test_the_session_of_the_tests_puts_values_in(lake, days) -> None:
    """The attack is real: an ordinary statement of the user's session gets the value, and its quotes end the text."""
    lake.read().createOrReplaceTempView("all_days")
    for variable in VARIABLES[:3]:
        (row,) = lake.spark.sql(f"SELECT count(*) FROM all_days WHERE day = '{variable}'").collect()
        assert row[0] == len(DAYS)


@pytest.mark.medium
def test_a_stored_view_takes_variables_for_texts(lake, days, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views of an earlier release may have them: any SQL ran in their name. Escapes that make `${` are no way in."""
    monkeypatch.setattr(definition, "_refuse_variables", lambda name, sql: None)
    escaped = VARIABLES[0].replace("{", "\\{")
    conditions = [f"day = '{variable}'" for variable in (*VARIABLES, escaped, VARIABLES[1].replace("$", "\\u0024"))]
    columns = [f"{condition} AS c{number}" for number, condition in enumerate(conditions)]
    query = f"SELECT id, `day` AS `{VARIABLES[0]}`, '{VARIABLES[0]}' AS t, {', '.join(columns)} FROM orders"
    view = lake.store.create_view("v", query, ["id"], spark=lake.spark)
    assert view.step(lake.spark)
    rows = lake.store.table("v").to_arrow().to_pylist()
    for at, row in enumerate(rows):
        wanted = [*(DAYS[at] == variable for variable in VARIABLES), at == 2, at == 3]
        assert list(row.values()) == [at, DAYS[at], VARIABLES[0], *wanted]
    assert view.check(lake.spark).ok
    own = ViewSession(lake.spark).session
    own.conf.set("spark.sql.variable.substitute", "true")  # the planted bug: the session of an earlier release
    try:
        with pytest.raises(Exception, match=r"The value 'mine' of the type"):
            view.check(lake.spark)
    finally:
        own.conf.set("spark.sql.variable.substitute", "false")


def test_a_view_with_a_variable_is_refused(lake, days) -> None:
    for variable in VARIABLES:
        query = f"SELECT id, day FROM orders WHERE day = '{variable}'"
        with pytest.raises(el.InvalidInput, match=r"view 'v': its query has \$\{"):
            lake.store.create_view("v", query, ["id"], spark=lake.spark)
