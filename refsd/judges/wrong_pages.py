"""Bugs of single models: (name, page of refsd/models, function, what stands in its place)."""

from refsd.judges import wrong_gemma2, wrong_krea2, wrong_lumina2, wrong_qwen_image, wrong_wan
from refsd.models import gemma2, krea2, lumina2, qwen_image, wan

_PAGES = (
    (gemma2, wrong_gemma2),
    (lumina2, wrong_lumina2),
    (qwen_image, wrong_qwen_image),
    (wan, wrong_wan),
    (krea2, wrong_krea2),
)
ROWS = tuple((name, page, function, instead) for page, wrong in _PAGES for name, function, instead in wrong.ROWS)
