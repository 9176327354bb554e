"""Several runs at one master: which one a peer joins, what they share, and what one does alone."""

import logging
from dataclasses import replace

import pytest

from gradwire_protocol.messages.admission import RefusalCode, Refuse, Welcome
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.updates import Leave
from gradwire_server.config import MasterConfig
from support.checkpointing import ScriptedWriter
from support.peer import LAYOUT, join_request, resume_of, said_by_peer
from support.simulated_daemon import Daemon, an_update
from support.training import worker_id_of
from support.wording import naming

OTHER = Layout((Tensor("bias", (3,)),))
RECOVERY_SECONDS = 5.0


# Which run.


def test_runs_of_other_names_and_models_go_on_beside_each_other() -> None:
    daemon = Daemon()
    alpha, beta = daemon.enter("a", "alpha"), daemon.enter("b", "beta", OTHER)
    second = daemon.enter("c", "alpha")

    daemon.train(alpha, beta, second, alpha)

    assert daemon.names == ["alpha", "beta"]
    assert [peer.all(Welcome)[0].rank for peer in (alpha, beta, second)] == [0, 0, 1]
    assert daemon.run_of(alpha).relay.versions == {0: 2, 1: 1}
    assert daemon.run_of(beta).relay.versions == {0: 1}
    daemon.until(lambda: second.updates == [(0, 1), (0, 2)])
    assert beta.updates == []
    assert [daemon.sample("updates_accepted_total", run) for run in daemon.names] == [3, 1]
    assert daemon.runs.metrics.registry.get_sample_value("gradwire_runs") == 2


def test_who_names_no_run_is_told_which_there_are() -> None:
    daemon = Daemon()
    daemon.enter("a", "alpha")
    daemon.enter("b", "beta")

    refused = daemon.ask("c").wait_for(Refuse)

    assert refused == Refuse(RefusalCode.OTHER_RUN, naming("'alpha', 'beta'", "GRADWIRE_RUN"))


def test_a_master_of_one_run_serves_no_other() -> None:
    daemon = Daemon(MasterConfig(run="alpha", recovery_seconds=0))

    refused = daemon.ask("b", "beta").wait_for(Refuse)

    assert refused == Refuse(RefusalCode.OTHER_RUN, naming("'alpha'", "'beta'"))
    assert daemon.enter("a").all(Welcome)[0].run == "alpha"


def test_after_a_restart_each_worker_comes_back_to_its_own_run() -> None:
    """Also one that names no run waits, until it is known which there are."""
    daemon = Daemon(MasterConfig(recovery_seconds=RECOVERY_SECONDS))
    late = daemon.ask("late")
    back = {}
    for name, layout in (("alpha", LAYOUT), ("beta", OTHER)):
        back[name] = daemon.dial(name)
        join = join_request(run=name, name=name, worker_id=worker_id_of(name), layout=layout)
        back[name].say(replace(join, resume=resume_of(0, 3, workers=1)))

    for name, peer in back.items():
        assert peer.wait_for(Welcome).run == name
    assert late.wait_for(Welcome).run == "alpha"


# Limits.


def test_a_run_that_is_over_makes_room_for_the_next() -> None:
    daemon = Daemon(MasterConfig(runs_max=2, recovery_seconds=0))
    daemon.enter("a", "alpha")
    beta = daemon.enter("b", "beta")

    refused = daemon.ask("c", "gamma").wait_for(Refuse)
    daemon.finish(beta, 0)
    gamma = daemon.enter("d", "gamma", OTHER)

    assert refused == Refuse(
        RefusalCode.RUN_FULL, naming("'alpha', 'beta'", "--runs-max", "end-run")
    )
    assert gamma.all(Welcome)[0].founder
    assert daemon.names == ["alpha", "gamma"]
    assert daemon.sample("joins_total", "gamma") == 1


def test_that_a_run_has_finished_is_known_when_another_has_its_place() -> None:
    daemon = Daemon(MasterConfig(runs_max=1, recovery_seconds=0))
    alpha = daemon.enter("a", "alpha")
    daemon.train(alpha)
    daemon.finish(alpha, 1)
    beta = daemon.enter("b", "beta", OTHER)
    daemon.finish(beta, 0)

    late = daemon.dial("c")
    resume = resume_of(1, 0, {0: 1})
    late.say(join_request(run="alpha", name="c", worker_id=worker_id_of("c"), resume=resume))

    assert late.wait_for(Refuse) == Refuse(RefusalCode.RUN_FINISHED, naming("'alpha'"))


