"""TLS files, tokens, and why a TLS handshake was refused."""
