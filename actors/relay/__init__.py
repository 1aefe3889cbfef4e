"""The relay: brings each version of the weights to its host once, for all engines there."""
