"""Text in, blocks of tokens out: corpus → tokenizer → shards (`scdd prepare`), then pack → order → loader.

Nothing here imports torch but `loader` (and `TextTokenizer.vocab`, when asked): preparing text needs none.
"""
