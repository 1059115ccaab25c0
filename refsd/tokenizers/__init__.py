"""Text to token ids."""

from refsd.tokenizers.prompt import Chunk, chunks
from refsd.tokenizers.vocabulary import Tokenizer, find_tokenizer

__all__ = ["Chunk", "Tokenizer", "chunks", "find_tokenizer"]
