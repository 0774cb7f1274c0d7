# SPDX-License-Identifier: Apache-2.0
"""Stands for an agent of torchrun in the world that daemons agree on: see phalanx.torch.rendezvous.

A trainer without the step protocol: started for each generation with its rank, stopped before the
next one. It writes down what the agent needs and sleeps. USR1 ends it with 0: the agent is done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn


def main(path: str) -> NoReturn:
    """Writes the round to path and waits for a signal."""
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
    place = {
        "pid": os.getpid(),
        "start": os.environ["PHALANX_START"],
        "generation": os.environ["PHALANX_GENERATION"],
        "rank": int(os.environ["RANK"]),
        "world": int(os.environ["WORLD_SIZE"]),
        "port": int(os.environ["MASTER_PORT"]),
    }
    partial = Path(path + ".new")
    partial.write_text(json.dumps(place))
    partial.rename(path)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
