//! The git gate: a bottle's only way to its repositories.
//!
//! It speaks git's smart HTTP with the bottle and git's own transports with the upstream. The bottle never
//! holds a key, and a push is read, object by object, before a byte of it goes upstream:
//!
//! ```text
//! git in the bottle ── http ──► http ──► fetch: refresh the mirror ──► git upload-pack
//!                                   └──► push:  git receive-pack ─(quarantine, pre-receive)─┐
//!                       upstream ◄── git push ◄── approved ◄── refs ◄── read ◄──────────────┘
//! ```
//! ```text
//! daemon   the process: hardened, provisioned, asked for its health
//! place    where its files are, also when root starts it
//! body     a request's body on its way to git
//! head     the head of a push, as it goes by
//! told     what git answers to a push, and what is put in
//! http     the protocol's few addresses, bodies streamed both ways
//! repo     a repository, its mirror refreshed once for all who wait
//! mirror   a mirror's folders and files
//! git      every subprocess: a small environment, a deadline, limits, ended as a group
//! keys     keys in an agent's memory, tokens in a pipe; strict host keys
//! line     a connection to an upstream, kept for a while
//! push     one push: what is asked of it, in order
//! refs     what may move
//! upstream what an upstream lists
//! fresh    which objects are new to the upstream
//! read     every object that is new, streamed through the scanner
//! blob     a blob in every way it is looked at, and its lines
//! family   which tree holds which object
//! found    what was found, each thing once
//! packed   what is inside of gzip and zip
//! names    files that hold secrets by their name
//! words    what the agent is told
//! ```

mod blob;
mod body;
mod daemon;
mod findings;
mod git;
mod head;
mod http;
mod keys;
mod messages;
mod mirror;
mod names;
mod new_objects;
mod packed;
mod private_root;
mod push;
mod read;
mod refs;
mod repo;
mod report_status;
mod ssh_control_master;
mod tree_index;
mod upstream;

pub use daemon::{FORWARD_SECONDS, GateConfig, NAME, run};
