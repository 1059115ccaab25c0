"""Convert text to token ids: CLIP, T5, Qwen3 and Mistral."""

from refsd.tokenizers.prompt import Chunk, chunks
from refsd.tokenizers.vocabulary import Tokenizer, find_tokenizer

__all__ = ["Chunk", "Tokenizer", "chunks", "find_tokenizer"]
