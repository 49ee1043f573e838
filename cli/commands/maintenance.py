"""Commands that maintain a store: compact, vacuum, verify and doctor."""

from __future__ import annotations

from dataclasses import asdict

from epochlog.cli.session import CommandSession
from epochlog.facts.holds import vacuum_facts
from epochlog.facts.store import Facts
from epochlog.facts.text import iso
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.commit.table_ddl import table_bytes
from epochlog.store.compaction.executor import compact_table
from epochlog.store.compaction.task_record import CompactionOutcome
from epochlog.store.maintenance.vacuum import GRACE
from epochlog.store.maintenance.vacuum import vacuum as vacuum_store
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import all_tables, find_table, get_version
from epochlog.store.retention.retention import apply_retention
from epochlog.store.scan.scan_plan import plan_scan
from epochlog.store.verify.doctor import diagnose
from epochlog.store.verify.verify import verify_store


def compact(session: CommandSession) -> None:
    """Compact one table, or all tables that are due."""
    name, full = session.options.table, session.options.full

    def select(view: ReadTxn) -> list[TableDef]:
        return sorted(all_tables(view), key=lambda table: table.name) if name is None else [find_table(view, name)]

    tables = session.handle.catalog.read(select)
    results = []
    for table in tables:
        label = f"{table.name}, {len(results) + 1:,} of {len(tables):,}" if len(tables) > 1 else ""
        session.out.waiting.step(0, of=label)
        results.append(_compact_one(session, table, label, full=full or name is not None))
    if session.out.as_json:
        session.out.document({"root": session.handle.files.place, "tables": results})
    else:
        from epochlog.cli.render import pages

        session.out.show(
            pages.compactions_page(results) if results else f"{session.handle.files.place} has no table yet"
        )


def vacuum(session: CommandSession) -> None:
    """Delete unreachable files, or list them with --dry-run."""
    options = session.options
    grace = GRACE if options.grace is None else options.grace
    report = vacuum_store(session.handle, dry_run=options.dry_run, grace=grace, progress=session.out.waiting.step)
    facts = vacuum_facts(session.handle.files.place, report)
    if session.out.as_json:
        session.out.document(facts)
    else:
        from epochlog.cli.render import pages

        session.out.show(*pages.vacuuming_page(facts))


def verify(session: CommandSession) -> int:
    """Check every record, file and checksum; return 1 for damage or an unreadable file."""
    report = verify_store(session.handle, session.out.waiting.step)
    facts = {"ok": report.ok, **asdict(report)}
    if session.out.as_json:
        session.out.document(facts)
    else:
        from epochlog.cli.render import pages

        session.out.show(*pages.verification_page(facts))
    return 0 if report.ok else 1


def doctor(session: CommandSession) -> int:
    """Compare the clocks; return 1 if something is to be done. With --trust-clock take this machine's as right."""
    if session.options.trust_clock:
        session.handle.clock_guard.trust()
    diagnosis = diagnose(session.handle)
    facts: Facts = {
        "ok": not diagnosis.symptoms,
        "at": iso(diagnosis.at_ms),
        "last_epoch": diagnosis.last_epoch,
        "leads_ms": diagnosis.lead_ms,
        "clocks": [
            {
                "host": clock.host,
                "boot": clock.boot,
                "noted_at": iso(clock.wall_ms),
                "ahead_ms": max(clock.ahead_ms.values(), default=0),
            }
            for clock in diagnosis.clocks
        ],
        "symptoms": [asdict(symptom) for symptom in diagnosis.symptoms],
    }
    if session.out.as_json:
        session.out.document(facts)
    else:
        from epochlog.cli.render import pages

        session.out.show(*pages.diagnosis_page(facts))
    return 0 if facts["ok"] else 1


def _compact_one(session: CommandSession, table: TableDef, label: str, *, full: bool) -> Facts:
    def progress(done: int, total: int) -> None:
        session.out.waiting.step(done, total, of=label)

    before = _segments_and_bytes(session, table)
    apply_retention(session.handle, table)
    outcome = compact_table(session.handle, table, full=full, progress=progress)
    after = _segments_and_bytes(session, table)
    return {
        "table": table.name,
        "compacted": outcome is CompactionOutcome.DONE,
        "outcome": outcome.value,
        "unfolded_segments_before": before[0],
        "unfolded_segments_after": after[0],
        "bytes_before": before[1],
        "bytes_after": after[1],
    }


def _segments_and_bytes(session: CommandSession, table: TableDef) -> tuple[int, int]:
    """Return the number of L0 segments that reads merge, and the bytes of all files."""

    def body(view: ReadTxn) -> tuple[int, int]:
        return len(plan_scan(view, table, None).segments), table_bytes(get_version(view, table.id, table.name))

    return session.handle.catalog.read(body)
