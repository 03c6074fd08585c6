"""Windlass on a cluster: what is installed, how it gets there, and what may stand in its way.

`render` makes the objects from options alone; `applying` puts them into a cluster and takes them
out; `waiting` tells when they work; `checkup` looks for trouble. `windlass install` and its kin
call them. Nothing here runs in the cluster.
"""
