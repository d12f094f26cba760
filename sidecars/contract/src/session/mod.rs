//! The session protocol between the keeper and its two peers, the guest and the bundle.
//!
//! One byte stream of any transport carries [`frame`]s: a hello from each side, then any number of
//! independent streams. A request ([`guest::GuestRequest`] or [`bundle::BundleRequest`]) opens a stream. The
//! stream carries messages and data in both directions under flow control, and each side ends it separately.
//! Clients of the keeper's socket use the same frames, so the keeper forwards their streams without parsing
//! them.
//!
//! Everything from a guest is untrusted: lengths are bounded here, types are closed enums, unknown fields and
//! kinds are errors.

pub mod bundle;
pub mod frame;
pub mod gate;
pub mod guest;

use serde::{Deserialize, Serialize};

/// The protocol version. Both sides send theirs in the hello, and they must be equal, because guest, bundle
/// and host are one program. A bottle that an updated keeper adopts may have an older one; the keeper then
/// reports that.
pub const PROTOCOL: u32 = 2;

/// The first message of each side, in a [`frame::Kind::Hello`] frame on stream 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The sender's [`PROTOCOL`].
    pub protocol: u32,
    /// The sender's role.
    pub role: Role,
    /// The sender's program version, for messages only.
    pub program: String,
}

impl Hello {
    /// Makes this program's hello for `role`.
    #[must_use]
    pub fn of(role: Role) -> Self {
        Self { protocol: PROTOCOL, role, program: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

/// The role of a channel's endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The keeper process, which owns a bottle.
    Keeper,
    /// A command that connects to the keeper.
    Client,
    /// The guest, pid 1 of the bottle.
    Guest,
    /// The bundle, the parent process of the sidecars.
    Bundle,
    /// The egress daemon, a child of the bundle.
    Egress,
    /// The git gate, a child of the bundle.
    Gate,
    /// The MCP server, a child of the bundle.
    Supervise,
}
