# SPDX-License-Identifier: Apache-2.0
"""A trainer that asks the daemon's store what it asks a TCPStore, and waits for its end."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from phalanx.errors import Fenced
from phalanx.torch.store import DaemonStore

SHORT = timedelta(milliseconds=200)


class Named:
    """A store with keys of one's own."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def named(*arguments: Any) -> Any:
            if not arguments:
                return call()
            key, *rest = arguments
            own = self._prefix + key if isinstance(key, str) else [self._prefix + k for k in key]
            return call(own, *rest)

        return named

    def list_keys(self) -> list[str]:
        keys = self._store.list_keys()
        return [k[len(self._prefix) :] for k in keys if k.startswith(self._prefix)]


def outcome(f: Callable[[], Any]) -> Any:
    try:
        return f()
    except RuntimeError as e:
        return type(e).__mro__[-4:]  # the kind; words differ


def asked(s: Any) -> list[Any]:
    out = [
        s.set("a", "1"),
        s.get("a"),
        outcome(lambda: s.wait(["zz"], SHORT)),
        s.compare_set("n", "x", "y"),
        s.compare_set("n", "", "y"),
        s.compare_set("n", "q", "z"),
        s.compare_set("n", "y", "z"),
        s.check(["a", "n"]),
        s.check(["a", "b"]),
        s.wait(["a", "n"]),
        s.add("c", 5),
        s.add("c", -7),
        s.get("c"),
        s.delete_key("a"),
        s.delete_key("a"),
        s.append("p", "1"),
        s.append("p", "23"),
        s.multi_set(["k1", "k2"], ["v1", "v2"]),
        s.multi_get(["p", "k2"]),
        s.set("big", "x" * 300_000),
        len(s.get("big")),
        s.has_extended_api(),
    ]
    if hasattr(dist.Store, "queue_push"):
        out += [s.queue_push("q", "e1"), s.queue_push("q", "e2"), s.queue_len("q")]
        out += [s.queue_pop("q"), s.queue_pop("q", False), s.queue_len("q")]
    if hasattr(dist.Store, "list_keys"):
        out.append({"n", "c", "p"} <= set(s.list_keys()))
    if hasattr(dist.Store, "barrier"):
        out.append(outcome(lambda: s.barrier("bar", 2, SHORT)))
    return out


def main() -> None:
    faulthandler.dump_traceback_later(60, exit=True)
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    port = int(os.environ["MASTER_PORT"])
    ended = os.path.join(sys.argv[1], "ended")
    if os.path.exists(ended):
        print(f"rank {rank}: again", flush=True)
        return
    reference = asked(Named(dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False), "x/"))
    real = dist.TCPStore("127.0.0.1", port, n, False)
    over_socket, over_port = DaemonStore(), DaemonStore(port=port)
    for name, s in (("real", real), ("socket", over_socket), ("port", over_port.clone())):
        got = asked(Named(s, f"{name}{rank}/"))
        assert got == reference, f"{name}: {got} is not {reference}"

    # All of them see one store, also from another host's point of view: rank 0's daemon has it.
    over_socket.set(f"rank{rank}", str(rank))
    assert [real.get(f"rank{r}") for r in range(n)] == [str(r).encode() for r in range(n)]
    late = threading.Timer(0.2, lambda: over_port.set(f"late{rank}", "x"))
    late.start()
    assert over_socket.get(f"late{rank}") == b"x"

    dist.init_process_group("gloo", store=over_socket.clone(), rank=rank, world_size=n)
    t = torch.ones(3)
    dist.all_reduce(t)
    dist.all_reduce(t, group=dist.new_group(list(range(n))))
    assert t[0] == n * n, t
    try:
        DaemonStore(generation=(0, 0))
        raise AssertionError("an older generation has a store")
    except Fenced:
        pass
    dist.barrier()
    if rank == 1:
        time.sleep(0.5)
        open(ended, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        over_socket.wait(["never"], timedelta(seconds=60))
        raise AssertionError("the wait has ended well")
    except RuntimeError as e:
        print(f"rank {rank}: ended with its generation: {e}", flush=True)


if __name__ == "__main__":
    main()
