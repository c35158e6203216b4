"""Numbers with their errors, each kept in a file under the hash of its settings.

A measurement takes a context (the store, the batch size, who watches), a model, and a small description of what is asked.
"""
