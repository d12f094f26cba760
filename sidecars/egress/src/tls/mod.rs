//! TLS towards the bottle: the hello, the bottle's own authority, the certificates it signs.
//!
//! ```text
//! hello      first bytes → TLS with SNI and ALPN | HTTP | neither
//! authority  the bottle's CA: made in this process, its key never leaves it
//! leaf       a certificate for each name, signed on demand, kept in a bounded cache
//! ```

pub(crate) mod authority;
pub(crate) mod hello;
pub(crate) mod leaf;
