"""Which workers take part in an elastic job: they hear each other in the lobby, and agree on generations."""
