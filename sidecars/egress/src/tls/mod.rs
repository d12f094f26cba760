//! TLS to the bottle: `ClientHello` parsing, the bottle's certificate authority, leaf certificates.
//!
//! ```text
//! hello      first bytes → TLS with SNI and ALPN | HTTP | neither
//! authority  the bottle's CA: generated in this process; its key never leaves the process
//! leaf       a certificate for each name, signed on demand, in a bounded cache
//! ```

pub(crate) mod authority;
pub(crate) mod hello;
pub(crate) mod leaf;
