"""Who pays for what a reducer has only so much of, and how much one payer may have.

Everything that a job uses is charged to the job, whose process groups, rails and generations pay together, and to the
token that admitted it, whose jobs pay together. Neither may have more than SHARE of what all others leave. So a job
that comes later always finds some, however much one job or token wants: of a limit of 16 the first may have 12, the
second 3, and so on.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import NamedTuple

from reduction.rails import job_of

#: The part of what others leave that one job, or one token, may have.
SHARE = Fraction(3, 4)


class Account(NamedTuple):
    """Who pays."""

    #: The name of the job, without that of its rail.
    job: str
    #: The job whose line in the token file has the token; empty if there is one token for all, or none.
    token: str = ""


#: Pays for what costs nothing.
NOBODY = Account("")


def account_of(job: str, token: str = "") -> Account:
    """Return who pays for a job, or for a rail of it."""
    return Account(job_of(job), token)


class Shares:
    """What the payers have taken of one limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: What all payers together have taken.
        self.taken = 0
        self._by_payer: Counter[tuple[str, str]] = Counter()

    def free(self, account: Account) -> int:
        """Return how much more an account may take."""
        rest = self.limit - self.taken
        owns = [self._by_payer[payer] for payer in _payers(account)]
        return max(0, min([rest, *(int((own + rest) * SHARE) - own for own in owns)]))

    def take(self, account: Account, amount: int) -> None:
        """Charge an account; a negative amount gives back."""
        self.taken += amount
        for payer in _payers(account):
            self._by_payer[payer] += amount
            if not self._by_payer[payer]:
                del self._by_payer[payer]


def _payers(account: Account) -> list[tuple[str, str]]:
    payers = [("job", account.job)]
    return [*payers, ("token", account.token)] if account.token else payers
