"""The command line: one module per verb, loaded only when it is called.

`cli.main` is the entry point. Commands hold no logic of their own beyond talking with people:
they build objects, call the SDK or the store's client, and print through `cli.output`.
"""
