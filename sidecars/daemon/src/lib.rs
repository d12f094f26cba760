//! What every daemon of the bundle is: a process of its own, started by the bundle and spoken to by it alone, that
//! listens at a part of the bottle's proxy.
//!
//! ```text
//! started ─► hardened ─► hello ─► provisioned ─► listening ─► (Stop | parent gone) ─► exit
//! ```
//! Its channel is the socket that it inherits as standard input; the bundle forwards the keeper's requests to it
//! word by word. When the channel ends the process ends, and the kernel sees to it should it hang.

mod listener;
mod lockout;
mod memory;
mod parent;
mod role;

pub use listener::{BindError, Listener, ListenerConfig, Socket};
pub use lockout::Lockout;
pub use parent::{Serve, serve};
pub use role::{Confined, Confinement, run};
