"""The real frameworks, through a real `windlass up`: a layer of its own, because it installs them.

Packages come from the machine's index into a cache that later runs find again; what cannot be had
is said and skipped, except under CI=true.
"""
