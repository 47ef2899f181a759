"""Accounting of a reducer's limited resources, and the limit of one payer.

Everything that a job uses is charged to the job, together with its process groups, rails and generations, and to the
token that admitted it, together with the token's other jobs. Neither may have more than SHARE of what all others
leave. So some always remains for a later job, however much one job or token wants. Of a limit of 16, the first may
have 12, the second 3, and so on.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import NamedTuple

from reduction.rails import job_of

#: The fraction of the amount left by others that one job or one token may have.
SHARE = Fraction(3, 4)


class Account(NamedTuple):
    """The payer of a charge."""

    #: The name of the job, without a rail's suffix.
    job: str
    #: The job whose line in the token file has the token; empty if there is one token for all jobs, or none.
    token: str = ""


#: Payer for free resources.
NOBODY = Account("")


def account_of(job: str, token: str = "") -> Account:
    """Return the account of a job or of one of its rails."""
    return Account(job_of(job), token)


class Shares:
    """The payers' shares of one limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: Total taken by all payers.
        self.taken = 0
        self._by_payer: Counter[tuple[str, str]] = Counter()

    def free(self, account: Account) -> int:
        """Return how much more an account may take."""
        rest = self.limit - self.taken
        owns = [self._by_payer[payer] for payer in _payers(account)]
        return max(0, min([rest, *(int((own + rest) * SHARE) - own for own in owns)]))

    def take(self, account: Account, amount: int) -> None:
        """Charge an account; a negative amount is a refund."""
        self.taken += amount
        for payer in _payers(account):
            self._by_payer[payer] += amount
            if not self._by_payer[payer]:
                del self._by_payer[payer]


def _payers(account: Account) -> list[tuple[str, str]]:
    payers = [("job", account.job)]
    return [*payers, ("token", account.token)] if account.token else payers
