//! The door: a TLS-intercepting allowlist that injects credentials.
