"""Sphinx's settings. The source folder is assembled by assemble.py."""

project = "refsd"
copyright = "2026 The refsd authors"
extensions = ["myst_nb", "mathml", "listing"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"
highlight_language = "none"

html_theme = "pydata_sphinx_theme"
html_title = "refsd"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": False,  # arrow keys belong to the figures
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_toc_level": 2,
}
# Without a network: MathJax would be fetched from elsewhere.
html_math_renderer = "mathml"
nb_code_prompt_show = "Show the code that imports or plots"
nb_code_prompt_hide = "Hide it"
