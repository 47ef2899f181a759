"""TLS files, tokens, and diagnosis of refused TLS handshakes."""
