"""Tell how an engine computes from its answers to designed inputs. A page asks one kind of question; see PAGES."""
