//! Attacks that must fail, one kind a file. Each has its control: the same attempt gets through outside, or
//! what it is after is there.
//!
//! ```text
//! on every backend here that isolates:
//!   writing      files of the host, through links, /proc and the system's folders
//!   possessions  the user's keys, history and sockets
//!   processes    looking into, stopping and ending processes outside
//!   memory       shared memory of the machine's
//!   settings     the kernel's settings and switches
//!   mounts       what each mount forbids
//!   privileges   set-id programs and device files
//!   kernel       system calls that lead into the kernel, by whatever numbering
//!   sockets      families and protocols that lead out, or into code that is not loaded yet
//!   typing       into the user's terminal
//!   layers       what an agent leaves where the host works later
//!   exhaustion   processes, memory and disk, until there is no more
//!   nested       what `resources.nested` opens, and what stays shut
//! on whole launches:
//!   sequences    what the user's terminal would obey
//!   planted      links, pipes, devices and the like in everything that the host reads later
//!   everywhere   the places of a machine and its engine where a secret could lie, searched again and again
//!   described    what the user's own rules and marks keep in
//!   secrets      a launch with secrets, looked for in all of them while it runs
//! and
//!   tools        what must not fail: programs of a developer, in a bottle
//!   ordinary     all of it once more, as a user who is not root
//! ```
//! What crosses the session's channel is lied about in the channel's own tests, and a snapshot's content in the
//! backends'.

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
