"""What the object API guarantees, stated once and checked on every engine.

The same cases run against a real kube-apiserver and against the embedded server: where they say
the same, controllers and clients cannot tell them apart. Expectations were taken from the real
server. REST-level cases use plain HTTP; `test_store*` use the Store protocol.
"""