def test_a_run_without_workers_makes_room_and_is_written_before() -> None:
    writers = [ScriptedWriter(), ScriptedWriter()]
    daemon = Daemon(MasterConfig(runs_max=2, recovery_seconds=0), writers=writers)
    alpha = daemon.enter("a", "alpha")
    daemon.enter("b", "beta")
    daemon.train(alpha)
    alpha.say(Leave(1, "done"))
    alpha.wait_for_end()
    abandoned = daemon.run_of(alpha)

    daemon.enter("c", "gamma")

    [copy] = writers[0].copies
    assert (copy.of, copy.is_over, copy.versions) == (abandoned, True, {0: 1})
    assert daemon.names == ["beta", "gamma"]


def test_a_checkpoint_that_is_written_after_the_end_is_among_the_events_of_the_run() -> None:
    writer = ScriptedWriter()
    daemon = Daemon(MasterConfig(recovery_seconds=0), writers=[writer])
    alpha = daemon.enter("a", "alpha")
    daemon.train(alpha)
    daemon.order("end-run")
    [over] = daemon.runs.over
    writer.succeed()
    daemon.runs.first.handle_progress(daemon.network.now)

    assert over.entries[-1].kind == "checkpoint"
    assert [entry.kind for entry in over.entries] == ["joined", "began", "expelled", "checkpoint"]


def test_limits_hold_for_all_runs_together() -> None:
    daemon = Daemon(MasterConfig(workers_max=2, parameters_max=8, recovery_seconds=0))
    alpha = daemon.enter("a", "alpha")

    too_large = daemon.ask("b", "beta").wait_for(Refuse)
    beta = daemon.enter("c", "gamma", Layout((Tensor("bias", (2,)),)))
    too_many = daemon.ask("d", "alpha").wait_for(Refuse)

    assert too_large == Refuse(RefusalCode.TOO_LARGE, naming(6, 8, 6, "--parameters-max"))
    assert too_many == Refuse(RefusalCode.RUN_FULL, naming(2, "--workers-max"))
    limit = daemon.config.update_log_bytes_max
    for peer in (alpha, beta):
        log = daemon.run_of(peer).relay.log
        assert (log.bytes_max, log.runs()) == (limit, 2)


# One alone.


def test_an_error_in_the_logic_of_one_run_ends_its_service_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    daemon = Daemon(MasterConfig(recovery_seconds=RECOVERY_SECONDS))
    alpha, beta = daemon.enter("a", "alpha"), daemon.enter("b", "beta")
    daemon.train(alpha, beta)
    daemon.background.made[0].broken = True

    with caplog.at_level(logging.ERROR, "gradwire.master"):
        alpha.say_update(0, 2, an_update(LAYOUT.elements))
        end = alpha.wait_for_end()

    assert end == said_by_peer(EndCode.STOPPED, naming("internal error", "other runs"))
    [(run, error)] = daemon.failed
    assert (run, type(error)) == ("alpha", LookupError)
    assert daemon.runs.metrics.registry.get_sample_value("gradwire_runs_failed_total") == 1
    daemon.train(beta)
    assert daemon.names == ["beta"]
    back = daemon.dial("a again")
    join = join_request(run="alpha", name="a", worker_id=worker_id_of("a"))
    back.say(replace(join, resume=resume_of(0, 2, workers=1)))
    assert back.wait_for(Welcome).rank == 0, "to a new master, as after a restart"


# Orders and the end.


def test_a_drained_master_stops_when_the_last_worker_of_all_runs_has_left() -> None:
    daemon = Daemon()
    alpha, beta = daemon.enter("a", "alpha"), daemon.enter("b", "beta")

    daemon.order("drain")
    refused = daemon.ask("c", "gamma").wait_for(Refuse)
    daemon.finish(alpha, 0)
    daemon.network.run_for(30.0)  # the operators are gone by then
    before = list(daemon.drained)
    daemon.finish(beta, 0)
    daemon.network.run_for(30.0)

    assert refused.code == RefusalCode.DRAINING
    assert before == []
    [reason] = set(daemon.drained)
    assert reason == naming("operator", "drained")
