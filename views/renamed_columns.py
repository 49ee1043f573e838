"""Text of a view's query in the present names of its columns, after columns of its tables were renamed (pure).

A view reads its columns by field id, so it goes on after a rename. Its text has the names of the time when it was
given. The text in present names has the rows of the given one: it has the same normal form but for the names, or reads
subqueries that give the columns of each table their former names.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from epochlog.errors import EpochlogError
from epochlog.store.types.schema import TableSchema

from . import syntax
from .clauses import name_of_output
from .derivation import tables_of
from .normal_form import NormalForm, normal_form
from .parsing import parse

Tables = Mapping[str, TableSchema]
_Names = Mapping[str, Mapping[str, str]]
"""Present names of columns by table and former name, both in lower case."""


def text_now(sql: str, then: Tables, now: Tables) -> str:
    """Return a view's query as it can be given now: the text itself, or one in the present names of its columns.

    then: the columns that the view reads, in the names of the time when its text was given.
    """
    names = {name.lower(): _present_names(table, now[name]) for name, table in then.items()}
    wanted = _renamed_form(normal_form(parse(sql), then), names)
    if _form(sql, now) == wanted:
        return sql
    for quoted in (False, True):
        text = _with_names(parse(sql), names, quoted=quoted).sql(syntax.DIALECT, pretty=True)
        if _form(text, now) == wanted:
            return text
    text = _with_subqueries(parse(sql), then, names).sql(syntax.DIALECT, pretty=True)
    form = _form(text, now)
    return text if form is not None and form.outputs == wanted.outputs else sql


def is_text_of(sql: str, given: str, then: Tables, now: Tables) -> bool:
    """Return True if a text, given now, has the normal form of a view's query but for the names of renamed columns.

    given: the text of the view, over the columns `then`. Raises InvalidInput for a text that cannot be given now.
    """
    if {table.lower() for table in tables_of(sql)} != {table.lower() for table in now}:
        return False
    names = {name.lower(): _present_names(table, now[name]) for name, table in then.items()}
    form = _form(given, then)
    return form is not None and normal_form(parse(sql), now) == _renamed_form(form, names)


def _present_names(then: TableSchema, now: TableSchema) -> dict[str, str]:
    present = dict(zip(now.ids, now.schema.names, strict=True))
    pairs = zip(then.schema.names, then.ids, strict=True)
    return {name.lower(): present[id_] for name, id_ in pairs if id_ in present}


def _renamed_form(form: NormalForm, names: _Names) -> NormalForm:
    def renamed(column: exp.Column) -> exp.Expr | None:
        table = form.occurrences.get(column.table)
        return syntax.column(column.table, names[table.lower()][column.name.lower()]) if table else None

    query = syntax.replaced(form.query, renamed)
    assert isinstance(query, exp.Query)
    return NormalForm(query, form.outputs, form.occurrences)


def _form(sql: str, tables: Tables) -> NormalForm | None:
    try:
        return normal_form(parse(sql), tables)
    except EpochlogError:
        return None


def _with_names(query: exp.Query, names: _Names, *, quoted: bool) -> exp.Query:
    """Return the query with columns renamed where a table is a source of their block. Its outputs keep their names.

    The caller compares the result with what is wanted: a name may mean an output, or a column of another table.
    """
    blocks = list(query.find_all(exp.Select))  # each after those around it
    columns_of = {id(block): [node for node in syntax.walk(block) if isinstance(node, exp.Column)] for block in blocks}
    visible: dict[int, Mapping[str, Mapping[str, str]]] = {id(None): {}}
    for block in blocks:
        sources = [source for source in syntax.sources_of(block) if isinstance(source, exp.Table)]
        own = {s.alias_or_name.lower(): names[s.name.lower()] for s in sources if s.name.lower() in names}
        by_source = visible[id(block)] = {**visible[id(block.find_ancestor(exp.Select))], **own}
        anywhere = {former: name for columns in by_source.values() for former, name in columns.items()}
        outputs = [(output, name_of_output(output)) for output in block.expressions]
        named = {name.lower() for _, name in outputs}
        for column in columns_of[id(block)]:
            columns = by_source.get(column.table.lower(), {}) if column.table else anywhere
            means_output = not column.table and column.name.lower() in named and _is_after_outputs(column, block)
            if not means_output and columns.get(column.name.lower(), column.name) != column.name:
                column.set("this", exp.to_identifier(columns[column.name.lower()], quoted=quoted))
        for join in syntax.joins_of(block):
            using = join.args.get("using") or []
            renamed = [anywhere.get(name.name.lower(), name.name) for name in using]
            join.set("using", [exp.to_identifier(name, quoted=quoted) for name in renamed])
        for output, name in outputs:
            if name and name_of_output(output) != name:
                output.replace(exp.alias_(output.copy(), name, quoted=quoted))
    return query


def _is_after_outputs(column: exp.Column, block: exp.Select) -> bool:
    """Return True for a column in HAVING or ORDER BY outside of an aggregate: there outputs have names too."""
    node: exp.Expr | None = column
    while node is not None and node.parent is not block:
        if isinstance(node, exp.AggFunc | exp.Window):
            return False
        node = node.parent
    return isinstance(node, exp.Having | exp.Order)


def _with_subqueries(query: exp.Query, then: Tables, names: _Names) -> exp.Query:
    """Return the query with a subquery in place of each renamed table, which gives its columns their former names."""
    all_columns = query.find(exp.Star) is not None
    spelled = {
        name.lower(): table
        for name, table in then.items()
        if all_columns or list(names[name.lower()].values()) != table.schema.names
    }

    def visit(current: exp.Expr, ctes: frozenset[str]) -> None:
        clause = current.args.get("with_")
        for cte in clause.expressions if isinstance(clause, exp.With) else ():
            visit(cte.this, ctes)
            ctes |= {cte.alias.lower()}
        for child in list(current.iter_expressions()):
            if child is clause:
                continue
            visit(child, ctes)
            name = child.name.lower() if isinstance(child, exp.Table) else ""
            if name in spelled and name not in ctes:
                child.replace(_subquery(child, spelled[name], names[name]))

    visit(query, frozenset())
    return query


def _subquery(source: exp.Expr, then: TableSchema, names: Mapping[str, str]) -> exp.Subquery:
    outputs = [
        exp.alias_(exp.column(exp.to_identifier(names[name.lower()], quoted=True)), name, quoted=True)
        for name in then.schema.names
    ]
    table = exp.Table(this=exp.to_identifier(source.name, quoted=True))
    alias = source.args.get("alias") or exp.TableAlias(this=exp.to_identifier(source.name, quoted=True))
    return exp.Subquery(this=exp.Select(expressions=outputs, from_=exp.From(this=table)), alias=alias.copy())
