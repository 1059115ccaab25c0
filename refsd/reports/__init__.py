"""What a conformance run found, for people (terminal, HTML, Markdown) and machines (JSON, JUnit): a form a file."""
