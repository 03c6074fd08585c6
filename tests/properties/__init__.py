"""Laws of the deciding core on random clusters, queues, units and sequences of events."""
