"""The nouns of all of psrt, below everything: errors, arrays, spans, messages, figures."""
