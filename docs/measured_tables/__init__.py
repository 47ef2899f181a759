"""The tables of docs/measured.md, by the name that the page calls them; benchmarks/README.md defines the quantities."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from measured_tables import links, one_host, others, plans

_FUNCTIONS: tuple[Callable[[], Iterator[str]], ...] = (
    links.links,
    links.queues,
    links.training,
    links.small_sums,
    links.few_reducers,
    links.unequal,
    links.sizes,
    links.models,
    links.long_paths,
    links.tails,
    links.simulation,
    plans.plans,
    one_host.machine,
    one_host.loopback,
    one_host.floor,
    one_host.one_machine,
    one_host.one_machine_training,
    one_host.process_group,
    one_host.watching,
    others.chaos,
    others.elastic,
    others.joining,
    others.formats,
    others.time_to_loss,
    others.local_sgd,
    others.convergence,
    others.accuracy,
    others.hierarchy,
    others.hierarchy_training,
    others.ladder,
)
TABLES = {function.__name__.replace("_", "-"): function for function in _FUNCTIONS}
