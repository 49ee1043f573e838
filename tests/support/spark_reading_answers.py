"""Answers of Spark 4.3: type and value of expressions in the row with id 1; columns and rows of queries."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

EXPRESSIONS: dict[str, tuple[str, Any]] = {
    "'O''Brien'": ("string", "O'Brien"),
    '"a""b"': ("string", 'a"b'),
    "s = 'O''Brien'": ("boolean", True),
    's = "O\'Brien"': ("boolean", True),
    "s = 'O\\'Brien'": ("boolean", True),
    "s LIKE 'O''%'": ("boolean", True),
    "s LIKE 'O' '\\'%'": ("boolean", True),
    "CONCAT('a', 'b')": ("string", "ab"),
    "'a' 'b' || 'c'": ("string", "abc"),
    "-1::STRING": ("string", "-1"),
    "- 1::STRING": ("string", "-1"),
    "-128Y": ("tinyint", -128),
    "-32768S": ("smallint", -32768),
    "-9223372036854775808L": ("bigint", -9223372036854775808),
    "-2147483648": ("int", -2147483648),
    "- 2147483648": ("int", -2147483648),
    "-(2147483648)": ("bigint", -2147483648),
    "-2147483648 - 1L": ("bigint", -2147483649),
    "-9223372036854775808": ("bigint", -9223372036854775808),
    "9223372036854775808": ("decimal(19,0)", Decimal(9223372036854775808)),
    "- -1": ("int", 1),
    "2 - 1::INT": ("int", 1),
    "-v::INT": ("int", -10),
    "-(1)::INT": ("int", -1),
    "-1 % 3": ("int", -1),
    "0.5": ("decimal(1,1)", Decimal("0.5")),
    ".5": ("decimal(1,1)", Decimal("0.5")),
    "-.5": ("decimal(1,1)", Decimal("-0.5")),
    "5.": ("decimal(1,0)", Decimal(5)),
    "00.50": ("decimal(2,2)", Decimal("0.50")),
    "1.50": ("decimal(3,2)", Decimal("1.50")),
    "1e3": ("double", 1000.0),
    "1.1D": ("double", 1.1),
    "0.1234567890123456789D": ("double", 0.12345678901234568),
    "123456789012345.678D": ("double", 123456789012345.67),
    "1.1F": ("float", 1.100000023841858),
    "3000000000": ("bigint", 3000000000),
    "v > 0.5": ("boolean", True),
    "f * 1e3": ("double", 1500.0),
    "v % -3": ("int", 1),
    "-7 % 3": ("int", -1),
    "v DIV -3": ("bigint", -3),
    "-7 DIV 2": ("bigint", -3),
    "v / -4": ("double", -2.5),
    "CAST(v AS DECIMAL)": ("decimal(10,0)", Decimal(10)),
    "CAST(v AS DECIMAL(5))": ("decimal(5,0)", Decimal(10)),
    "CAST(v AS NUMERIC)": ("decimal(10,0)", Decimal(10)),
    "v::DEC": ("decimal(10,0)", Decimal(10)),
    "DATE_TRUNC('MM', TIMESTAMP '2024-02-29 10:20:30')": ("timestamp", dt.datetime(2024, 2, 1, 0, 0, tzinfo=dt.UTC)),
    "DATE_TRUNC('quarter', TIMESTAMP '2024-02-29 10:20:30')": (
        "timestamp",
        dt.datetime(2024, 1, 1, 0, 0, tzinfo=dt.UTC),
    ),
    "DATE_TRUNC('dd', TIMESTAMP '2024-02-29 10:20:30')": ("timestamp", dt.datetime(2024, 2, 29, 0, 0, tzinfo=dt.UTC)),
    "DATE '2024-1-5'": ("date", dt.date(2024, 1, 5)),
    "day = '2024-1-31'": ("boolean", True),
    "day IN ('2024-1-31', '2024-02-01')": ("boolean", True),
    "s = 'now'": ("boolean", False),
    "TIMESTAMP '2024-01-05 10:00:00+02:00'": ("timestamp", dt.datetime(2024, 1, 5, 8, 0, tzinfo=dt.UTC)),
    "1 --c \\\n + 1\n": ("int", 1),
    "1 /* /* */ - */ + 1": ("int", 2),
    "(1 --'\n)": ("int", 1),
}

QUERIES: dict[str, tuple[str, list[list[Any]]]] = {
    "SELECT 'all' AS k, COUNT_IF(v > 5) AS n FROM e": ("k string, n bigint", [["all", 0]]),
    "SELECT 'all' AS k, COUNT_IF(v > 5) AS n, COUNT_IF(DISTINCT v > 5) AS m FROM t": (
        "k string, n bigint, m bigint",
        [["all", 2, 1]],
    ),
    "SELECT g AS k, COUNT_IF(v > 5) FILTER (WHERE id < 2) AS n FROM t GROUP BY g": (
        "k int, n bigint",
        [[1, 1], [2, 0], [None, 0]],
    ),
    "SELECT id, COUNT_IF(v > 5) OVER (PARTITION BY g) AS n FROM t": (
        "id bigint, n bigint",
        [[1, 2], [2, 2], [3, 0], [4, 0]],
    ),
    "WITH q(p, r) AS (SELECT id, v AS id FROM t) SELECT p, r FROM q": (
        "p bigint, r int",
        [[1, 10], [2, 20], [3, -7], [4, None]],
    ),
    "SELECT p, r FROM (SELECT id, v AS id FROM t) AS q(p, r)": (
        "p bigint, r int",
        [[1, 10], [2, 20], [3, -7], [4, None]],
    ),
    "SELECT p, r FROM (SELECT id, v AS id FROM t UNION ALL SELECT k, id AS k FROM a) AS q(p, r)": (
        "p bigint, r bigint",
        [[1, 10], [100, 1], [2, 20], [200, 2], [3, -7], [4, None], [None, 3]],
    ),
    "SELECT q, p FROM (SELECT id, id FROM t) AS x(p, q) WHERE q > 2": ("q bigint, p bigint", [[3, 3], [4, 4]]),
    "WITH q(p, r) AS (SELECT id, v AS id FROM t ORDER BY 2 DESC LIMIT 2) SELECT y.m, y.n FROM q AS y(m, n)": (
        "m bigint, n int",
        [[1, 10], [2, 20]],
    ),
    "SELECT z6, z1 FROM t AS z(z1, z2, z3, z4, z5, z6)": (
        "z6 double, z1 bigint",
        [[-0.5, 2], [0.0, 3], [1.5, 1], [None, 4]],
    ),
    "SELECT p FROM (SELECT COUNT(*), COUNT(*) FROM t) AS q(p, r)": ("p bigint", [[4]]),
    "SELECT * FROM a JOIN (SELECT k, z FROM b) b USING (k) JOIN (SELECT z, v FROM c) c USING (z)": (
        "z bigint, k bigint, id bigint, x bigint, y bigint, v bigint",
        [[7, 100, 1, 10, 1000, 70], [8, 200, 2, 20, 2000, 80]],
    ),
    (
        "SELECT * FROM (SELECT x, k FROM a) a LEFT JOIN (SELECT k, z FROM b) b USING (k) LEFT JOIN "
        "(SELECT v, z FROM c) c USING (z)"
    ): (
        "z bigint, k bigint, x bigint, v bigint",
        [[7, 100, 10, 70], [8, 200, 20, 80], [None, None, 30, None]],
    ),
    (
        "SELECT * FROM (SELECT x, k FROM a) a FULL JOIN (SELECT k, z FROM b) b USING (k) FULL JOIN "
        "(SELECT v, k, z FROM c) c USING (z, k)"
    ): (
        "z bigint, k bigint, x bigint, v bigint",
        [
            [7, 100, 10, 70],
            [8, 200, 20, None],
            [8, 999, None, 80],
            [9, 300, None, None],
            [99, 300, None, 90],
            [None, None, 30, None],
        ],
    ),
    "SELECT * FROM (SELECT x, k FROM a) a RIGHT JOIN (SELECT z, K FROM b) b USING (k)": (
        "K bigint, x bigint, z bigint",
        [[100, 10, 7], [200, 20, 8], [300, None, 9]],
    ),
    "SELECT * FROM a LEFT SEMI JOIN b USING (k)": (
        "k bigint, id bigint, x bigint, y bigint",
        [[100, 1, 10, 1000], [200, 2, 20, 2000]],
    ),
    "SELECT * FROM a LEFT ANTI JOIN b USING (k, id)": (
        "k bigint, id bigint, x bigint, y bigint",
        [[200, 2, 20, 2000], [None, 3, 30, 3000]],
    ),
    "SELECT a.*, z FROM a JOIN b USING (k)": (
        "k bigint, id bigint, x bigint, y bigint, z bigint",
        [[100, 1, 10, 1000, 7], [200, 2, 20, 2000, 8]],
    ),
    "SELECT b.*, x FROM a JOIN b USING (k, id)": (
        "k bigint, id bigint, i2 bigint, z bigint, x bigint",
        [[100, 1, 1, 7, 10]],
    ),
    "SELECT b.* FROM a LEFT JOIN b USING (id)": (
        "id bigint, i2 bigint, k bigint, z bigint",
        [[1, 1, 100, 7], [None, None, None, None], [None, None, None, None]],
    ),
    "SELECT a.* FROM a RIGHT JOIN b USING (k)": (
        "k bigint, id bigint, x bigint, y bigint",
        [[100, 1, 10, 1000], [200, 2, 20, 2000], [None, None, None, None]],
    ),
    "SELECT a.* FROM a FULL JOIN b USING (k)": (
        "k bigint, id bigint, x bigint, y bigint",
        [[100, 1, 10, 1000], [200, 2, 20, 2000], [None, 3, 30, 3000], [None, None, None, None]],
    ),
    "SELECT b.* FROM a FULL JOIN b USING (id)": (
        "id bigint, i2 bigint, k bigint, z bigint",
        [[1, 1, 100, 7], [5, 2, 200, 8], [6, 3, 300, 9], [None, None, None, None], [None, None, None, None]],
    ),
    "SELECT a.k, b.k AS k2, k AS k3 FROM a FULL JOIN b USING (k)": (
        "k bigint, k2 bigint, k3 bigint",
        [[100, 100, 100], [200, 200, 200], [None, 300, 300], [None, None, None]],
    ),
    "SELECT a.*, c.v, b.z FROM a JOIN b USING (k) JOIN c USING (k)": (
        "k bigint, id bigint, x bigint, y bigint, v bigint, z bigint",
        [[100, 1, 10, 1000, 70, 7]],
    ),
    "SELECT c.*, b.i2 FROM a JOIN b USING (k) JOIN c USING (z)": (
        "z bigint, i3 bigint, k bigint, v bigint, i2 bigint",
        [[7, 1, 100, 70, 1], [8, 2, 999, 80, 2]],
    ),
    "SELECT * EXCEPT (id, i2) FROM (SELECT x, k FROM a) a JOIN b USING (k)": (
        "k bigint, x bigint, z bigint",
        [[100, 10, 7], [200, 20, 8]],
    ),
    "SELECT b.*, d.w FROM a JOIN b USING (k) JOIN d ON d.v = b.z * 10": (
        "k bigint, i2 bigint, id bigint, z bigint, w bigint",
        [[100, 1, 1, 7, 1]],
    ),
    "SELECT COUNT(*) AS n, 1 AS x FROM t GROUP BY x": ("n bigint, x int", [[4, 1]]),
    "SELECT COUNT(*) AS n, 1 AS x FROM e GROUP BY x": ("n bigint, x int", []),
    "SELECT COUNT(*) AS n, 1 AS x FROM t GROUP BY (x)": ("n bigint, x int", [[4, 1]]),
    "SELECT COUNT(*) AS n, 7 AS x, g FROM t GROUP BY 2, g": (
        "n bigint, x int, g int",
        [[1, 7, 2], [1, 7, None], [2, 7, 1]],
    ),
    "SELECT COUNT(*) AS n, 'a' AS x FROM e GROUP BY x": ("n bigint, x string", []),
    "SELECT COUNT(*) AS n, NULL AS x FROM t GROUP BY x": ("n bigint, x null", [[4, None]]),
    "SELECT COUNT(*) AS n, TRUE AS x FROM t GROUP BY x": ("n bigint, x boolean", [[4, True]]),
    "SELECT g AS k, COUNT(*) AS n FROM t GROUP BY (1)": ("k int, n bigint", [[1, 2], [2, 1], [None, 1]]),
    "SELECT g, COUNT(*) AS n FROM t GROUP BY GROUPING SETS ((1), (g))": (
        "g int, n bigint",
        [[1, 2], [1, 2], [2, 1], [2, 1], [None, 1], [None, 1]],
    ),
    "SELECT COUNT(*) AS n FROM t GROUP BY ALL": ("n bigint", [[4]]),
    "SELECT COUNT(*) AS n, MAX(v) AS m FROM e GROUP BY ALL": ("n bigint, m int", [[0, None]]),
    "SELECT g, 3 AS y, COUNT(*) AS n FROM t GROUP BY ALL": (
        "g int, y int, n bigint",
        [[1, 3, 2], [2, 3, 1], [None, 3, 1]],
    ),
    "SELECT 'a' AS x, COUNT(*) AS n FROM e GROUP BY ALL": ("x string, n bigint", []),
    "SELECT g, v FROM t ORDER BY ALL DESC LIMIT 2": ("g int, v int", [[1, 20], [2, -7]]),
    "SELECT v AS g, g AS v FROM t ORDER BY g LIMIT 2": ("g int, v int", [[-7, 2], [None, None]]),
    "SELECT v FROM t ORDER BY (1) DESC LIMIT 1": ("v int", [[20]]),
    (
        "WITH q AS (SELECT id FROM a) SELECT x.id, q.id AS i FROM q JOIN (WITH q AS (SELECT id "
        "FROM t WHERE v > 10) SELECT id FROM q) x ON TRUE"
    ): (
        "id bigint, i bigint",
        [[2, 1], [2, 2], [2, 3]],
    ),
    "WITH t AS (SELECT id, v FROM t WHERE v > 0) SELECT * FROM t": ("id bigint, v int", [[1, 10], [2, 20]]),
    "SELECT id, v + 1 AS g, g AS h FROM t": (
        "id bigint, g int, h int",
        [[1, 11, 1], [2, 21, 1], [3, -6, 2], [4, None, None]],
    ),
    "SELECT g, MAX(v) AS v FROM t GROUP BY g HAVING v > 0": ("g int, v int", [[1, 20]]),
    "SELECT id FROM t WHERE g IN (SELECT g FROM t x WHERE x.s = 'O''Brien')": ("id bigint", [[1], [2]]),
    ("SELECT id FROM t a WHERE EXISTS (SELECT id + 1 AS g FROM b GROUP BY g HAVING g = a.id + 1)"): (
        "id bigint",
        [[1]],
    ),
    (
        "SELECT id, LAST_VALUE(g) OVER (ORDER BY g) AS x, LAST_VALUE(id) OVER (PARTITION BY g "
        "ORDER BY v) AS y, FIRST_VALUE(id) OVER (ORDER BY g, id) AS z FROM t"
    ): (
        "id bigint, x int, y bigint, z bigint",
        [[1, 1, 1, 4], [2, 1, 2, 4], [3, 2, 3, 4], [4, None, 4, 4]],
    ),
    (
        "SELECT id, NTH_VALUE(g, 2) OVER (ORDER BY g) AS x, NTH_VALUE(g, 3) OVER (PARTITION BY f > "
        "0 ORDER BY g DESC) AS y FROM t"
    ): (
        "id bigint, x int, y int",
        [[1, 1, None], [2, 1, None], [3, 1, None], [4, None, None]],
    ),
    "SELECT id, s AS `a``b` FROM t WHERE s <> 'a''b'": (
        "id bigint, a`b string",
        [[1, "O'Brien"], [2, 'a"b'], [3, "a\\b"]],
    ),
    "SELECT g, SUM(v) AS n FROM (SELECT g, v FROM t) q GROUP BY q.g": (
        "g int, n bigint",
        [[1, 30], [2, -7], [None, None]],
    ),
}
