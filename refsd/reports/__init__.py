"""Write a conformance report for people (terminal, HTML, Markdown) and machines (JSON, JUnit), one file a form."""
