//! Implements the git gate, which is the only connection between a bottle and its repositories.
//!
//! The gate serves git's smart HTTP to the bottle, and uses git's own transports to the upstream. The bottle
//! never receives a key. The gate scans every object of a push before it sends any of them upstream:
//!
//! ```text
//! git in the bottle ── http ──► http ──► fetch: refresh the mirror ──► git upload-pack
//!                                   └──► push:  git receive-pack ─(quarantine, pre-receive)─┐
//!               upstream ◄── git push ◄── approval ◄── push_scan ◄── ref rules ◄──────────┘
//! ```
//! ```text
//! daemon                the process: confinement, repositories from the parent process, health
//! gate                  the state that all requests share
//! private_root          the gate's private mount namespace when root starts it
//! http                  smart HTTP endpoints; requests and responses are streamed
//! request_body          request bodies on their way to git
//! body_error, idle      why a body is not read, and how long the client may take
//! push_check            the limits of a push, before git sees it
//! received              the file in which a push is stored until it has arrived completely
//! ls_refs               the list of refs for clients with protocol version 2
//! wants                 the objects that clients with protocol version 2 want
//! push_head             limits on the command list and the options of a push
//! push_options          push options that the gate refuses
//! report_status         git's response to a push, and messages that the gate inserts
//! repo                  one repository and its mirror; concurrent requests share one refresh
//! mirror                the files of a mirror on disk
//! git                   subprocesses with a small environment, resource limits and a timeout
//! upstream_credentials  upstream credentials: ssh-agent, token pipe, strict host keys
//! ssh_control_master    a shared ssh connection to an upstream
//! upstream              the refs of an upstream
//! push                  the decision about one push, and forwarding it to the upstream
//! refusal               reasons for refusing a push or fetch, as messages for the agent
//! refs                  ref rules
//! new_objects           objects that are new to the upstream
//! new_entries           the paths that the commits of a push add
//! new_paths             judges these paths
//! push_scan             the scan of every new object
//! push_reader           reads the objects of a push
//! push_limits           limits on what a push contains
//! read_error            why a push cannot be scanned
//! blob_scan             the views of a blob that are scanned, and the lines of findings
//! content_checks        files that other programs obey
//! encoding              encodings of commits and tags
//! tree_index            new trees and their commits
//! search                the secrets and rules that pushes are searched for
//! archives              the contents of gzip and zip files
//! excerpt               the line of a finding, without secrets, for the user
//! findings              the findings of a push, without duplicates
//! agent_messages        messages for the agent
//! ```

mod agent_messages;
mod archives;
mod blob_scan;
mod body_error;
mod content_checks;
mod daemon;
mod encoding;
mod excerpt;
mod findings;
mod gate;
mod git;
mod http;
mod idle;
mod ls_refs;
mod mirror;
mod new_entries;
mod new_objects;
mod new_paths;
mod private_root;
mod push;
mod push_check;
mod push_head;
mod push_limits;
mod push_options;
mod push_reader;
mod push_scan;
mod read_error;
mod received;
mod refs;
mod refusal;
mod repo;
mod report_status;
mod request_body;
mod search;
mod ssh_control_master;
mod tree_index;
mod upstream;
mod upstream_credentials;
mod wants;

pub use daemon::{FORWARD_SECONDS, GateConfig, NAME, run};
