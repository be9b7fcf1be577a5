"""A real SLURM on this machine, for tests and for trying: two nodes, each with four cores and two GPUs that are none.

    python tests/slurm/cluster.py FOLDER

runs one until Ctrl-C or SIGTERM; `SLURM_CONF=FOLDER/slurm.conf` makes sbatch and the others speak with it. It wants
root, and of Debian's packages slurm-wlm and munge. Keys, sockets and all that it writes are in the folder.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
CONF = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
AuthType=auth/munge
AuthInfo=socket={at}/munge.socket,cred_expire=5
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/%n
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/%n.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs=4 RealMemory=8000 Gres=gpu:2
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={two} CPUs=4 RealMemory=8000 Gres=gpu:2
PartitionName=usual Nodes=one,two Default=YES PriorityTier=1
PartitionName=urgent Nodes=one,two PriorityTier=2
"""


def missing() -> str:
    """Why there can be none here, if so."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    lacking = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if lacking:
        return f"no {', '.join(lacking)} here; on Debian: apt install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "SLURM's daemons want root"


@contextmanager
def running(at: Path) -> Iterator[Path]:
    """Inside, a cluster is there; gives its slurm.conf."""
    (at / "state").mkdir(parents=True)
    (at / "munge.key").write_bytes(secrets.token_bytes(1024))
    (at / "munge.key").chmod(0o400)
    host, conf = socket.gethostname().partition(".")[0], at / "slurm.conf"
    port, one, two = _free_ports(3)
    conf.write_text(CONF.format(at=at, host=host, port=port, one=one, two=two))
    (at / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
    environment = {**os.environ, "SLURM_CONF": str(conf), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    own = [f"--{name}-file={at}/munge.{end}" for name, end in (("key", "key"), ("pid", "pid"), ("log", "log"))]
    daemons = [
        ["munged", "--force", f"--socket={at}/munge.socket", f"--seed-file={at}/munge.seed", *own],
        *(["slurmctld"], ["slurmd", "-N", "one"], ["slurmd", "-N", "two"]),
    ]
    try:
        for daemon in daemons:
            subprocess.run(daemon, env=environment, check=True, capture_output=True)
        _wait_for_nodes(environment)
        yield conf
    finally:
        subprocess.run(["scancel", "--user=root"], env=environment, check=False, capture_output=True)
        for name in ("one", "two", "munge"):
            _end(at / f"{name}.pid", signal.SIGTERM)
        _end(at / "slurmctld.pid", signal.SIGKILL)  # asked, it thinks for seconds


def _end(pid: Path, how: signal.Signals) -> None:
    with suppress(FileNotFoundError, ProcessLookupError):
        process = int(pid.read_text())
        while True:
            os.kill(process, how)
            time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _wait_for_nodes(environment: dict[str, str]) -> None:
    until, said = time.monotonic() + 60, ""
    while said.split() != ["idle", "idle"]:
        assert time.monotonic() < until, said
        time.sleep(0.1)
        asked = ["sinfo", "--Node", "--noheader", "--partition=usual", "--format=%t"]
        said = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    with running(Path(sys.argv[1]).absolute()) as conf:
        print(f"export SLURM_CONF={conf}", flush=True)
        ending = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, ending)
        signal.sigwait(ending)
