# SPDX-License-Identifier: Apache-2.0
"""Whether torchft ends with the same bits when one of 4 groups is killed: 3 active ones and a spare, the same samples each step.

That is its best case: FIXED_WITH_SPARES, and samples drawn by (step, participating rank), so that those of a step never change.

usage: torchft_bits.py none|active|spare
The last line is RESULT and a JSON object: the hashes of the parameters of the groups that came to the end, which agree with each other.
"""

import json
import random
import signal
import sys
import tempfile
import time

from torchft_kills import GROUPS, TUNED, Job

STEPS, AT = 80, 25


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything that was started is ended
    who = sys.argv[1]
    # Groups are ranked by name, and the last one is the spare.
    victim = {"none": None, "active": 1, "spare": GROUPS - 1}[who]
    mine = {"mode": "FIXED_WITH_SPARES", "min_replicas": GROUPS - 1, "steps": STEPS}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        job = Job(TUNED | {"hb_timeout_ms": 300, "join_ms": 400} | mine, folder)
        try:
            for group in range(GROUPS):
                job.start(group)
            if victim is not None:
                job.wait(lambda: len(job.commits(victim)) >= AT)
                time.sleep(0.03 * random.random())
                job.nodes[victim].send_signal(signal.SIGKILL)
                job.nodes.pop(victim).wait()
            end = time.monotonic() + 150
            for p in job.nodes.values():
                p.wait(max(1.0, end - time.monotonic()))
            hashes = []
            for group in job.nodes:
                hashes += [line.split()[2] for line in open(job.log(group)) if line.startswith("hash ")]
        finally:
            job.end()
    if not hashes:
        raise SystemExit("no group came to its end")
    print("RESULT", json.dumps({"killed": who, "steps": STEPS, "hashes": hashes}))


if __name__ == "__main__":
    main()
