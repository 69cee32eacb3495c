"""Sockets and the event loop: TLS handshakes, clients that stop reading, background tasks, rate-limited logging."""
