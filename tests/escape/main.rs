//! Attacks that must fail, one kind in each file. Each attack has a control, which shows that the same attempt succeeds
//! outside a bottle, or that its target exists.
//!
//! ```text
//! on every available backend that isolates:
//!   writing      writing files of the host, through links, /proc and system directories
//!   possessions  reading the user's keys, shell history and sockets
//!   processes    inspecting, stopping and killing processes outside the bottle
//!   memory       using the machine's shared memory
//!   settings     writing kernel settings
//!   mounts       the restrictions of each mount
//!   privileges   using set-id programs and device files
//!   kernel       making dangerous system calls, with every system call numbering
//!   sockets      creating sockets that reach outside or load kernel modules
//!   typing       injecting input into the user's terminal
//!   layers       leaving hostile files in directories that the host searches and removes
//!   exhaustion   exhausting processes, memory and disk space
//!   nested       the actions that `resources.nested` allows and forbids
//! with complete launches:
//!   sequences    printing sequences that control the user's terminal
//!   planted      leaving links, pipes, devices and similar files where the host reads later
//!   described    sending values that the user's rules or sensitive variables contain
//!   secrets      finding a launch's secrets while it runs
//!   everywhere   (used by `secrets`) searches every place on the machine and its engine
//! controls:
//!   tools        developer programs work in a bottle
//!   ordinary     runs all tests again as a user who is not root
//! ```
//! The tests of `bottle-channel` cover hostile messages on the channel. The tests of the backends cover hostile
//! snapshots.

mod attempts;
mod described;
mod everywhere;
mod exhaustion;
#[path = "../backends/fixture.rs"]
#[allow(dead_code, reason = "the suite of the backends uses more of it")]
mod fixture;
mod kernel;
mod layers;
mod memory;
mod mounts;
mod nested;
mod ordinary;
mod planted;
mod possessions;
mod privileges;
mod processes;
mod secrets;
mod sequences;
mod settings;
mod sockets;
mod tools;
mod typing;
mod writing;
