"""How workers of an elastic job find each other in the lobby and agree on generations."""
