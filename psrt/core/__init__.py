"""The nouns that all of psrt uses: errors, arrays, spans, messages, figures."""
