//! The git gate: the only path from a bottle to its repositories.
//!
//! It serves git's smart HTTP to the bottle and uses git's own transports to the upstream. The bottle
//! never has a key. The gate scans every object of a push before it sends a byte upstream:
//!
//! ```text
//! git in the bottle ── http ──► http ──► fetch: refresh the mirror ──► git upload-pack
//!                                   └──► push:  git receive-pack ─(quarantine, pre-receive)─┐
//!                       upstream ◄── git push ◄── approved ◄── refs ◄── read ◄──────────────┘
//! ```
//! ```text
//! daemon              the process: confinement, provisioning, health
//! private_root        the gate's private mount namespace when root starts it
//! http                smart HTTP endpoints, bodies streamed both ways
//! body                request bodies on their way to git
//! head                limits on the command list of a push
//! report_status       git's response to a push, and lines the gate inserts
//! repo                one repository: its mirror, refreshed once for concurrent requests
//! mirror              the files of a mirror
//! git                 subprocesses: small environment, resource limits, timeout, process group
//! keys                upstream credentials: ssh-agent, token pipe, strict host keys
//! ssh_control_master  a shared ssh connection to an upstream
//! upstream            the refs of an upstream
//! push                one push, from the pre-receive hook to the upstream
//! refusal             why a push or a fetch is refused, for the agent
//! refs                ref rules
//! new_objects         objects that are new to the upstream
//! read                streams every new object through the scanner
//! blob                the views of a blob that are scanned, and line numbers
//! tree_index          parents, paths and commits of new trees
//! archives            contents of gzip and zip
//! names               file names that hold secrets
//! findings            deduplicated findings
//! messages            messages for the agent
//! ```

mod archives;
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
mod private_root;
mod push;
mod read;
mod refs;
mod refusal;
mod repo;
mod report_status;
mod ssh_control_master;
mod tree_index;
mod upstream;

pub use daemon::{FORWARD_SECONDS, GateConfig, NAME, run};
