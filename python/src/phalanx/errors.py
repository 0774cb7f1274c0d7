# SPDX-License-Identifier: Apache-2.0
"""How a training run ends, or goes on otherwise than by the next step."""

from __future__ import annotations

EXIT_PREEMPTED = 75
"""The exit status for Preempted and Orphaned: start me again."""


class Error(Exception):
    """The class of all errors of this package."""


class Done(Error):
    """The job's last step is applied: call finish."""


class Preempted(Error):
    """The member leaves before the last step; its state is staged if the daemon asked for it. Exit
    with EXIT_PREEMPTED.
    """


class Fenced(Error):
    """The member is not in the world: nothing it computes counts any more. Exit."""


class Orphaned(Error):
    """No daemon has lived for a minute. Exit with EXIT_PREEMPTED."""


class Torn(Error):
    """The optimizer failed and the state is between two steps. The process must exit."""


class Revoked(Error):
    """The generation has ended in the middle of a step: call begin again. No failure."""


class Repeat(Revoked):
    """Raised by finish: the job was rewound or extended. Train on with begin."""


class Refused(Error):
    """The daemon refuses the trainer. `code` is one of spec_differs, protocol, no_space, fenced,
    busy and bad_request.
    """

    def __init__(self, code: str, error: str, hint: str = "") -> None:
        super().__init__(f"{error}; {hint}" if hint else error)
        self.code, self.error, self.hint = code, error, hint


class Illegal(Error):
    """A call out of its order, or with what was not registered: a mistake of the caller."""


class CollectiveFailed(Error):
    """A collective could not be carried out although its generation is alive. Vote False, or call
    begin.
    """
