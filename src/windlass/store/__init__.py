"""The object API: one client protocol, an embedded and a Kubernetes back end, the reflector.

Nothing above this room knows which engine answers.
"""
