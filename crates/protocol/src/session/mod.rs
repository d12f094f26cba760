//! The session protocol between the keeper process and its two peers, the guest and the bundle.
//!
//! One byte stream of any transport carries [`frame`]s: a hello from each side, then the frames of any number of
//! independent streams. A request ([`guest::GuestRequest`] or [`bundle::BundleRequest`]) opens a stream. Both sides
//! then send messages and data under flow control, and each side ends its direction separately. Clients of the keeper's
//! socket use the same frames, so the keeper forwards their streams without parsing them.
//!
//! All input from a guest is untrusted. This module therefore bounds lengths, uses closed enums as types, and
//! rejects unknown fields and kinds.

pub mod bundle;
pub mod files;
pub mod frame;
pub mod git_gate;
pub mod guest;
pub mod lease;
mod packed;
pub mod process;
mod program;
pub mod replaced;
pub mod service;
pub mod tools;

use serde::{Deserialize, Serialize};

/// The protocol version. Each side sends its version in the hello, and both must be equal, because guest, bundle and
/// host run the same program. After an update, a running bottle may still use an older version. A keeper that takes
/// over such a bottle reports the difference.
pub const PROTOCOL: u32 = 2;

/// The first message of each side, in a [`frame::Kind::Hello`] frame on stream 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The sender's protocol version ([`PROTOCOL`]).
    pub protocol: u32,
    /// The sender's role.
    pub role: Role,
    /// The version of the sender's program, used only in messages.
    pub program: String,
}

impl Hello {
    /// Creates the hello of this program for `role`.
    #[must_use]
    pub fn of(role: Role) -> Self {
        Self { protocol: PROTOCOL, role, program: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

/// The role of one end of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The keeper process, which owns a bottle.
    Keeper,
    /// A command that connects to the keeper process.
    Client,
    /// The guest, pid 1 of the bottle.
    Guest,
    /// The bundle, the parent process of the sidecars.
    Bundle,
    /// The egress daemon, a child of the bundle.
    Egress,
    /// The git gate, a child of the bundle.
    Gate,
    /// The supervise (MCP) server, a child of the bundle.
    Supervise,
}
