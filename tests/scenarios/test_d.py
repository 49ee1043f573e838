"""Scenarios D1-D10: the staged exchange as it is served, by the names they have in the design."""

from __future__ import annotations

from pathlib import Path

import pytest

import epochlog as el
from stagedworld import JOIN, batch, client, fill, run_of, served, taken

pytestmark = pytest.mark.local_only


def test_d1_a_consumer_that_starts_again_elsewhere_gets_every_build_before_the_probe(tmp_path: Path) -> None:
    """The defect itself. Left-deep join, builds at stage -1 done, counter 0; the top join's machine dies having
    consumed nothing; on the new machine the probe's replay arrives first: nothing of it is delivered until every build
    batch and end mark is in.
    """
    stages = {-1: ["build_a", "build_b"], 0: ["probe"]}
    with served(tmp_path) as (_, server), client(server) as producer, client(server) as ex:
        ex.declare("join-top", stages)
        fill(producer, "build_a", -1, range(3))
        fill(producer, "build_b", -1, range(2))
        assert ex.stage == 0
        first = ex.consume("join-top", incarnation=1)
        first.close()  # its machine dies; it has consumed nothing
        fill(producer, "probe", 0, range(4))  # the probe is quick
        again = ex.consume("join-top", incarnation=2)
        order = taken(again)
        builds, probes = order[:5], order[5:]
        assert sorted(builds) == run_of("build_a", range(3)) + run_of("build_b", range(2))
        assert probes == run_of("probe", range(4)) and again.done


def test_d1_with_the_replay_of_the_build_slower_than_that_of_the_probe(tmp_path: Path) -> None:
    """The same where the counter of another query's run says nothing: the builds come after the probe, batch by batch,
    and the consumer gets each at once, but nothing of the probe before the last end mark.
    """
    with served(tmp_path) as (_, server), client(server) as ex:
        ex.declare("join-top", JOIN)
        fill(ex, "probe", 0, range(4))
        mail = ex.consume("join-top", incarnation=1)
        for seq in range(3):
            ex.push("build", -1, seq, batch("build", seq))
            assert taken(mail, 1) == [("build", seq)]
        assert mail.poll(0.05) is None and ex.stage == -1
        ex.end("build", 2)
        assert taken(mail) == run_of("probe", range(4)) and ex.stage == 1


def test_d5_the_old_consumer_acknowledges_while_the_new_one_is_behind(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), client(server) as ex, client(server) as elsewhere:
        ex.declare("join", JOIN)
        fill(ex, "build", -1, range(12))
        old = ex.consume("join", incarnation=1)
        taken(old, 10)
        new = elsewhere.consume("join", incarnation=2)
        taken(new, 3)
        with pytest.raises(el.Fenced, match="replaced by incarnation 2"):
            old.ack()
        with pytest.raises(el.Fenced):
            taken(old)
        new.ack()
        assert taken(new, 7) == run_of("build", range(3, 10))  # 3-10 are still served
        with pytest.raises(el.Fenced):
            elsewhere.consume("join", incarnation=1)
    assert store.root
